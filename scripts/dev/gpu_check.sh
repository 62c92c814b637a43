#!/usr/bin/env bash
# What to run in the first ten minutes with a GPU, the most useful part first. Each part has its own time limit, and
# its output stays in OUT when a later part fails.
#
#   scripts/dev/gpu_check.sh MODEL DATA [OUT]
#
# MODEL is a folder with SmolLM2-135M-Instruct (gdpo-verl make-policy smollm2), and DATA the file train.parquet of
# `gdpo-verl prepare short-sums --shots 2`; neither is fetched here. OUT is runs/gpu. PYTHON (python) chooses the
# interpreter; DEVICE=cpu and STEPS=1 try the script without a GPU.
#
#   estimator   times the estimator on tensors of the GPU; needs PyTorch, and compares with verl where it is installed
#   training    trains GDPO and GRPO in TRL; needs PyTorch, transformers, accelerate, datasets and TRL
#   shared-prompts  compares verl's engine with and without shared prompts; needs verl without vLLM
#   quickstart  trains in verl with vLLM, writes the report, and resumes; needs the whole installation
set -uo pipefail
if [ $# -lt 2 ]; then
  echo "usage: scripts/dev/gpu_check.sh MODEL DATA [OUT]" >&2
  exit 2
fi
model=$(realpath "$1")
data=$(realpath "$2")
cd "$(dirname "$0")/../.."
out=${3:-runs/gpu}
python=${PYTHON:-python}
device=${DEVICE:-cuda}
steps=${STEPS:-30}
mkdir -p "$out"

part() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$2 start=$SECONDS status=0
  shift 2
  timeout "$seconds" "$@" > "$out/$name.txt" 2>&1 || status=$?
  echo "$name: status $status after $((SECONDS - start)) s (limit $seconds s); output in $out/$name.txt"
}

train() { # ESTIMATOR
  local options=(--model "$model" --data "$data" --output_dir "$out/$1" --max_steps "$steps"
    --per_device_train_batch_size 64 --gradient_accumulation_steps 1 --num_generations 8 --max_completion_length 48
    --learning_rate 1e-5 --lr_scheduler_type constant --warmup_steps 0 --beta 0 --log_completions true --report_to none)
  if [ "$device" = cpu ]; then
    options+=(--use_cpu true --per_device_train_batch_size 8)
  else
    options+=(--bf16 true)
  fi
  part "training-$1" 150 "$python" examples/trl_gsm8k.py "$1" "${options[@]}"
}

sizes=(4096x1024x3 4096x8192x3)
if [ "$device" = cpu ]; then sizes=(256x128x3); fi
part estimator 60 "$python" scripts/dev/benchmark.py advantage --device "$device" --turns 5 --size "${sizes[@]}"
train gdpo
train grpo
if [ "$device" = cpu ]; then
  part shared-prompts 60 env VERL_PLATFORM=cpu "$python" scripts/dev/shared_prompts.py "$model" --device cpu --prompt 64
else
  part shared-prompts 60 "$python" scripts/dev/shared_prompts.py "$model"
fi
if "$python" -c 'import vllm' 2> /dev/null && [ "$device" != cpu ]; then
  part quickstart 240 env STEPS=3 OUT="$out/quickstart" scripts/quickstart.sh "$model"
  part resumed 120 env STEPS=4 OUT="$out/quickstart" scripts/quickstart.sh "$model"
fi
