#!/usr/bin/env bash
# GDPO and its control GRPO on three small tasks with tiny policies, without a GPU: what stands in
# docs/results.md under "Three tasks, three seeds".
#
#   scripts/results.sh            2 cores, 8 GB of memory free, 4 GB of disk, some hours
#
# Needs scripts/setup.sh cpu data. Both
# estimators get the same settings; the estimator is the only difference. Run again after an
# interruption: what is done is not done twice.
#
# TASKS (all three); SEEDS ("1 2 3") of the order of the prompts; STEPS (24) training steps each, 40
# on the toolbox; OUT (runs/results) where everything goes.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
need_environment
export VERL_PLATFORM=cpu           # verl on the cores of this machine
tasks=${TASKS:-toolbox reasoning-gym bfcl}
seeds=${SEEDS:-1 2 3}
out=$(realpath -m "${OUT:-runs/results}")

for task in $tasks; do
  # --- settings, the same for GDPO and GRPO -----------------------------------------------------
  case $task in
    toolbox)       recipe=toolbox   steps=${STEPS:-40}
                   settings=(trainer.test_freq=10) ;;
    reasoning-gym) recipe=gsm8k     steps=${STEPS:-24}
                   settings=(data.max_prompt_length=64  data.max_response_length=32
                             data.val_max_samples=128) ;;
    bfcl)          recipe=tool_call steps=${STEPS:-24}
                   settings=(data.max_prompt_length=160 data.max_response_length=64) ;;
  esac
  # What the recipes for real models need on this scale: toolbox's batch, learning rate and way of
  # evaluating. Greedy answers of policies that learned from flawed ones look better than they are.
  if [ $task != toolbox ]; then
    settings+=(
      data.train_batch_size=32                          # prompts a step
      actor_rollout_ref.rollout.n=8                     # the group size G
      actor_rollout_ref.rollout.max_model_len=256       # the tiny policy's
      actor_rollout_ref.actor.ppo_mini_batch_size=16    # two updates a step
      actor_rollout_ref.actor.optim.lr=1e-4
      actor_rollout_ref.actor.optim.lr_scheduler_type=constant
      actor_rollout_ref.rollout.val_kwargs.do_sample=true
      actor_rollout_ref.rollout.val_kwargs.temperature=1.0
      "trainer.test_freq=$(( (steps + 1) / 2 ))"        # held-out prompts: start, middle, end
      trainer.total_epochs=1000                         # the number of steps ends the run
    )
  fi

  # --- data and the policy to start from --------------------------------------------------------
  data=$out/data/$task model=$out/models/$task
  if [ ! -f "$data/provenance.json" ]; then $gdpo prepare $task --out "$data"; fi
  if [ ! -f "$model/policy.json" ]; then $gdpo make-policy --task $task --out "$model"; fi

  # --- training ---------------------------------------------------------------------------------
  for seed in $seeds; do
    for estimator in gdpo grpo; do
      $gdpo train "$recipe/$estimator" --run "$out/$task/$estimator-$seed" \
        hardware=cpu \
        "actor_rollout_ref.model.path='$model'" \
        "data.train_files='$data/train.parquet'" \
        "data.val_files='$data/validation.parquet'" \
        "data.seed=$seed" \
        "trainer.total_training_steps=$steps" \
        "trainer.save_freq=$steps" \
        "${settings[@]}"
    done
  done

  # --- curves and tables ------------------------------------------------------------------------
  $gdpo report "$out/$task"/gdpo-* "$out/$task"/grpo-* --out "$out/report/$task"
done
