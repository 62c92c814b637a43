"""Answers that the rule-based rewards judge per second, and how long they take over bad ones.

    python scripts/benchmark_rewards.py [rlla_sft.json] [--rounds 15] [--runs 8] [--all] [--host]

First table: tool calling against the simple rules, which are the published ones written in the
shortest way (regular expressions and `json.loads`), on short answers: the dialogues of ToolRL
whose file is given, else the toolbox's. Four answers share a ground truth: the right one,
another row's, one with a wrong value and one cut short. The rules take turns in one process.

Second table: processor milliseconds on 1 MB of text made to be slow, and how much longer that
is than on 100 kB, the best of several runs. --host imports verl's trainer first: the process
then has a worker's heap.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import platform
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice

from gdpo_verl.rewards import gsm8k, math_length, tool_call
from gdpo_verl.rewards.code_text import find_code
from gdpo_verl.rewards.tool_text import LONGEST
from gdpo_verl.tasks import prompt, toolbox

Make = Callable[[int], str]

THOUGHT = "<think>Look it up.</think>"
ONE = '{"name": "weather", "parameters": {"city": "Paris", "days": 1}}'
START, END = f"{THOUGHT}\n<tool_call>\n", "\n</tool_call>"
VALUE = START + '{"name": "weather", "parameters": {"city": '
FIVE = [ONE.replace("1", str(days)) for days in range(1, 6)]
TRUTH = f"<tool_call>\n{chr(10).join(FIVE)}\n</tool_call>\n<response>So.</response>"
TWENTY = [f'{{"name": "weather", "parameters": {{"city": {i}, "days": {i}}}}}' for i in range(20)]
LONG_TRUTH = f"<tool_call>\n{chr(10).join(TWENTY)}\n</tool_call>"


# ---------------------------------------------------------------- the simple rules


def simple_rules(answer: str, ground_truth: str) -> tuple[float, float]:
    """The published verdicts, in the shortest way to write them; they crash on bad truths."""
    answer = answer.strip()
    shape, tags = "<think>.*?</think>", []
    if "<tool_call>" in ground_truth:
        shape, tags = shape + "\n<tool_call>\n.*?\n</tool_call>", ["tool_call"]
    if "<response>" in ground_truth:
        shape, tags = shape + "\n<response>.*?</response>", [*tags, "response"]
    once = all(answer.count(f"<{end}{tag}>") == 1 for tag in tags for end in ("", "/"))
    form = float(once and re.search(f"^{shape}$", answer, re.DOTALL) is not None)
    if "<tool_call>" not in ground_truth:
        return form, 0.0
    wanted = simple_calls(ground_truth)
    try:
        return form, simple_match(wanted, simple_calls(answer))
    except Exception:
        return form, -3.0


def simple_calls(text: str) -> list:
    body, _ = text.split("<tool_call>")[1].split("</tool_call>", 1)
    return [json.loads(line) for line in body.strip().split("\n")]


def jaccard(a: list, b: list) -> float:
    if a == b:
        return 1.0
    shared = sum((Counter(a) & Counter(b)).values())
    return shared / (len(a) + len(b) - shared)


def simple_match(wanted: list, found: list) -> float:
    if wanted == found:
        return 3.0
    total = jaccard([call["name"] for call in wanted], [call["name"] for call in found])
    highest, left = 1.0, list(found)
    for call in wanted:
        asked, best, chosen = call["parameters"], 0.0, None
        highest += 1 + len(asked)
        for other in left:
            if other["name"] == call["name"]:
                given = other["parameters"]
                equal = sum(key in given and given[key] == value for key, value in asked.items())
                likeness = jaccard(list(asked), list(given)) + equal
                if likeness > best:
                    best, chosen = likeness, other
        total += best
        left = [other for other in left if other is not chosen]
    return 6 * total / highest - 3


# ---------------------------------------------------------------- short answers


def short_answers(path: str | None) -> list[tuple[str, str]]:
    """Pairs of answer and ground truth, in groups of four."""
    if path:
        with open(path, encoding="utf-8") as file:
            rows = [row["output"] for row in json.load(file)]
    else:
        examples = islice(toolbox.examples("train", seed=0), 400)
        rows = [prompt.reference_answer(example.thought, example.calls) for example in examples]
    rng = random.Random(0)
    pairs = []
    for row in rows:
        thought, end, rest = row.rpartition("</think>")
        wrong = thought + end + re.sub(r": *[^{}]+?([,}])", r": 0\1", rest, count=2)
        cut = row[: rng.randrange(len(row))]
        # Without its thought, which may mention tags and would stop the simple rules.
        pairs += [(answer, rest.strip()) for answer in (row, rng.choice(rows), wrong, cut)]
    return pairs


def compare(pairs: list[tuple[str, str]], rounds: int) -> None:
    rules = {
        "simple rules": simple_rules,
        "strict": lambda a, g: tool_call.compute_score("", a, g),
        "published": lambda a, g: tool_call.compute_score("", a, g, strict=False),
    }
    times: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(rounds):
        for name, rule in rules.items():
            start = time.process_time()
            for answer, ground_truth in pairs:
                rule(answer, ground_truth)
            times[name].append(time.process_time() - start)
    print("| rules | answers a second and core | against the simple rules (median, range) |")
    print("|---|---|---|")
    for name, own in times.items():
        ratios = [a / b for a, b in zip(times["simple rules"], own, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"| {name} | {len(pairs) / min(own):,.0f} | {spread} |")


# ---------------------------------------------------------------- the worst texts


def filled(unit: str, start: str = START, end: str = END) -> Make:
    return lambda size: start + unit * ((size - len(start) - len(end)) // len(unit)) + end


def counted(unit: str, start: str = START, end: str = END) -> Make:
    """As `filled`, with a number of its own in each copy of the unit."""

    def make(size: int) -> str:
        return start + "".join(unit % i for i in range(size // len(unit % 12345))) + end

    return make


def names_of_one_hash(size: int) -> str:
    """Numbers for names, which the published rules take."""
    names = ((2**61 - 1) * (i + 1) for i in range(size // 36))
    return START + "\n".join(f'{{"name":{name}}}' for name in names) + END


SHORTEST = '{"name":"","parameters":{}}\n'
SHARED = '{"name":"weather","parameters":{"city":%d}}\n'
NEAR = '{"name":"weather","parameters":{"city":%d,"days":7}}\n'
# Calls, at the length up to which they are read, are as slow as they get; a megabyte of them is
# refused. The rest is what regular expressions, or a walk from each tag to the end, would be
# slow on.
WORST: dict[str, Make] = {
    "near calls that are read": lambda size: counted(NEAR)(min(size, LONGEST)),
    "lists 900 deep that are read": lambda size: filled(
        "[" * 900 + "]" * 900 + ",", VALUE + "[", "1]}}" + END
    )(min(size, LONGEST)),
    "lines of no calls that are read": lambda size: filled("5\n")(min(size, LONGEST)),
    "names of one hash that are read": lambda size: names_of_one_hash(min(size, LONGEST)),
    "unclosed calls": filled("<tool_call>", "", ""),
    "ends of thought and newlines": filled("</think>" + "\n" * 999, "<think>", ""),
    "seams": filled("</think>\n<tool_call>\n", "<think>", END),
    "responses": filled("<response>", f"{THOUGHT}\n", ""),
    "opening brackets": filled("<", "", ""),
    "newlines": filled("\n", THOUGHT, f"x{START}{ONE}{END}"),
    "special tokens": filled("<|im_end|> ", "x", ""),
    "special tokens and a letter": filled("<|im_end|> ", "x", "x</s>"),
    "spaces between tokens": filled(" ", "x<|im_end|>", "<|im_end|>"),
    "answer of commas": filled(",999", f"{THOUGHT}\n<answer>1", "</answer>"),
    "answers": filled("<answer>", "", ""),
    "boxes": filled("\\boxed{", "", ""),
    "boxes of blanks": filled("\\boxed" + " " * 900, "", ""),
    "blanks before a backtick": filled(" ", "```", "`"),
    "fences of other languages": counted("```x%d\n```\n", "", ""),
    "indented fences": filled(" " * 99 + "```\n", "", ""),
}


REWARDS: dict[str, Callable[[str, bool], object]] = {
    "tool_call": lambda text, s: tool_call.compute_score("", text, TRUTH, strict=s),
    "tool_call, 20 asked": lambda text, s: tool_call.compute_score("", text, LONG_TRUTH, strict=s),
    "gsm8k": lambda text, s: gsm8k.compute_score("", text, "#### 42", strict=s),
    "code, its reading": lambda text, s: find_code(text, strict=s),
    # No text here has a box that goes to math-verify.
    "math_length": lambda text, _: math_length.compute_score(
        "", text, "42", {"response_length": 1}
    ),
}


def milliseconds(judge: Callable[[str], object], text: str, runs: int) -> float:
    """Processor time, the best of several runs: other people share the machine."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        judge(text)
        times.append(time.process_time() - start)
    return min(times) * 1e3


def worst(show_all: bool, runs: int) -> None:
    print("\n| reward | worst texts | ms on 1 MB | time(1 MB) / time(100 kB) |\n|---|---|---|---|")
    for name, reward in REWARDS.items():
        for strict in (True, False):
            judge = partial(lambda rule, s, text: rule(text, s), reward, strict)
            rows = []
            for label, make in WORST.items():
                texts, best = (make(1_000_000), make(100_000)), [math.inf, math.inf]
                for _ in range(runs):  # in turn, for the same share of a busy machine
                    times = [
                        milliseconds(judge, text, n) for text, n in zip(texts, (1, 5), strict=True)
                    ]
                    best = list(map(min, best, times))
                rows.append((best[0], label, best[0] / best[1]))
            for large, label, ratio in sorted(rows, reverse=True)[: None if show_all else 6]:
                print(f"| {name}, strict={strict} | {label} | {large:.1f} | {ratio:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dialogues", nargs="?", help="ToolRL's rlla_sft.json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--runs", type=int, default=8, help="of each slow text")
    parser.add_argument("--all", action="store_true", help="every text, not the six slowest")
    parser.add_argument("--host", action="store_true", help="import verl's trainer first")
    args = parser.parse_args()
    if args.host:
        importlib.import_module("verl.trainer.main_ppo")
    print(f"Python {platform.python_version()}, {platform.machine()}\n")
    compare(short_answers(args.dialogues), args.rounds)
    worst(args.all, args.runs)


if __name__ == "__main__":
    main()
