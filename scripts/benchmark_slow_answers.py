"""Seconds that the mathematics rewards of one step take, without and with answers that hang.

    python scripts/benchmark_slow_answers.py [--answers 512] [--workers 8] [--deadline 5]

A step's answers are split over as many processes as verl has reward workers
(`reward.num_workers`), each of which asks from a thread pool of asyncio's default size, as
verl does. The answers that hang are powers, factorials and an integral, on which sympy does
not end or takes all the memory a worker has. One step of common answers runs before the clock
does, so that the processes are started and sympy's own caches filled.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

from gdpo_verl.rewards.math_length import ParseError, compute_score

HANGS = [r"9^{9^{9^9}}", r"((10!)!)!", r"\int_0^1 \sin(x^x) \cos(x)^{x} dx"]


def common(index: int) -> tuple[str, str]:
    """An answer and its ground truth; every other answer is right."""
    n = 2 + index // 2
    forms = [
        (rf"\frac{{{n}}}{{{n + 2}}}", f"{n}/{n + 2}"),
        (str(n), f"x = {n}"),
        (rf"\sqrt{{{n + 1}}}", rf"\sqrt{{{n + 1}}}"),
        (f"({n}, {n + 3}]", f"({n}, {n + 3}]"),
        (rf"\{{{n}, {n + 1}\}}", rf"\{{{n + 1}, {n}\}}"),
    ]
    ground_truth, answer = forms[n % len(forms)]
    return (answer if index % 2 else str(-n)), ground_truth


def questions(answers: int, slow_share: float) -> list[tuple[str, str]]:
    """Answers with their ground truths, the slow ones spread evenly: one at least, if any."""
    found = [common(index) for index in range(answers)]
    slow = max(round(answers * slow_share), int(slow_share > 0))
    for number in range(slow):
        place = number * answers // slow
        found[place] = (HANGS[number % len(HANGS)], found[place][1])
    return found


def score(question: tuple[str, str], deadline: float) -> dict[str, float]:
    answer, ground_truth = question
    text = f"Some thoughts, then \\boxed{{{answer}}}."
    return compute_score("", text, ground_truth, {"response_length": 9}, deadline=deadline)


def work(chunks: multiprocessing.Queue, results: multiprocessing.Queue, deadline: float) -> None:
    threads = min(32, (os.cpu_count() or 1) + 4)
    with ThreadPoolExecutor(threads) as pool:
        while (chunk := chunks.get()) is not None:
            results.put(list(pool.map(lambda question: score(question, deadline), chunk)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--answers", type=int, default=512)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--deadline", type=float, default=5.0)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    chunks, results = context.Queue(), context.Queue()
    workers = [
        context.Process(target=work, args=(chunks, results, args.deadline))
        for _ in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    print("| answers that hang | seconds a step | right | no verdict |\n|---|---|---|---|")
    for share in (None, 0.0, 0.01, 0.05):
        batch = questions(args.answers, share or 0.0)
        start = time.perf_counter()
        for rank in range(args.workers):
            chunks.put(batch[rank :: args.workers])
        scores = [row for _ in workers for row in results.get()]
        seconds = time.perf_counter() - start
        if share is not None:
            right = sum(row["correctness"] for row in scores)
            without = sum(row["parse_error"] != ParseError.NONE for row in scores)
            print(f"| {share:.0%} | {seconds:.1f} | {right:.0f} | {without} |", flush=True)
    for _ in workers:
        chunks.put(None)
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
