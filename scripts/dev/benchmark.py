"""Measure the time of our code and of the alternative, in turns in the same run.

    OMP_NUM_THREADS=1 python scripts/dev/benchmark.py advantage  # compared with verl's estimators
    python scripts/dev/benchmark.py advantage --variants --size 4096x1024x3
    python scripts/dev/benchmark.py seam --size 1024x256          # the plug-in in a step of verl
    python scripts/dev/benchmark.py code --answers 100            # a step's rewards, some bad
    python scripts/dev/benchmark.py slow-answers

Where contenders take turns, real time and the processor time of this process are printed for each:
the median, the least time, and the ratio to the first line, within a turn (median and quartiles)
and of the least times. On a machine that is shared, use the least times. One additional turn is run
and not counted. The script needs Linux with glibc.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import re
import sys
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
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
    times = np.array([[seconds(run) for run in contenders.values()] for _ in range(turns + 1)])[1:]
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


# ---------------------------------------------------------------- advantage


def contenders(size: list[int], device: str, variants: bool) -> dict[str, Callable[[], Any]]:
    """Return functions over one random batch: ours first, then verl's or our variants."""
    import verl.trainer.ppo.core_algos as verl

    from gdpo_verl import gdpo_advantages
    from gdpo_verl.advantage import VARIANTS

    b, t, k = size
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 4, (b, k), generator=generator).float()
    groups = uids(b)
    lengths = torch.randint(t // 4, t + 1, (b, 1), generator=generator)
    lengths[0] = t
    mask = (torch.arange(t) < lengths).long().to(device)
    columns = {f"r{i}": column.numpy() for i, column in enumerate(rewards.unbind(1))}
    rewards = rewards.to(device)
    ours = partial(gdpo_advantages, rewards, groups, mask)
    found: dict[str, Callable[[], Any]] = {"ours": ours}
    if variants:
        names = [name for name in VARIANTS if name != "gdpo"]
        return found | {
            f"ours, {name}": partial(ours, variant=name, ranges=[(0.0, 3.0)] * k) for name in names
        }
    # verl's grpo gets the summed reward. Its gdpo puts each reward on the last attended token;
    # here prompts have no tokens.
    summed = torch.zeros(b, t, device=device)
    summed[:, 0] = rewards.sum(1)
    batch = {"prompts": torch.empty(b, 0, device=device), "attention_mask": mask}
    found["verl grpo_vectorized"] = partial(
        verl.compute_grpo_vectorized_outcome_advantage, summed, mask, groups
    )
    if b <= 16384:  # for larger batches verl's loops over Python numbers take minutes
        found["verl grpo"] = partial(verl.compute_grpo_outcome_advantage, summed, mask, groups)
        found["verl gdpo"] = partial(
            verl.compute_gdpo_outcome_advantage,
            summed,
            mask,
            groups,
            config={"gdpo_reward_keys": list(columns)},
            non_tensor_batch=columns,
            batch=batch,
        )
    return found


def peak_mib(run: Callable[[], object], device: str) -> float:
    """Measure the most memory of one call without its inputs, but with its result."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # Pages that glibc kept would be used again without being counted.
    ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at the present memory
    before, result = peak_kib(), run()
    del result
    return (peak_kib() - before) / 2**10


def peak_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1])


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
    for text in args.size:
        print(f"\n{text} (B x T x K), int64 mask, groups of {GROUP}", flush=True)
        runs = contenders([int(number) for number in text.split("x")], args.device, args.variants)
        compare(runs, args.turns)
        for name, run in runs.items():
            print(f"  peak {name:20} {peak_mib(run, args.device):9.0f} MiB", flush=True)


# ---------------------------------------------------------------- code, slow-answers


def common(kind: str, index: int) -> tuple[str, str]:
    """Return a common response and its ground truth: a program with ten tests, or mathematics."""
    if kind == "code":
        inputs = [f"{i} 1" for i in range(10)]
        outputs = [str(i + 1) for i in range(10)]
        tests = json.dumps({"inputs": inputs, "outputs": outputs})
        return "print(sum(map(int, input().split())))", tests
    n = 2 + index // 2
    forms = [
        (rf"\frac{{{n}}}{{{n + 2}}}", f"{n}/{n + 2}"),
        (str(n), f"x = {n}"),
        (rf"\sqrt{{{n + 1}}}", rf"\sqrt{{{n + 1}}}"),
        (f"({n}, {n + 3}]", f"({n}, {n + 3}]"),
        (rf"\{{{n}, {n + 1}\}}", rf"\{{{n + 1}, {n}\}}"),
    ]
    truth, answer = forms[n % len(forms)]
    return (answer if index % 2 else str(-n)), truth  # every other one is right


BAD = {
    "code": ["while True: pass", "x = []\nwhile True: x.append('a' * 999999)"],
    # On these sympy does not end, or uses all the memory of a worker.
    "slow-answers": [r"9^{9^{9^9}}", r"((10!)!)!", r"\int_0^1 \sin(x^x) \cos(x)^{x} dx"],
}


def questions(kind: str, answers: int, share: float) -> list[tuple[str, str]]:
    """Return responses with ground truths, and bad ones spread evenly: at least one, if any."""
    found = [common(kind, index) for index in range(answers)]
    bad = max(round(answers * share), int(share > 0))
    for number in range(bad):
        place = number * answers // bad
        found[place] = (BAD[kind][number % len(BAD[kind])], found[place][1])
    return found


def judge(kind: str, question: tuple[str, str]) -> tuple[bool, bool]:
    """Score a response: is it right, and did it get a result at all?"""
    from gdpo_verl.rewards import code, math_length

    answer, truth = question
    info = {"response_length": 9}
    if kind == "code":
        result = code.compute_score("", f"```python\n{answer}\n```", truth, info)
        return result["pass"] == 1, result["parse_error"] == 0
    result = math_length.compute_score("", f"So, \\boxed{{{answer}}}.", truth, info)
    return result["correctness"] == 1, result["parse_error"] == 0


def work(kind: str, chunk: list[tuple[str, str]]) -> list[tuple[bool, bool]]:
    with ThreadPoolExecutor() as pool:  # as many threads as asyncio has by default
        return list(pool.map(partial(judge, kind), chunk))


def step(args: argparse.Namespace) -> None:
    """Compute the rewards of a step in as many processes as verl has (`reward.num_workers`)."""
    from gdpo_verl.sandbox import best_protection

    print(f"protection: {best_protection().name}, cores: {len(os.sched_getaffinity(0))}\n")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, context) as pool:
        print("| bad responses | seconds per step | right | no result |\n|---|---|---|---|")
        # One step of common responses starts the processes and fills sympy's caches; it is not
        # measured.
        for turn, share in enumerate([0.0, *args.bad]):
            batch = questions(args.benchmark, args.answers, share)
            chunks = [batch[rank :: args.workers] for rank in range(args.workers)]
            start = time.perf_counter()
            judged = list(chain(*pool.map(partial(work, args.benchmark), chunks)))
            taken = time.perf_counter() - start
            right, verdicts = map(sum, zip(*judged, strict=True))
            if turn:
                row = f"| {share:.0%} | {taken:.1f} | {right} | {len(judged) - verdicts} |"
                print(row, flush=True)


# ---------------------------------------------------------------- seam

# Rows that one put writes; verl's agent loops write one session at a time.
PUT_ROWS = 512
BASE = "grpo_vectorized"
RANK = {"function": "pkg://gdpo_verl.rewards.derived:rank", "of": "correctness"}
# Per name: the estimator, algorithm.gdpo, and dumps.
COLUMNS: dict[str, tuple[str, dict[str, Any], bool]] = {
    BASE: ("grpo_vectorized", {}, False),
    "control": ("grpo_vectorized", {}, False),
    "gdpo": ("gdpo", {}, False),
    "gdpo + dumps": ("gdpo", {}, True),
    "gdpo - metrics": ("gdpo", {"metrics": False}, False),
    "gdpo + derived": ("gdpo", {"derived": {"rank": RANK}}, False),
}


def trainer(name: str) -> Any:
    """Return verl's default trainer, set up only with what its advantage step reads."""
    from fake_verl import recipe, trainer_of

    estimator, settings, dumps = COLUMNS[name]
    config = recipe(estimator, **settings)
    if not dumps:
        config.trainer.rollout_data_dir = None
    return trainer_of(config, seam=name != BASE)  # without our hooks verl's method runs alone


def fill(rows: int, tokens: int) -> Any:
    """Put rows with log-probabilities into the queue, as verl's agent loops do."""
    import transfer_queue as tq
    from fake_verl import info, put

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(tokens // 4, tokens + 1, (rows,), generator=generator).tolist()
    components = torch.randint(0, 4, (rows, 2), generator=generator).tolist()
    # Each session has one output.
    keys = [f"{uid}_{index % GROUP}_0" for index, uid in enumerate(uids(rows))]
    made = (
        (key, [1] * length, info(float(form > 0), float(correctness)))
        for key, length, (form, correctness) in zip(keys, lengths, components, strict=True)
    )
    tags = []
    while some := list(islice(made, PUT_ROWS)):
        tags += put(tq, some).tags
    return tq.KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def seam(args: argparse.Namespace) -> None:
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
    for text in args.size:
        size = [int(number) for number in text.split("x")]
        batch = fill(*size)
        print(f"\nadvantage: {size[0]:,} rows of at most {size[1]:,} tokens", flush=True)
        steps = {name: partial(t._compute_advantage, batch, {}) for name, t in trainers.items()}
        compare(steps, args.turns)
        tq.kv_clear(keys=batch.keys, partition_id="train")
    tq.close()
    ray.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="benchmark", required=True)

    def command(run: Callable[[argparse.Namespace], None], name: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=(run.__doc__ or "").split("\n")[0])
        sub.set_defaults(run=run)
        return sub

    sub = command(advantage, "advantage")
    sizes = ["256x1024x3", "4096x1024x3", "4096x8192x3", "65536x1024x2"]
    sub.add_argument("--size", nargs="*", default=sizes, metavar="BxTxK")
    sub.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    sub.add_argument("--turns", type=int, default=15)
    sub.add_argument(
        "--variants",
        action="store_true",
        help="compare the variants with GDPO instead of verl's estimators",
    )

    for name, answers in (("code", 128), ("slow-answers", 512)):
        sub = command(step, name)
        sub.add_argument(
            "--answers",
            type=int,
            default=answers,
            help="responses of a step (default: %(default)s)",
        )
        sub.add_argument(
            "--bad",
            type=float,
            nargs="*",
            default=[0.0, 0.01, 0.05],
            help="shares of bad responses",
        )
        sub.add_argument("--workers", type=int, default=8)

    sub = command(seam, "seam")
    sizes = ["4096x1024", "65536x256"]
    sub.add_argument("--size", nargs="*", default=sizes, metavar="ROWSxTOKENS")
    sub.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
