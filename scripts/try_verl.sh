#!/usr/bin/env bash
# Try gdpo-verl with another verl, without a GPU: what of it does not fit, the fast tests of the seam,
# and a real training of two steps.
#
#   scripts/try_verl.sh DIRECTORY                                    a checkout of verl
#   scripts/try_verl.sh git+https://github.com/verl-project/verl     its main
#
# In an environment of its own (VENV, default .venv-verl), otherwise that of scripts/setup.sh cpu.
set -euo pipefail
verl=${1:?usage: scripts/try_verl.sh DIRECTORY or URL}
if [ -d "$verl" ]; then verl=$(realpath "$verl"); fi
cd "$(dirname "$0")/.."
export VENV=${VENV:-$PWD/.venv-verl}
. scripts/environment.sh
export VERL_PLATFORM=cpu
out=runs/try_verl

scripts/setup.sh cpu test
"$venv/bin/python" -m pip install --quiet --no-deps --force-reinstall "$verl"
"$venv/bin/python" -c 'from gdpo_verl.contract import misfit; raise SystemExit(misfit())'

"$venv/bin/python" -m pytest -q -m "not real" tests/test_{contract,plugin,seam,batch,checks,cpu,reward_manager}.py

if [ ! -d "$out/data" ]; then "$gdpo" prepare toolbox --out "$out/data"; fi
if [ ! -d "$out/model" ]; then "$gdpo" make-policy --out "$out/model"; fi
rm -rf "$out/run"
"$gdpo" train toolbox/gdpo --run "$out/run" hardware=cpu \
  "actor_rollout_ref.model.path='$PWD/$out/model'" \
  "data.train_files='$PWD/$out/data/train.parquet'" \
  "data.val_files='$PWD/$out/data/validation.parquet'" \
  trainer.total_training_steps=2
