#!/usr/bin/env bash
# From a fresh clone to two trained policies and a page that compares them.
#
#   scripts/quickstart.sh                     a machine without a GPU: 2 cores, 8 GB of memory free,
#                                             4 GB of disk, about 15 minutes
#   scripts/quickstart.sh PATH-OF-A-MODEL     a machine with a GPU: the same task with that model
#                                             (Qwen2.5-0.5B-Instruct, say) and the recipe gpu1
#
# Trains GDPO and then GRPO, its control, from the same policy with the same seed through verl's
# own PPO driver on Ray with vLLM rollouts. Run again after an interruption: what is done is not
# done twice, and a training goes on from its last checkpoint.
#
# STEPS (40) training steps each; OUT (runs/quickstart) where everything goes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=          # bytecode is written at the first import; see setup.sh
steps=${STEPS:-40}
out=${OUT:-runs/quickstart}
data=$PWD/data/toolbox

echo "1/5  installing (two minutes the first time)"
scripts/setup.sh
gdpo=.venv/bin/gdpo-verl

if [ $# -gt 0 ]; then
  hardware=gpu1 model=$(realpath "$1")
else
  hardware=cpu model=$PWD/models/toolbox
  export VERL_PLATFORM=cpu                 # verl on the cores of this machine
fi

echo "2/5  checking the installation"
[ -f .venv/doctor-ok ] || { $gdpo doctor && touch .venv/doctor-ok; }

echo "3/5  preparing the task and the policy to start from"
[ -f "$data/provenance.json" ] || $gdpo prepare toolbox --out "$data"
[ $# -gt 0 ] || [ -f "$model/policy.json" ] || $gdpo make-policy --out "$model"

echo "4/5  training, $steps steps each; everything that verl prints is in $out/*/train.log"
for estimator in gdpo grpo; do
  $gdpo train "toolbox/$estimator" --run "$out/$estimator" \
    "hardware=$hardware" \
    "actor_rollout_ref.model.path=$model" \
    "data.train_files=$data/train.parquet" \
    "data.val_files=$data/validation.parquet" \
    "trainer.total_training_steps=$steps"
done

echo "5/5  writing the report"
page=$($gdpo report "$out/gdpo" "$out/grpo" --out "$out/report")

cat "$out/report/summary.md"
echo
echo "The page with curves, table and completions: $page"
echo "Logs, metrics, dumps and checkpoints: $out/{gdpo,grpo}/"
