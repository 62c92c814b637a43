"""Reward accuracy of mathematics: worked solutions, spellings of formulas, and responses."""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

from cards import Answer, Card, shifted
from page import read_lines

from gdpo_verl.rewards import math_length

FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\$(.+?)\$", re.DOTALL)
PATIENCE = 20
"""Seconds for a result, on a machine that may be busy."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\\frac\{\d+\}\{\d+\}")
NO_TERM = re.compile(r"[=<>,$%]|\\(?:text|in|begin|cup|pm|math|mbox|infty|overline)|[\[\]]|\\\{")
# A ground truth as other people write it; None where it cannot be written so.
SPELLINGS: dict[str, Callable[[str], str | None]] = {
    "in braces": lambda t: f"{{{t}}}",
    "with a name in front": lambda t: None if NO_TERM.search(t) else f"y = {t}",
    "the minus sign of Unicode": lambda t: t.replace("-", "−"),
    r"\dfrac": lambda t: t.replace(r"\frac", r"\dfrac"),
    "with spaces around signs": lambda t: t if "text" in t else re.sub("([+=-])", r" \1 ", t),
    r"\left and \right": lambda t: (
        re.sub(r"\\left|\\right", "", t).replace("(", r"\left(").replace(")", r"\right)")
    ),
    r"with \cdot": lambda t: re.sub(r"^(\d+)([a-z])$", r"\1\\cdot \2", t),
    r"with \text{ cm}": lambda t: rf"{t}\text{{ cm}}" if NUMBER.fullmatch(t) else None,
    "a fraction as a/b": lambda t: re.sub(r"^(-?)\\d?frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", t),
    r"a word without \text": lambda t: re.sub(r"^\\text\{\(?([A-Za-z]+)\)?\}$", r"\1", t),
}
DIGITS = re.compile(r"\d+(?:\.\d+)?")


def with_another_number(truth: str) -> str | None:
    """Raise the last digit of the last number in a ground truth by one; 9 becomes 0."""
    numbers = list(DIGITS.finditer(truth))
    if not numbers:
        return None
    last = numbers[-1].end() - 1
    return f"{truth[:last]}{(int(truth[last]) + 1) % 10}{truth[last + 1 :]}"


def fragment(truth: str) -> str | None:
    """Return the first of several numbers."""
    numbers = DIGITS.findall(truth)
    return numbers[0] if len(numbers) > 1 else None


# Wrong versions of a ground truth; None where there is no such version.
CHANGES: dict[str, Callable[[str], str | None]] = {
    "the last number changed": with_another_number,
    "the first of several numbers": fragment,
}


def make_card(args: argparse.Namespace) -> Card:
    from verl.utils.reward_score import math_dapo, math_reward, math_verify

    # The strict and the lenient rule ask math-verify the same question.
    math_length._compare = cache(math_length._compare)
    spawn = multiprocessing.get_context("spawn")
    math_verify._pool = ProcessPoolExecutor(4, spawn, initializer=count_processor_time)
    wait = 10 * PATIENCE
    rules = {
        "strict": lambda a: judge(a, question=a.question)["correctness"] == 1,
        "strict, question unknown": lambda a: judge(a)["correctness"] == 1,
        "strict=False": lambda a: judge(a, strict=False)["correctness"] == 1,
        "verl math_verify": lambda a: math_verify.compute_score(a.text, a.truth, timeout=wait) == 1,
        "verl math_reward": lambda a: math_reward.compute_score(a.text, a.truth) == 1,
        "verl math_dapo": lambda a: math_dapo.compute_score(a.text, a.truth)["acc"],
    }
    card = Card("Mathematics", rules)
    corpora = {
        "MATH, test": [
            Answer(row["solution"], math_length._last_box(row["solution"])[0], row["problem"])
            for row in read_lines(*args.math)
        ],
        "college_math, test": [
            Answer(boxed(truth), truth, row["question"])
            for row in read_lines(*args.college_math)
            for truth in [row["answer"].strip().strip("$")]
        ],
    }
    corpora = {name: [a for a in answers if a.truth] for name, answers in corpora.items()}
    rng = random.Random(0)
    for name, answers in corpora.items():
        count_corpus(card, name, rng.sample(answers, min(args.math_rows, len(answers))))

    # Every ground truth that equals itself, written in another way.
    truths = dict.fromkeys(answer.truth for answers in corpora.values() for answer in answers)
    known = [truth for truth in truths if can_be_right(truth)]
    for name, spell in SPELLINGS.items():
        pairs = ((truth, spell(truth)) for truth in known)
        texts = (Answer(boxed(s), truth) for truth, s in pairs if s and s != truth)
        card.count(True, f"spelt: {name}", texts, rules=1)
    real = [
        (Answer(text, row["gt"], row["question"]), right)
        for row in read_lines(*args.math_answers)
        for text, right in zip(row["code"], row["score"], strict=True)
    ]
    card.count_real("real answers", rng.sample(real, min(args.math_rows, len(real))))
    return card


def count_processor_time() -> None:
    """Let math-verify's own alarm, in a process of verl, count processor time."""
    signal.SIGALRM = signal.SIGPROF  # type: ignore[misc]
    signal.alarm = lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)  # type: ignore


def count_corpus(card: Card, name: str, answers: list[Answer]) -> None:
    card.count(True, f"{name}: worked solutions", answers)
    readable = [answer for answer in answers if can_be_right(answer.truth)]
    card.count(False, f"{name}: echoes", echoes(readable))
    pairs = zip(readable, shifted([a.truth for a in readable]), strict=True)
    swapped = [(answer, other) for answer, other in pairs if other != answer.truth]
    card.count(False, f"{name}: another row's answer", (
        a._replace(text=boxed(other)) for a, other in swapped
    ))  # fmt: skip
    card.count(False, f"{name}: the right one or another", (
        a._replace(text=boxed(f"{a.truth} \\text{{ or }} {other}")) for a, other in swapped
    ))  # fmt: skip
    for change, changed in CHANGES.items():
        others = [(answer, changed(answer.truth)) for answer in readable]
        card.count(False, f"{name}: {change}", (
            a._replace(text=boxed(other)) for a, other in others if other
        ))  # fmt: skip
    card.count(False, f"{name}: right in a thought that does not end", (
        a._replace(text=f"<think>Perhaps {boxed(a.truth)}") for a in readable
    ))  # fmt: skip


def judge(answer: Answer, *, strict: bool = True, **info: Any) -> dict[str, Any]:
    info["response_length"] = 1
    return math_length.compute_score(
        "", answer.text, answer.truth, info, strict=strict, deadline=PATIENCE
    )


def can_be_right(truth: str) -> bool:
    found = judge(Answer(boxed(truth), truth), strict=False)
    return bool(found["parse_error"] == math_length.ParseError.NONE)


def echoes(answers: list[Answer]) -> Iterator[Answer]:
    """Return the last formula of the question in a box, if it differs from the answer."""

    def plain(latex: str) -> str:
        return re.sub(r"\s|\\left|\\right|(?<=\\)[dt](?=frac)|[.,]$", "", latex)

    for answer in answers:
        formulas = ["".join(found).strip() for found in FORMULA.findall(answer.question)]
        if formulas and plain(formulas[-1]) != plain(answer.truth):
            yield answer._replace(text=boxed(formulas[-1]))


def boxed(latex: str) -> str:
    return f"The answer is $\\boxed{{{latex}}}$."
