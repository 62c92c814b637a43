"""Reward accuracy of GSM8K: worked solutions, spellings of numbers, and models' responses."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

from cards import Answer, Card, shifted
from page import read_lines

from gdpo_verl.rewards import gsm8k

# Ways in which people and models write the number 1234.
NUMBERS = {
    "with a comma": "{:,}",
    "with a sign": "{:+d}",
    "with .00": "{}.00",
    "with a point": "{}.",
    "with $": "${}",
    "with dollars of LaTeX": "${}$",
    "with %": "{}%",
    "in \\( and \\)": "\\({}\\)",
    "with a unit": "{} dollars",
    "in bold": "**{}**",
    "in a box": "\\boxed{{{}}}",
}


def make_card(args: argparse.Namespace) -> Card:
    from verl.utils.reward_score import gsm8k as verl_gsm8k

    def ours(answer: Answer, **settings: Any) -> bool:
        return gsm8k.compute_score("", answer.text, answer.truth, **settings)["correctness"] == 1

    def verls(answer: Answer) -> bool:
        # verl's rule looks for a number after ####, which our format does not have.
        _, found, behind = answer.text.rpartition("<answer>")
        number = f"\n{gsm8k.HASHES} {behind.partition('</answer>')[0].strip()}" if found else ""
        truth = gsm8k.parse_ground_truth(answer.truth)
        return bool(verl_gsm8k.compute_score(answer.text + number, truth) == 1)

    rules = {
        "strict": ours,
        "strict=False (published)": partial(ours, strict=False),
        "verl gsm8k": verls,
    }
    card = Card("GSM8K", rules)
    rows = read_lines(*args.gsm8k)
    answers = [formed(row["answer"], row["answer"]) for row in rows]
    numbers = [gsm8k.parse_ground_truth(answer.truth) for answer in answers]
    known = list(zip(answers, numbers, strict=True))

    def count(right: bool, name: str, texts: Iterable[tuple[str, Answer]]) -> None:
        card.count(right, name, (formed(text, answer.truth) for text, answer in texts))

    card.count(True, "worked solutions", answers)
    for name, form in NUMBERS.items():
        count(True, f"the number {name}", ((form.format(int(n)), a) for a, n in known))
    others = [(a, n, o) for (a, n), o in zip(known, shifted(numbers), strict=True) if n != o]
    count(False, "another problem's number", ((o, a) for a, _, o in others))
    count(False, "the right one and another", ((f"{n} {o}", a) for a, n, o in others))
    echoes = []
    for row, (answer, number) in zip(rows, known, strict=True):
        found = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", row["question"])
        # Left out: a response that repeats a number of the question, right only by chance.
        if found and gsm8k.parse_ground_truth(found[-1]) != number:
            echoes.append((found[-1], answer))
    count(False, "the question's last number", echoes)
    for name, form in (
        ("right in the thought alone", "<think><answer>{}</answer></think>"),
        ("right in a thought that does not end", "<think>Perhaps <answer>{}</answer>"),
    ):
        card.count(False, name, (a._replace(text=form.format(n)) for a, n in known))
    real = []
    for row in read_lines(*args.gsm8k_answers):
        truth = row["ground_truth"].rpartition("A: ")[2]
        for found in row.values():
            if isinstance(found, dict):
                # Without the calculator's annotations, <<2*3=6>>, which no model writes today.
                text = re.sub(r"<<.*?>>", "", found["solution"])
                real.append((formed(text, truth, "\nA: "), found["is_correct"]))
    card.count_real("real answers", real)
    for path in args.abel:
        judged = [
            (formed(row["response"], str(row["gold"])), row["result"]) for row in read_lines(path)
        ]
        card.count_real(f"real answers of Abel {path.stem} (Llama 2)", judged)
    return card


def formed(text: str, truth: str, mark: str = gsm8k.HASHES) -> Answer:
    """Write a worked answer with its number after a mark, or only a number, in the right format."""
    why, _, number = text.rpartition(mark)
    form = f"<think>{why.strip() or 'So.'}</think>\n<answer>{number.strip()}</answer>"
    return Answer(form, truth)
