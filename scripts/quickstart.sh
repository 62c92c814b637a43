#!/usr/bin/env bash
# From a fresh clone to two trained policies and a page that compares them.
#
#   scripts/quickstart.sh                     a machine without a GPU: 2 cores, 8 GB of memory free,
#                                             4 GB of disk; each part says how long it took, and the
#                                             first steps how long the rest will take
#   scripts/quickstart.sh smollm2             the same with a pretrained model, 135 million weights that learn
#                                             to solve sums in GSM8K's format: 10 GB of memory free
#   scripts/quickstart.sh MODEL               a machine with a GPU: the same task with that model
#                                             (Qwen/Qwen2.5-0.5B-Instruct or a path), recipe gpu1
#
# Trains GDPO, writes its page, and then trains GRPO, the baseline, from the same policy with the same
# seed through verl's own PPO driver on Ray with vLLM rollouts. Run again after an interruption: what
# is done is not done twice, and a run resumes from its last checkpoint.
#
# STEPS (20; 12 for smollm2) training steps each; OUT (runs/quickstart, runs/smollm2, runs/NAME of the model) the
# directory of all output.
set -euo pipefail
# The path of a model stays as it is from here, before the change of directory; a hub id too.
name=${1:-toolbox}
model=${1:+$(realpath -e "$1" 2>/dev/null || echo "$1")}
cd "$(dirname "$0")/.."
. scripts/environment.sh
recipe=toolbox prepare=(toolbox) make_policy=tiny policy=toolbox extras=()
case $name in
  toolbox)   # Half of the recipe's batch: both rewards rise as well, in half of the time.
    settings=(hardware=cpu data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=8) ;;
  smollm2)   # 64 short responses in each step; without KL it learns in a few steps. Responses to held-out sums are
             # sampled as in the run, at temperature 1: its most probable response has the format from the start.
    recipe=gsm8k prepare=(short-sums --shots 2) make_policy=smollm2 policy=smollm2 extras=(data)
    STEPS=${STEPS:-12} OUT=${OUT:-runs/smollm2}
    settings=(hardware=cpu data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=8
              actor_rollout_ref.rollout.n=8 data.max_prompt_length=192 data.max_response_length=48
              actor_rollout_ref.actor.use_kl_loss=false actor_rollout_ref.actor.optim.lr=1e-5
              actor_rollout_ref.rollout.val_kwargs.do_sample=true
              actor_rollout_ref.rollout.val_kwargs.temperature=1.0 data.val_max_samples=64) ;;
  *)         # A pretrained model needs more tokens than the tiny policy, and the paper's learning rate.
    make_policy= OUT=${OUT:-runs/${name##*/}}
    settings=(hardware=gpu1 data.max_prompt_length=1024 data.max_response_length=512
              actor_rollout_ref.actor.optim.lr=1e-6) ;;
esac
steps=${STEPS:-20} out=${OUT:-runs/quickstart} data=$PWD/data/${prepare[0]}
half=$(( (steps + 1) / 2 ))

trap 'echo "Interrupted. The same command continues here: a run resumes from its last checkpoint." >&2; exit 130' INT
part() { printf '%s   [%d min %02d s]\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

part "1/5  installing"
if [ -z "$make_policy" ]; then
  scripts/setup.sh gpu
else
  scripts/setup.sh cpu "${extras[@]}"
  export VERL_PLATFORM=cpu         # verl on the cores of this machine
fi

part "2/5  preparing the task and the policy to start from"
if [ ! -f "$data/provenance.json" ]; then $gdpo prepare "${prepare[@]}" --out "$data"; fi
making=
if [ -n "$make_policy" ]; then
  model=$PWD/models/$policy
  # It needs one core; the check runs at the same time.
  if [ ! -f "$model/policy.json" ]; then $gdpo make-policy "$make_policy" --out "$model" & making=$!; fi
  trap 'if [ -n "$making" ]; then kill "$making"; fi' EXIT
fi

part "3/5  checking the installation"
$gdpo doctor
if [ -n "$making" ]; then wait "$making"; making=; fi

# The number and the seconds of each step in a run's metrics; those of earlier starts come first.
step_times() { sed -nE 's/^\{"step": ?([0-9]+),.*"timing_s\/step": ?([0-9.]+).*/\1 \2/p' "$1"/metrics*.jsonl 2>/dev/null || true; }

# When GDPO has taken three steps: how long both runs will still take, estimated from these steps and
# from the time until the first of them, which GRPO needs as well.
say_rest() {
  local begun=$SECONDS run=$1 known rest
  known=$(step_times "$run" | wc -l)        # where a run resumes
  until [ "$(step_times "$run" | wc -l)" -ge $((known + 3)) ]; do sleep 1; done
  rest=$(step_times "$run" | tail -n +$((known + 1)) | awk -v steps="$steps" -v taken=$((SECONDS - begun)) '
    { sum += $2; last = $1 }
    END { step = sum / NR; start = taken > sum ? taken - sum : 0
          printf "%.0f min more, at %.1f s a step", (start + (2 * steps - last) * step) / 60, step }')
  part "     both runs take about $rest"
}

part "4/5  training, $steps steps each; everything that verl prints is in $out/*/train.log"
say_rest "$out/gdpo" &
trap 'kill %say_rest 2>/dev/null || true' EXIT
runs=()
for estimator in gdpo grpo; do
  $gdpo train "$recipe/$estimator" --run "$out/$estimator" \
    "${settings[@]}" \
    "actor_rollout_ref.model.path='$model'" \
    "data.train_files='$data/train.parquet'" \
    "data.val_files='$data/validation.parquet'" \
    "trainer.total_training_steps=$steps" \
    "trainer.test_freq=$half" \
    "trainer.save_freq=$half"        # held-out prompts and checkpoints: middle and end
  kill %say_rest 2>/dev/null || true # where GDPO had fewer steps to take
  runs+=("$out/$estimator")
  page=$($gdpo report "${runs[@]}" --out "$out/report")
  part "     $estimator is trained; the page so far: $page"
done

part "5/5  both trained from the same policy"
sed 's/&lt;/</g' "$out/report/summary.md"    # Markdown, in which a policy's tags are escaped
echo
echo "The page with curves, table and responses: $page"
echo "Logs, metrics, dumps and checkpoints: $out/{gdpo,grpo}/"
