"""The card of the mathematics reward, its correctness alone."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import random
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import version

from cards import Answer, Card, read_lines, shifted
from verl.utils.reward_score import math_dapo, math_reward, math_verify

from gdpo_verl.rewards import math_length
from gdpo_verl.rewards.math_length import ParseError

FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\$(.+?)\$", re.DOTALL)
PATIENCE = 20
"""Seconds for a verdict, on a machine that may be busy."""
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
    r"with \text{m s}^{-1}": lambda t: (
        rf"{t}\ \text{{m s}}^{{-1}}" if NUMBER.fullmatch(t) else None
    ),
    r"with \text{ cm}": lambda t: rf"{t}\text{{ cm}}" if NUMBER.fullmatch(t) else None,
    "a fraction as a/b": lambda t: re.sub(r"^(-?)\\d?frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", t),
    "the minus below": lambda t: re.sub(r"^-\\d?frac\{(\d+)\}\{(\d+)\}$", r"\\frac{\1}{-\2}", t),
    r"a word without \text": lambda t: re.sub(r"^\\text\{\(?([A-Za-z]+)\)?\}$", r"\1", t),
}
# The same, still to be evaluated.
UNEVALUATED = {
    "a derivative": r"\frac{d}{dx}\int %s\,dx",
    "a limit": r"\lim_{h\to 0}\left(%s+h\right)",
    "a sum": r"\sum_{k=1}^{1}\left(%s\right)",
    "a determinant": r"\begin{vmatrix}%s&0\\0&1\end{vmatrix}",
    "a binomial": r"\left(%s\right)\binom{k}{0}",
}
GENERATED = ("fraction_simplification", "gcd", "lcm", "chain_sum", "simple_equations")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("mathematics")
    group.add_argument("--math", help="MATH's test split: JSON lines with problem and solution")
    group.add_argument("--college-math", help="college_math: JSON lines with question and answer")
    group.add_argument(
        "--math-answers",
        help="real answers: JSON lines with question, gt, code (texts) and score (booleans)",
    )
    group.add_argument(
        "--math-rows", type=int, default=1500, help="of each corpus; spelt anew are all truths"
    )


def card(args: argparse.Namespace) -> Card:
    # Strict and lenient ask math-verify the same.
    math_length._compare = cache(math_length._compare)
    math_verify._pool = ProcessPoolExecutor(
        4, multiprocessing.get_context("spawn"), initializer=count_processor_time
    )
    rules = {
        "strict": lambda a: ours(a, {"question": a.question}),
        "strict, question unknown": lambda a: ours(a, {}),
        "strict=False": lambda a: ours(a, {}, strict=False),
        "verl math_verify": lambda a: (
            math_verify.compute_score(a.text, a.truth, timeout=10 * PATIENCE) == 1
        ),
        "verl math_reward": lambda a: math_reward.compute_score(a.text, a.truth) == 1,
        "verl math_dapo": lambda a: math_dapo.compute_score(a.text, a.truth)["acc"],
    }
    made = Card("Mathematics", rules)
    for name, rows in corpora(args, args.math_rows):
        print(f"{name}: {len(rows):,} rows", flush=True)
        count(made, name, rows)
    spelt = Card("Mathematics", {"strict": rules["strict"]})
    count_spellings(spelt, [truth for _, rows in corpora(args, 10**9) for _, truth in rows])
    made.rows += spelt.rows
    real = list(real_answers(args.math_answers))
    real = random.Random(0).sample(real, min(args.math_rows, len(real)))
    made.count_real("real answers", real)
    return made


def count_processor_time() -> None:
    """Have math-verify's own alarm, in a process of verl's, count processor time."""
    signal.SIGALRM = signal.SIGPROF  # type: ignore[misc]
    signal.alarm = lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)  # type: ignore


def ours(answer: Answer, info: dict, *, strict: bool = True) -> bool:
    info = {"response_length": 1, **info}
    result = math_length.compute_score(
        "", answer.text, answer.truth, info, strict=strict, deadline=PATIENCE
    )
    return result["correctness"] == 1


def corpora(args: argparse.Namespace, most: int) -> Iterator[tuple[str, list[tuple[Answer, str]]]]:
    """Rows of each corpus, drawn at random: the worked solution as an answer, the answer alone."""
    rng = random.Random(0)
    if args.math:
        rows = read_lines(args.math)
        rows = rng.sample(rows, min(most, len(rows)))
        boxes = [math_length._last_box(row["solution"])[0] for row in rows]
        pairs = zip(rows, boxes, strict=True)
        yield (
            "MATH, test",
            [(Answer(r["solution"], box, r["problem"]), box) for r, box in pairs if box],
        )
    if args.college_math:
        rows = read_lines(args.college_math)
        rows = rng.sample(rows, min(most, len(rows)))
        truths = [row["answer"].strip().strip("$") for row in rows]
        pairs = zip(rows, truths, strict=True)
        yield "college_math, test", [(Answer(boxed(t), t, r["question"]), t) for r, t in pairs if t]
    if importlib.util.find_spec("reasoning_gym"):
        yield f"reasoning-gym {version('reasoning-gym')}", list(generated())
    else:
        print("reasoning-gym is not installed: its rows are left out")


def generated() -> Iterator[tuple[Answer, str]]:
    import reasoning_gym

    for task in GENERATED:
        for row in reasoning_gym.create_dataset(task, size=20, seed=0):
            truth = str(row["answer"]).strip("$")
            yield Answer(boxed(truth), truth, row["question"]), truth


def count(made: Card, name: str, rows: list[tuple[Answer, str]]) -> None:
    readable = [row for row in rows if can_be_right(row[1])]
    made.count_right(f"{name}: worked solutions", (answer for answer, _ in rows))
    thought = [a._replace(text=f"<think>Or \\boxed{{0}}?</think>\n{a.text}") for a, _ in readable]
    made.count_right(f"{name}: the same behind a thought", thought)
    made.count_wrong(f"{name}: echoes", echoes(readable))
    pairs = zip(readable, shifted([truth for _, truth in readable]), strict=True)
    swapped = [(answer, truth, other) for (answer, truth), other in pairs if other != truth]
    made.count_wrong(
        f"{name}: another row's answer", (a._replace(text=boxed(o)) for a, _, o in swapped)
    )
    hedges = (a._replace(text=boxed(f"{t} \\text{{ or }} {o}")) for a, t, o in swapped)
    made.count_wrong(f"{name}: the right one or another", hedges)
    unfinished = (a._replace(text=f"<think>Perhaps {boxed(t)}") for a, t in readable)
    made.count_wrong(f"{name}: right in a thought that does not end", unfinished)


def count_spellings(made: Card, truths: list[str]) -> None:
    """Every ground truth that equals itself, written in another way, and still to be evaluated."""
    truths = [truth for truth in dict.fromkeys(truths) if can_be_right(truth)]
    for name, spell in SPELLINGS.items():
        pairs = [(truth, spell(truth)) for truth in truths]
        made.count_right(f"spelt: {name}", (Answer(boxed(a), t) for t, a in pairs if a and a != t))
    for name, form in UNEVALUATED.items():
        terms = (t for t in truths if not NO_TERM.search(t))
        made.count_wrong(
            f"still to be evaluated: {name}", (Answer(boxed(form % t), t) for t in terms)
        )


def can_be_right(truth: str) -> bool:
    info = {"response_length": 1}
    result = math_length.compute_score(
        "", boxed(truth), truth, info, strict=False, deadline=PATIENCE
    )
    return result["parse_error"] == ParseError.NONE


def echoes(rows: list[tuple[Answer, str]]) -> Iterator[Answer]:
    for answer, truth in rows:
        formulas = ["".join(found).strip() for found in FORMULA.findall(answer.question)]
        if formulas and plain(formulas[-1]) != plain(truth):
            yield answer._replace(text=boxed(formulas[-1]))


def plain(latex: str) -> str:
    return re.sub(r"\s|\\left|\\right|(?<=\\)[dt](?=frac)|[.,]$", "", latex)


def real_answers(path: str | None) -> Iterator[tuple[Answer, bool]]:
    for row in read_lines(path):
        for text, right in zip(row["code"], row["score"], strict=True):
            yield Answer(text, row["gt"], row["question"]), right


def boxed(latex: str) -> str:
    return f"The answer is $\\boxed{{{latex}}}$."
