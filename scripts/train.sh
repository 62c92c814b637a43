#!/usr/bin/env bash
# Train one recipe in a separate directory: scripts/train.sh toolbox/gdpo [OPTIONS] [HYDRA OVERRIDES]
#
# RUN (runs/RECIPE) is the directory of the checkpoints, metrics, dumps and the log. The same command
# resumes from the last complete checkpoint; with --retries N this happens automatically. --dry-run
# checks everything that needs no GPU, says what would run and what it needs, and ends. The command
# runs verl's own driver:
#   python -m verl.trainer.main_ppo --config-dir recipes --config-name RECIPE [OVERRIDES]
set -euo pipefail
recipe=${1:?usage: scripts/train.sh RECIPE [OPTIONS] [HYDRA OVERRIDES], for example toolbox/gdpo}
shift
. "$(dirname "$0")/environment.sh"
need_environment
exec "$gdpo" train "$recipe" --run "${RUN:-runs/$recipe}" "$@"
