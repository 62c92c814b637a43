#!/usr/bin/env python
"""Speed of the code reward: answers a second and core, a step's time with bad answers.

.venv/bin/python scripts/benchmark_code.py [--answers 128] [--bad 0.01]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor

from gdpo_verl.rewards.code import compute_score
from gdpo_verl.sandbox import best_protection

TESTS = 10
NUMBERS = range(TESTS)
KINDS = {
    f"script, {TESTS} tests": (
        "print(sum(map(int, input().split())))",
        {"inputs": [f"{i} 1" for i in NUMBERS], "outputs": [str(i + 1) for i in NUMBERS]},
    ),
    f"call, {TESTS} tests": (
        "def add(a, b): return a + b",
        {
            "fn_name": "add",
            "inputs": [[i, 1] for i in NUMBERS],
            "outputs": [i + 1 for i in NUMBERS],
        },
    ),
    "assert, 1 test of 10 calls": (
        "def add(a, b): return a + b",
        {
            "entry_point": "add",
            "test": "\n".join(f"assert add({i}, 1) == {i + 1}" for i in NUMBERS),
        },
    ),
}
BAD = ["while True: pass", "x = []\nwhile True: x.append('a' * 999999)"]


def score(code: str, truth: str) -> tuple[float, float]:
    """The share of tests passed, and the seconds from the call to the answer."""
    started = time.monotonic()
    answer = f"```python\n{code}\n```"
    result = compute_score("benchmark", answer, truth, {"response_length": 1})
    return result["pass"], time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=128, help="answers of a step")
    parser.add_argument("--bad", type=float, default=0.01, help="share of bad ones, rounded up")
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    print(f"protection: {best_protection().name}, cores: {cores}, load: {os.getloadavg()[0]:.1f}\n")

    print(f"{'one after the other':30} {'ms an answer':>13} {'answers/s/core':>15}")
    for name, (code, truth) in KINDS.items():
        score(code, json.dumps(truth))
        runs = [score(code, json.dumps(truth)) for _ in range(20)]
        assert all(passed == 1 for passed, _ in runs)
        best = min(seconds for _, seconds in runs)
        print(f"{name:30} {1000 * best:13.0f} {1 / best:15.1f}")

    print(f"\n{f'a step of {options.answers} answers':30} {'seconds':>13} {'answers/s/core':>15}")
    code, truth = next(iter(KINDS.values()))
    for count in (0, math.ceil(options.bad * options.answers)):
        codes = [BAD[i % len(BAD)] for i in range(count)] + [code] * (options.answers - count)
        started = time.monotonic()
        with ThreadPoolExecutor(min(32, cores + 4)) as pool:  # as verl's reward workers
            results = list(pool.map(score, codes, [json.dumps(truth)] * len(codes)))
        assert sum(passed for passed, _ in results) == options.answers - count
        seconds = time.monotonic() - started
        print(f"{f'{count} of them bad':30} {seconds:13.1f} {len(codes) / seconds / cores:15.1f}")


if __name__ == "__main__":
    main()
