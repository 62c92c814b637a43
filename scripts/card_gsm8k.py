"""The card of the GSM8K reward, its correctness alone."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from cards import Answer, Card, read_lines, shifted
from verl.utils.reward_score import gsm8k as verl_gsm8k

from gdpo_verl.rewards import gsm8k
from gdpo_verl.rewards.gsm8k import HASHES, parse_ground_truth

# Ways in which people and models write the number 1234.
SPELLINGS = {
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("GSM8K")
    group.add_argument("--gsm8k", nargs="*", help="its splits: JSON lines with question and answer")
    group.add_argument("--gsm8k-answers", help="its example_model_solutions.jsonl")
    group.add_argument(
        "--abel", type=Path, help="outputs/gsm8k/ of github.com/GAIR-NLP/abel: 7b, 13b, 70b.jsonl"
    )


def card(args: argparse.Namespace) -> Card:
    rules = {
        "strict": lambda a: gsm8k.compute_score("", a.text, a.truth)["correctness"] == 1,
        "strict=False (published)": lambda a: (
            gsm8k.compute_score("", a.text, a.truth, strict=False)["correctness"] == 1
        ),
        "verl gsm8k": verls,
    }
    made = Card("GSM8K", rules)
    rows = [row for path in args.gsm8k or () for row in read_lines(path)]
    if rows:
        count_solutions(made, rows)
    made.count_real("real answers", real_answers(args.gsm8k_answers))
    if args.abel:
        count_abel(made, args.abel)
    return made


def verls(answer: Answer) -> bool:
    _, _, behind = answer.text.rpartition("<answer>")
    text = (
        f"{answer.text}\n{HASHES} {behind.partition('</answer>')[0].strip()}"
        if behind
        else answer.text
    )
    return bool(verl_gsm8k.compute_score(text, parse_ground_truth(answer.truth)) == 1)


def count_solutions(made: Card, rows: list[dict[str, str]]) -> None:
    solved = [(*row["answer"].rsplit(HASHES, 1), row) for row in rows]
    answers = [Answer(form(why, number), row["answer"]) for why, number, row in solved]
    made.count_right("worked solutions", answers)
    numbers = [parse_ground_truth(answer.truth) for answer in answers]
    for name, spelling in SPELLINGS.items():
        made.count_right(f"the number {name}", (
            a._replace(text=form("So.", spelling.format(int(n))))
            for a, n in zip(answers, numbers, strict=True)
        ))  # fmt: skip
    triples = list(zip(answers, numbers, shifted(numbers), strict=True))
    wrong = [(answer, number, other) for answer, number, other in triples if number != other]
    made.count_wrong(
        "another problem's number", (a._replace(text=form("So.", o)) for a, _, o in wrong)
    )
    made.count_wrong(
        "the right one and another", (a._replace(text=form("So.", f"{n} {o}")) for a, n, o in wrong)
    )
    made.count_wrong("the question's last number", echoes(rows))
    made.count_wrong(
        "right in the thought alone",
        (a._replace(text=f"<think><answer>{n}</answer></think>") for a, n, _ in triples),
    )
    made.count_wrong(
        "right in a thought that does not end",
        (a._replace(text=f"<think>Perhaps <answer>{n}</answer>") for a, n, _ in triples),
    )


def echoes(rows: list[dict[str, str]]) -> Iterator[Answer]:
    for row in rows:
        found = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", row["question"])
        if found and parse_ground_truth(found[-1]) != parse_ground_truth(row["answer"]):
            yield Answer(form("So.", found[-1]), row["answer"])


def real_answers(path: str | None) -> Iterator[tuple[Answer, bool]]:
    for row in read_lines(path):
        for found in row.values():
            if not isinstance(found, dict):
                continue
            why, _, number = re.sub(r"<<.*?>>", "", found["solution"]).rpartition("\nA: ")
            truth = row["ground_truth"].rpartition("A: ")[2]
            yield Answer(form(why or "So.", number), truth), found["is_correct"]


def count_abel(made: Card, folder: Path) -> None:
    """Real answers of models made of Llama 2, in three sizes."""
    for size in ("7b", "13b", "70b"):
        judged = []
        for row in read_lines(folder / f"{size}.jsonl"):
            why, _, number = row["response"].rpartition(HASHES)
            judged.append((Answer(form(why or "So.", number), str(row["gold"])), row["result"]))
        made.count_real(f"real answers of Abel {size} (Llama 2)", judged)


def form(why: str, number: str) -> str:
    return f"<think>{why.strip()}</think>\n<answer>{number.strip()}</answer>"
