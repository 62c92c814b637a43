"""Measure the time of our code and of the alternative, in turns in the same run.

    OMP_NUM_THREADS=1 python scripts/dev/benchmark.py advantage  # compared with verl's estimators
    python scripts/dev/benchmark.py advantage --variants --size 4096x1024x3
    python scripts/dev/benchmark.py rubric --size 4096x20         # compared with plain components
    python scripts/dev/benchmark.py step --turns 5                # the plug-in in a step of verl
    python scripts/dev/benchmark.py replay --size 100000          # report and replay, with memory
    python scripts/dev/benchmark.py training --trl trl/bin/python # a training beside TRL's

Where contenders take turns, real time and the processor time of this process are printed for each:
the median, the least time, and the ratio to the first line, within a turn (median and quartiles)
and of the least times. On a machine that is shared, use the least times. One additional turn is run
and not counted. The script needs Linux with glibc.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
GROUP = 8


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Measure the real time of a call, and the processor time of this process."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    measured = time.perf_counter() - wall, time.process_time() - cpu
    del result  # freeing it is not counted
    return measured


def compare(contenders: dict[str, Callable[[], object]], turns: int) -> None:
    """Time the contenders in turns, of which the first is a warm-up, and print both times."""
    measured = []
    for _ in range(turns + 1):
        measured.append([seconds(run) for run in contenders.values()])
    times = np.array(measured)[1:]
    for clock, kind in enumerate(("wall", "CPU")):
        base = times[:, 0, clock]
        for name, own in zip(contenders, times[:, :, clock].T, strict=True):
            low, middle, high = np.quantile(own / base, (0.25, 0.5, 0.75))
            print(
                f"  {kind:4} {name:20} {np.median(own):9.4f} s, least {own.min():9.4f}   "
                f"x {middle:5.2f} ({low:.2f} to {high:.2f}, {turns} turns), least "
                f"{own.min() / base.min():5.2f}",
                flush=True,
            )


def uids(rows: int) -> Any:
    """Make ids of prompts as verl does: repeated strings in an object array."""
    prompts = [str(uuid.UUID(int=prompt)) for prompt in range(rows // GROUP + 1)]
    return np.repeat(np.array(prompts, dtype=object), GROUP)[:rows]


# ---------------------------------------------------------------- rubric


def rubric(args: argparse.Namespace) -> None:
    """Time rewards as dicts: as many components, and a rubric with as many criteria."""
    from gdpo_verl import advantages_of

    for rows, criteria in args.sizes:
        groups = [row // GROUP for row in range(rows)]
        draw = random.Random(0)
        plain = []
        graded = []
        for group in groups:
            components = {}
            own = {}
            for place in range(criteria):
                value = float(draw.random() < 0.5)
                components[f"c{place}"] = value
                own[f"{group} {place}"] = {"value": value, "weight": 1.0 + place}
            plain.append(components)
            graded.append({"rubric": own})
        summed = {"gdpo": {"criteria": "sum"}}
        contenders = {
            f"{criteria} components": partial(advantages_of, plain, groups),
            "rubric": partial(advantages_of, graded, groups),
            "rubric, sum": partial(advantages_of, graded, groups, config=summed),
        }
        print(f"{rows} responses in groups of {GROUP}, {criteria} criteria")
        compare(contenders, args.turns)


# ---------------------------------------------------------------- advantage


def contenders(b: int, t: int, k: int, args: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Return functions over one random batch: ours first, then verl's or our variants."""
    from gdpo_verl import gdpo_advantages
    from gdpo_verl.advantage import VARIANTS

    device = args.device
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 4, (b, k), generator=generator).float()
    groups = uids(b)
    lengths = torch.randint(t // 4, t + 1, (b, 1), generator=generator)
    lengths[0] = t
    mask = (torch.arange(t) < lengths).long().to(device)
    columns = {f"r{i}": column.numpy() for i, column in enumerate(rewards.unbind(1))}
    rewards = rewards.to(device)
    ours = partial(gdpo_advantages, rewards, groups, mask)
    functions: dict[str, Callable[[], Any]] = {"ours": ours}
    if args.variants:
        names = [name for name in VARIANTS if name != "gdpo"]
        return functions | {
            f"ours, {name}": partial(ours, variant=name, ranges=[(0.0, 3.0)] * k) for name in names
        }
    if importlib.util.find_spec("verl") is None:
        print("verl is not installed, so that ours alone is timed")
        return functions
    import verl.trainer.ppo.core_algos as verl

    # verl's grpo gets the summed reward. Its gdpo puts each reward on the last attended token;
    # here prompts have no tokens.
    summed = torch.zeros(b, t, device=device)
    summed[:, 0] = rewards.sum(1)
    batch = {"prompts": torch.empty(b, 0, device=device), "attention_mask": mask}
    functions["verl grpo_vectorized"] = partial(
        verl.compute_grpo_vectorized_outcome_advantage, summed, mask, groups
    )
    if b <= 16384:  # for larger batches verl's loops over Python numbers take minutes
        functions["verl grpo"] = partial(verl.compute_grpo_outcome_advantage, summed, mask, groups)
        functions["verl gdpo"] = partial(
            verl.compute_gdpo_outcome_advantage,
            summed,
            mask,
            groups,
            config={"gdpo_reward_keys": list(columns)},
            non_tensor_batch=columns,
            batch=batch,
        )
    return functions


def keep_pages() -> None:
    """Make glibc keep freed blocks below 32 MiB.

    Otherwise the first allocation after a large release needs time for the pages of the next ones:
    for 16 MiB, more time than the work on them.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest
    libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def advantage(args: argparse.Namespace) -> None:
    keep_pages()
    print(f"torch {torch.__version__} on {args.device}, {torch.get_num_threads()} threads")
    for b, t, k in args.sizes:
        print(f"\n{b}x{t}x{k} (B x T x K), int64 mask, groups of {GROUP}", flush=True)
        compare(contenders(b, t, k, args), args.turns)


# ---------------------------------------------------------------- step

# Rows that one put writes; verl's agent loops write one session at a time.
PUT_ROWS = 512
BASE = "grpo_vectorized"
RANK = {"function": "pkg://gdpo_verl.rewards.derived:rank", "of": "correctness"}
DUMPS = "gdpo + dumps"
# By name: the estimator, or the settings under algorithm.gdpo.
COLUMNS: dict[str, dict[str, Any]] = {
    BASE: {"estimator": BASE},
    "control": {"estimator": BASE},
    "gdpo": {},
    DUMPS: {},
    "gdpo - metrics": {"metrics": False},
    "gdpo + derived": {"derived": {"rank": RANK}},
}


def trainer(name: str) -> Any:
    """Return verl's default trainer, set up only with what its advantage step reads."""
    from fake_verl import recipe, trainer_of

    config = recipe(**COLUMNS[name])
    if name != DUMPS:
        config.trainer.rollout_data_dir = None
    return trainer_of(config, hooks=name != BASE)  # without our hooks verl's method runs alone


def fill(rows: int, tokens: int) -> Any:
    """Put rows with log-probabilities into the queue, as verl's agent loops do."""
    import transfer_queue as tq
    from fake_verl import info, put

    draw = random.Random(0)
    keys = []
    tags = []
    part = []
    for index, uid in enumerate(uids(rows)):
        key = f"{uid}_{index % GROUP}_0"  # each session has one output
        length = draw.randint(tokens // 4, tokens)
        rewards = info(float(draw.random() < 0.75), float(draw.randrange(4)))
        keys.append(key)
        part.append((key, [1] * length, rewards))
        if len(part) == PUT_ROWS or len(keys) == rows:
            tags += put(tq, part).tags
            part = []
    return tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def step(args: argparse.Namespace) -> None:
    """Time verl's own advantage step on one TransferQueue, without and with the plug-in's hooks."""
    import ray
    import transfer_queue as tq

    # Rows and trainers come from the tests of the trainer hooks.
    sys.path.append(str(ROOT / "tests"))
    ray.init(num_cpus=32, include_dashboard=False, log_to_driver=False)
    trainers = {name: trainer(name) for name in COLUMNS}
    queue = trainers[BASE].config.transfer_queue
    queue.backend.SimpleStorage.num_data_storage_units = 1
    queue.backend.SimpleStorage.total_storage_size = None
    tq.init(queue)
    for rows, tokens in args.sizes:
        batch = fill(rows, tokens)
        print(f"\nadvantage: {rows:,} rows of at most {tokens:,} tokens", flush=True)
        steps = {name: partial(t._compute_advantage, batch, {}) for name, t in trainers.items()}
        compare(steps, args.turns)
        tq.kv_clear(keys=batch.keys, partition_id="train")
    tq.close()
    ray.shutdown()


# ---------------------------------------------------------------- replay

STEP_RESPONSES = 2560


def write_dumps(run: Path, responses: int) -> None:
    """Write the dumps of a run: steps of 2,560 responses with two components, 1.8 kB each."""
    folder = run / "rollouts"
    folder.mkdir(parents=True)
    draw = random.Random(0)
    for step in range(1, responses // STEP_RESPONSES + 1):
        with (folder / f"{step}.jsonl").open("w", encoding="utf-8") as file:
            for index in range(STEP_RESPONSES):
                form = float(draw.random() < 0.5)
                correctness = float(draw.randrange(4))
                prompt = uuid.UUID(int=step * STEP_RESPONSES + index // GROUP)
                row = {
                    "uid": f"{prompt}_{index % GROUP}_0",
                    "input": "question " * 40,
                    "output": "response " * 140,
                    "gts": "3",
                    "step": step,
                    "score": form + correctness,
                    "format": form,
                    "correctness": correctness,
                }
                file.write(json.dumps(row) + "\n")


def replay(args: argparse.Namespace) -> None:
    """Measure the time and the peak memory of `report` and `replay` on the dumps of a large run."""
    for (responses,) in args.sizes:
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            write_dumps(run, responses)
            for command in ("replay", "report"):
                words = [sys.executable, "-m", "gdpo_verl.lab.cli", command, str(run)]
                start = time.perf_counter()
                with subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=folder) as process:
                    _, status, usage = os.wait4(process.pid, 0)
                    process.returncode = os.waitstatus_to_exitcode(status)
                taken = time.perf_counter() - start
                peak = usage.ru_maxrss / 1024
                print(f"{command:8} status {process.returncode} {taken:7.1f} s {peak:7.0f} MiB")


# ---------------------------------------------------------------- training

PROMPTS = 8
# The dtypes by the names that vLLM and torch use, with the names that verl uses for FSDP.
DTYPES = {"bfloat16": "bf16", "float32": "fp32"}


def training(args: argparse.Namespace) -> None:
    """Time the steps of a training of SmolLM2 without a GPU: in verl with the plug-in, and in TRL.

    Both train on the same prompts in the same order, with 8 prompts of 8 responses in each step. A
    first step is not counted, because it includes work that is done once.

    verl cannot be imported beside TRL 1.16, so TRL needs an environment of its own:

        python -m venv trl && trl/bin/pip install torch==2.13.0 trl==1.16.0 pyarrow omegaconf
    """
    if args.trl is None:
        raise SystemExit("--trl: expected the Python of an environment with TRL, found none")
    turns, steps = args.sizes[0]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        data = Path(folder) / "data"
        lab("make-policy", "smollm2", "--out", model)
        lab("prepare", "short-sums", "--shots", "2", "--out", data)
        for dtype in DTYPES:
            seconds: dict[str, list[float]] = {"verl": [], "TRL": []}
            for turn in range(turns):
                run = Path(folder) / f"{dtype}-{turn}"
                records = {
                    "verl": train_in_verl(run, model, data, dtype, steps),
                    "TRL": train_in_trl(args.trl, model, data, dtype, steps),
                }
                for name, record in records.items():
                    print(f"{dtype} {name:5}", json.dumps(record), flush=True)
                    seconds[name] += record["seconds"][1:]
            medians = {name: float(np.median(values)) for name, values in seconds.items()}
            ratio = medians["verl"] / medians["TRL"]
            print(f"{dtype}: {medians} s a step in the median, ratio {ratio:.2f}", flush=True)


def lab(*words: str | Path) -> None:
    """Run a command of gdpo-verl on the cores of this machine; its output goes to stderr."""
    command = [sys.executable, "-m", "gdpo_verl.lab.cli", *words]
    environment = {**os.environ, "VERL_PLATFORM": "cpu"}
    subprocess.run(command, check=True, stdout=sys.stderr, env=environment)


def train_in_verl(
    run: Path, model: Path, data: Path, dtype: str, steps: int
) -> dict[str, list[float]]:
    """Train with the recipe of GSM8K; return the seconds and the mean length of each step."""
    actor = "actor_rollout_ref.actor"
    rollout = "actor_rollout_ref.rollout"
    lab(
        "train",
        "gsm8k/gdpo",
        "--run",
        run,
        "hardware=cpu",
        f"actor_rollout_ref.model.path={model}",
        f"data.train_files={data}/train.parquet",
        f"data.val_files={data}/validation.parquet",
        f"data.train_batch_size={PROMPTS}",
        "data.max_prompt_length=192",
        "data.max_response_length=48",
        "data.shuffle=false",
        f"{actor}.ppo_mini_batch_size={PROMPTS}",
        f"{actor}.use_kl_loss=false",
        f"{actor}.optim.lr=1e-5",
        f"{actor}.fsdp_config.dtype={dtype}",
        f"{actor}.fsdp_config.mixed_precision.param_dtype={DTYPES[dtype]}",
        f"{rollout}.dtype={dtype}",
        f"{rollout}.n={GROUP}",
        f"trainer.total_training_steps={steps}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
    )
    record: dict[str, list[float]] = {"seconds": [], "lengths": []}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        metrics = json.loads(line)["data"]
        record["seconds"].append(metrics["timing_s/step"])
        record["lengths"].append(metrics["response_length/mean"])
    return record


def train_in_trl(
    python: str, model: Path, data: Path, dtype: str, steps: int
) -> dict[str, list[float]]:
    """Train with TRL's GRPOTrainer; return the seconds and the mean length of each step."""
    script = ROOT / "scripts/dev/trl_training.py"
    command = [python, script, data / "train.parquet", model, dtype, str(steps)]
    # Otherwise waiting threads of PyTorch use a core that others need, as in hardware=cpu.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    output = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout
    record: dict[str, list[float]] = json.loads(output.splitlines()[-1])
    return record


BENCHMARKS = {
    "advantage": advantage,
    "rubric": rubric,
    "step": step,
    "replay": replay,
    "training": training,
}
# Responses, tokens and components; responses and criteria; responses and tokens; responses; turns
# and steps.
SIZES = {
    "advantage": ["256x1024x3", "4096x1024x3", "4096x8192x3", "65536x1024x2"],
    "rubric": ["4096x20"],
    "step": ["4096x1024", "65536x256"],
    "replay": ["100000"],
    "training": ["2x3"],
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", choices=BENCHMARKS)
    parser.add_argument("--size", nargs="*", help=f"default: {SIZES}")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--trl", metavar="PYTHON", help="training needs an environment with TRL")
    parser.add_argument(
        "--device",
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="where advantage computes",
    )
    parser.add_argument(
        "--variants",
        action="store_true",
        help="advantage compares the variants with GDPO instead of verl's estimators",
    )
    args = parser.parse_args()
    args.sizes = []
    for size in args.size or SIZES[args.benchmark]:
        args.sizes.append([int(number) for number in size.split("x")])
    BENCHMARKS[args.benchmark](args)


if __name__ == "__main__":
    main()
