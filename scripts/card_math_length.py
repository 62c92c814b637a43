"""The card of the mathematics reward, its correctness alone."""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import random
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import version

from card import Answer, Card, others, read_lines
from verl.utils.reward_score import math_dapo, math_reward, math_verify

from gdpo_verl.rewards import math_length
from gdpo_verl.rewards.math_length import ParseError

FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\$(.+?)\$", re.DOTALL)
PATIENCE = 60
"""Seconds for a verdict, on a machine that may be busy."""
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
        "--math-rows", type=int, default=1500, help="of each corpus, drawn at random"
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
    made = Card("Mathematics", "correctness 1", rules)
    for name, rows in corpora(args):
        made.sources.append(f"{name}: {len(rows):,} rows.")
        print(f"{name}: {len(rows):,} rows", flush=True)
        count(made, name, rows)
    if args.math_answers:
        real = list(real_answers(args.math_answers))
        real = random.Random(0).sample(real, min(args.math_rows, len(real)))
        made.right("real answers, called right there", (a for a, right in real if right))
        made.wrong("real answers, called wrong there", (a for a, right in real if not right))
        made.sources.append(
            f"{len(real):,} real answers to problems of MATH, published with Qwen2.5-Math "
            "(evaluation/data/eval_rm_maj_example), with its own verdicts."
        )
    made.notes += [
        f"No answer is refused because the machine was busy: gdpo-verl's deadline is {PATIENCE} s "
        "here, and the seconds within verl's are processor time.",
        "An echo is the question's last formula in a box, where it is not the ground truth's text.",
        f"math-verify {version('math-verify')}, verl {version('verl')}.",
    ]
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


def corpora(args: argparse.Namespace) -> Iterator[tuple[str, list[tuple[Answer, str]]]]:
    """Each corpus: the worked solution as an answer, and the answer alone."""
    rng = random.Random(0)
    if args.math:
        rows = read_lines(args.math)
        rows = rng.sample(rows, min(args.math_rows, len(rows)))
        boxes = [math_length._last_box(row["solution"])[0] for row in rows]
        pairs = zip(rows, boxes, strict=True)
        yield (
            "MATH, test",
            [(Answer(r["solution"], box, r["problem"]), box) for r, box in pairs if box],
        )
    if args.college_math:
        rows = read_lines(args.college_math)
        rows = rng.sample(rows, min(args.math_rows, len(rows)))
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
    made.right(f"{name}: worked solutions", (answer for answer, _ in rows))
    if len(readable) < len(rows):
        made.notes.append(
            f"{name}: of the refused solutions {len(rows) - len(readable)} have a ground truth "
            "that math-verify cannot read; `gdpo-verl prepare` drops such rows."
        )
    thought = [a._replace(text=f"<think>Or \\boxed{{0}}?</think>\n{a.text}") for a, _ in readable]
    made.right(f"{name}: the same behind a thought", thought)
    made.wrong(f"{name}: echoes", echoes(readable))
    pairs = zip(readable, others([truth for _, truth in readable]), strict=True)
    swapped = [(answer, truth, other) for (answer, truth), other in pairs if other != truth]
    made.wrong(f"{name}: another row's answer", (a._replace(text=boxed(o)) for a, _, o in swapped))
    hedges = (a._replace(text=boxed(f"{t} \\text{{ or }} {o}")) for a, t, o in swapped)
    made.wrong(f"{name}: the right one or another", hedges)
    unfinished = (a._replace(text=f"<think>Perhaps {boxed(t)}") for a, t in readable)
    made.wrong(f"{name}: right in a thought that does not end", unfinished)


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


def real_answers(path: str) -> Iterator[tuple[Answer, bool]]:
    for row in read_lines(path):
        for text, right in zip(row["code"], row["score"], strict=True):
            yield Answer(text, row["gt"], row["question"]), right


def boxed(latex: str) -> str:
    return f"The answer is $\\boxed{{{latex}}}$."
