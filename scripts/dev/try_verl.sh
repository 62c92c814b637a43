#!/usr/bin/env bash
# Try gdpo-verl with another verl, without a GPU: check the contract, run the fast tests of the trainer
# hooks, and make a real training run of two steps.
#
#   scripts/dev/try_verl.sh DIRECTORY                                    a checkout of verl
#   scripts/dev/try_verl.sh git+https://github.com/verl-project/verl     its main
#
# In a separate environment (VENV, default .venv-verl), otherwise that of scripts/setup.sh cpu.
set -euo pipefail
verl=${1:?usage: scripts/dev/try_verl.sh DIRECTORY or URL}
if [ -d "$verl" ]; then verl=$(realpath "$verl"); fi
cd "$(dirname "$0")/../.."
export VENV=${VENV:-$PWD/.venv-verl}
. scripts/environment.sh
export VERL_PLATFORM=cpu
out=runs/try_verl

scripts/setup.sh cpu test
"$venv/bin/python" -m pip install --quiet --no-deps --force-reinstall "$verl"
"$venv/bin/python" -c 'from gdpo_verl.plugin.contract import first_violation; raise SystemExit(first_violation())'

"$venv/bin/python" -m pytest -q -m "not real" tests/cpu/test_cpu.py \
  tests/plugin/test_{contract,plugin,trainer_hooks,batch,validation,reward_manager}.py

if [ ! -d "$out/data" ]; then "$gdpo" prepare toolbox --out "$out/data"; fi
"$venv/bin/python" - "$out/model" << 'PYTHON'    # untrained: two steps teach it nothing
import sys
from gdpo_verl.lab.policy import make_model, train_tokenizer
from gdpo_verl.recipes.toolbox.policy import TASK
tokenizer = train_tokenizer(TASK, seed=0, vocabulary=TASK.settings.vocabulary)
for part in (tokenizer, make_model(tokenizer)):
    part.save_pretrained(sys.argv[1])
PYTHON
rm -rf "$out/run"
"$gdpo" train toolbox/gdpo --run "$out/run" hardware=cpu \
  "actor_rollout_ref.model.path='$PWD/$out/model'" \
  "data.train_files='$PWD/$out/data/train.parquet'" \
  "data.val_files='$PWD/$out/data/validation.parquet'" \
  data.train_batch_size=8 actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.actor.ppo_mini_batch_size=8 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
  trainer.total_training_steps=2 trainer.val_before_train=false trainer.test_freq=-1
