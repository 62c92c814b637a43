#!/usr/bin/env bash
# Train one recipe in a separate directory: scripts/train.sh toolbox/gdpo [OPTIONS] [HYDRA OVERRIDES]
#
# RUN (runs/RECIPE) is where checkpoints, metrics, dumps and the log go. Started again, it goes on
# from the last whole checkpoint; --retries N starts it again by itself. --dry-run checks all that needs
# no GPU, says what would run and what it needs, and ends. What it runs is verl's own:
#   python -m verl.trainer.main_ppo --config-dir recipes --config-name RECIPE [OVERRIDES]
set -euo pipefail
recipe=${1:?usage: scripts/train.sh RECIPE [OPTIONS] [HYDRA OVERRIDES], for example toolbox/gdpo}
shift
. "$(dirname "$0")/environment.sh"
need_environment
exec "$gdpo" train "$recipe" --run "${RUN:-runs/$recipe}" "$@"
