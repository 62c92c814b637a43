"""Time of the advantages, beside verl's own functions and the least possible work.

    python scripts/benchmark_advantage.py                  # the default sizes, minutes
    python scripts/benchmark_advantage.py --size 4096x1024x3 --mask bool --repeats 20

Every contender runs on the same batch in this process, in turns, `--repeats` times each (one
that takes longer than `--patience` seconds twice only). Printed are the median and the least time,
the ratio to ours within a turn (median and quartiles), and the ratio of the least times. Below 1 is
faster than ours. On a machine that others use, trust the least times, or count this process'
processor time with `--threads 1 --clock cpu`.

ours             gdpo_verl.gdpo_advantages, from an object array of uuid strings, as verl has it
verl gdpo, …     verl.trainer.ppo.core_algos, as installed; its grpo gets the summed reward
ours, dvao, …    the variants, with --variants
floor            mask.sum(1), and the mask times a column: count and write, nothing checked

Memory is the peak beside the inputs, the result included: on a GPU the allocator's, on a CPU the
growth of the process' resident set, sampled every 2 ms in a turn of its own.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from gdpo_verl import gdpo_advantages
from gdpo_verl.advantage import VARIANTS

# B x T x K
SIZES = ["256x1024x3", "4096x1024x3", "4096x8192x3", "16384x2048x8", "65536x1024x2", "65536x4096x8"]
GROUP = 8
# Above so many rows verl's loops over Python numbers take minutes.
LOOP_ROWS = 16384

Contender = Callable[[], Any]


def contenders(
    size: tuple[int, int, int], mask_dtype: torch.dtype, device: str, variants: bool
) -> dict:
    """The contenders, as functions without arguments over one random batch."""
    import verl.trainer.ppo.core_algos as verl

    b, t, k = size
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 4, (b, k), generator=generator).float()
    uids = [str(uuid.UUID(int=group)) for group in range((b + GROUP - 1) // GROUP)]
    # verl repeats the strings of each prompt, and hands out an object array.
    groups = np.repeat(np.array(uids, dtype=object), GROUP)[:b]
    lengths = torch.randint(t // 4, t + 1, (b, 1), generator=generator)
    lengths[0] = t
    mask = torch.empty(b, t, dtype=mask_dtype, device=device)
    for rows in range(0, b, 1024):
        mask[rows : rows + 1024] = torch.arange(t) < lengths[rows : rows + 1024]
    columns = {f"r{i}": column.numpy() for i, column in enumerate(rewards.unbind(1))}
    rewards = rewards.to(device)
    column = torch.randn(b, 1, generator=generator).to(device)
    # verl's gdpo puts each reward on the last attended token; here prompts have no tokens.
    whole = {
        "prompts": torch.empty(b, 0, device=device),
        "attention_mask": mask.long() if mask.is_floating_point() else mask,
    }

    def floor() -> tuple[Tensor, Tensor]:
        same = mask.dtype == column.dtype
        return mask.sum(1), mask * column if same else mask.to(column.dtype).mul_(column)

    found: dict[str, Contender] = {
        "ours": lambda: gdpo_advantages(rewards, groups, mask),  # type: ignore[arg-type]
        "floor": floor,
    }
    if variants:
        ranges = [(0.0, 3.0)] * k
        for name in VARIANTS:
            if name != "gdpo":
                options = {"variant": name, "ranges": ranges}
                found[f"ours, {name}"] = partial(gdpo_advantages, rewards, groups, mask, **options)
        return found
    summed = torch.zeros(b, t, device=device)
    summed[:, 0] = rewards.sum(1)
    found["verl grpo_vectorized"] = partial(
        verl.compute_grpo_vectorized_outcome_advantage, summed, mask, groups
    )
    if b <= LOOP_ROWS:
        found["verl grpo"] = partial(verl.compute_grpo_outcome_advantage, summed, mask, groups)
        found["verl gdpo"] = partial(
            verl.compute_gdpo_outcome_advantage,
            summed,
            mask,
            groups,
            config={"gdpo_reward_keys": list(columns)},
            non_tensor_batch=columns,
            batch=whole,
        )
    return found


def seconds(run: Contender, args: argparse.Namespace) -> float:
    """Time of one call; on a GPU between two CUDA events, so the host's part counts too."""
    if args.device == "cpu":
        clock = time.process_time if args.clock == "cpu" else time.perf_counter
        start = clock()
        result = run()
        elapsed = clock() - start
        del result
        return elapsed
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def peak_mib(run: Contender, device: str) -> float:
    """The most memory that one call held beside its inputs."""
    gc.collect()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return_freed_pages()
    process = psutil.Process()
    before, highest, done = process.memory_info().rss, 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(0.002):
            highest = max(highest, process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    result = run()
    highest = max(highest, process.memory_info().rss)
    done.set()
    watcher.join()
    del result
    return float(max(0, highest - before)) / 2**20


def in_turns(runs: dict[str, Contender], args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each contender, by turn."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(args.repeats):
        for name, run in runs.items():
            if turn < 2 or times[name][0] < args.patience:
                times[name].append(seconds(run, args))
    return times


def keep_pages() -> None:
    """Make glibc keep freed memory below 32 MiB a piece.

    Otherwise the first to allocate after a large release pays for the pages of the next ones:
    for 16 MiB, more than the work on them.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, at its largest
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def return_freed_pages() -> None:
    """Give what glibc keeps of freed memory back to the system, so that using it again shows."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


def copy_bandwidth(args: argparse.Namespace) -> float:
    """GB/s read and written by a copy of 1 GiB on a GPU, of 256 MiB elsewhere."""
    source = torch.ones(2**26 if args.device == "cpu" else 2**28, device=args.device)
    target = torch.empty_like(source)
    best = min(seconds(lambda: target.copy_(source), args) for _ in range(5))
    return 2 * source.nbytes / best / 1e9


def report(size: tuple[int, int, int], mask_dtype: torch.dtype, args: argparse.Namespace) -> None:
    b, t, k = size
    # The inputs of all, and verl's gdpo: K scores, their sum, and what whitening makes of it.
    loops = b <= LOOP_ROWS
    gib = b * t * (mask_dtype.itemsize + 4 + 4 * (k + 6 if loops else 3)) / 2**30
    print(f"\nB = {b:,}, T = {t:,}, K = {k}, mask {str(mask_dtype)[6:]}", flush=True)
    if gib > args.gib:
        print(f"  skipped: needs about {gib:.1f} GiB, --gib allows {args.gib:g}")
        return
    runs = contenders(size, mask_dtype, args.device, args.variants)
    for run in runs.values():
        run()
    times = in_turns(runs, args)
    for name, run in runs.items():
        ratios = [time / own for time, own in zip(times[name], times["ours"], strict=False)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(
            f"  {name:20} {statistics.median(times[name]) * 1e3:9.2f} ms, least "
            f"{min(times[name]) * 1e3:9.2f}   x {middle:6.2f} ({low:.2f} to {high:.2f}, "
            f"{len(ratios)} turns), least {min(times[name]) / min(times['ours']):6.2f}   "
            f"{peak_mib(run, args.device):6.0f} MiB",
            flush=True,
        )
    if not loops and not args.variants:
        print(f"  verl grpo, verl gdpo: not run above B = {LOOP_ROWS:,}")
    moved = b * t * (2 * mask_dtype.itemsize + 4) / 1e9
    ours = min(times["ours"])
    print(f"  {'ours':20} {moved / ours:10.1f} GB/s of two reads of the mask and one write")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", nargs="*", default=SIZES, metavar="BxTxK")
    parser.add_argument("--mask", default="int64", help="the mask's dtype (verl's is int64)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=9, help="turns; at least 2")
    parser.add_argument("--patience", type=float, default=2.0, help="seconds")
    parser.add_argument("--gib", type=float, default=8.0, help="leave out what needs more memory")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--variants", action="store_true", help="the variants beside GDPO alone")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_pages()
    name = f"{args.threads} threads" if args.device == "cpu" else torch.cuda.get_device_name()
    print(f"torch {torch.__version__} on {args.device}, {name}, {args.clock} clock")
    print(f"copy bandwidth {copy_bandwidth(args):.1f} GB/s, read and written")
    for text in args.size:
        b, t, k = (int(number) for number in text.split("x"))
        report((b, t, k), getattr(torch, args.mask), args)


if __name__ == "__main__":
    main()
