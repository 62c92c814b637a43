"""Count how often the rewards accept right responses and reject wrong ones (reward accuracy).

    python scripts/studies/cards.py                    # the tables of the committed counts
    python scripts/studies/cards.py --rewards code     # count a reward again
    python scripts/studies/cards.py --rewards math_length --math FILE --college-math FILE

The counts go to docs/evidence/reward_cards.csv, from which the tables of docs/reward_accuracy.md
are made. If card_<reward>.py counts a reward again, the rows of every corpus that is not given are
lost. The cases of the recipes (card_cases.py) are counted every time.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from card_cases import cases_text
from page import ROOT, markdown_table, read_rows, replace_block, write_rows

PAGE = ROOT / "docs" / "reward_accuracy.md"
REWARDS = ("code", "gsm8k", "math_length", "tool_call")
REFUSED, PAID = "right answers rejected", "wrong answers rewarded"
FAULTS = "judged the other way"
FILES = {
    "gsm8k": "GSM8K's splits: JSON lines with question and answer",
    "gsm8k-answers": "its example_model_solutions.jsonl",
    "abel": "outputs/gsm8k/{7b,13b,70b}.jsonl of github.com/GAIR-NLP/abel",
    "math": "MATH's test split: JSON lines with problem and solution",
    "college-math": "college_math: JSON lines with question and answer",
    "math-answers": "real answers: JSON lines with question, gt, code (texts), score (booleans)",
    "toolrl": "ToolRL's rlla_sft.json",
    "bfcl-results": "2024-08-11/ of github.com/HuanzhiMao/BFCL-Result",
}
Row = dict[str, Any]


class Answer(NamedTuple):
    """A response, its ground truth, and the question, which is empty where no rule reads it."""

    text: str
    truth: str
    question: str = ""


class Card:
    """The counts of one reward: a row for each kind of answers and each rule that judges them.

    Attributes:
      rules: the name of each rule, and a function that says whether a response gets full reward.
    """

    def __init__(self, title: str, rules: dict[str, Callable[[Answer], bool]]) -> None:
        self.title, self.rules = title, rules
        self.rows: list[Row] = []

    def count(
        self, right: bool, name: str, answers: Iterable[Answer], rules: int | None = None
    ) -> None:
        """Count right responses that the first rules reject, or wrong ones that they reward."""
        judged = list(answers)
        if not judged:  # a corpus that is not given has no row, instead of 0 of 0
            return
        counted = REFUSED if right else PAID
        with ThreadPoolExecutor(4) as threads:  # for rules that use other processes
            for rule, pays in list(self.rules.items())[:rules]:
                faults = sum(paid != right for paid in threads.map(pays, judged))
                row = {"reward": self.title, "counted": counted, "answers": name}
                self.rows.append(row | {"of": len(judged), "rule": rule, FAULTS: faults})

    def count_real(self, name: str, judged: Iterable[tuple[Answer, bool]]) -> None:
        """Count models' responses, which their publishers have marked as right or wrong."""
        pairs = list(judged)
        self.count(True, f"{name}, called right there", (a for a, right in pairs if right))
        self.count(False, f"{name}, called wrong there", (a for a, right in pairs if not right))


def shifted(values: Sequence[Any]) -> list[Any]:
    """Return for each row the value of another row."""
    return [values[(i + 7) % len(values)] for i in range(len(values))]


def tables(rows: Sequence[Row]) -> str:
    """Describe the kinds of responses that the first rule, the default, judges wrongly."""
    parts = []
    for counted in (REFUSED, PAID):
        kinds: dict[str, list[Row]] = {}
        for row in rows:
            if row["counted"] == counted:
                kinds.setdefault(row["answers"], []).append(row)
        # Kinds without a fault of the default are in the data; the page only counts them.
        faults = [found for found in kinds.values() if int(found[0][FAULTS])]
        of = sum(int(found[0]["of"]) for found in kinds.values())
        text = f"**{counted.capitalize()}**: {len(faults)} of {len(kinds)} kinds"
        parts.append(f"{text} ({of:,} answers).")
        if faults:
            rules = list(dict.fromkeys(row["rule"] for found in faults for row in found))
            cells = []
            for found in faults:
                counts = {row["rule"]: f"{int(row[FAULTS]):,}" for row in found}
                own = (counts.get(rule, "–") for rule in rules)  # –: it was not used (`count`)
                cells.append([found[0]["answers"], f"{int(found[0]['of']):,}", *own])
            parts.append(markdown_table([counted, "of", *rules], cells))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rewards", nargs="*", choices=REWARDS, default=[])
    parser.add_argument(
        "--math-rows",
        type=int,
        default=100,
        help="rows of each corpus of mathematics (default: %(default)s)",
    )
    for name, about in FILES.items():
        parser.add_argument(
            f"--{name}", nargs="*", type=Path, default=[], metavar="FILE", help=about
        )
    args = parser.parse_args()
    data = ROOT / "docs/evidence/reward_cards.csv"
    rows: list[Row] = list(read_rows(data))
    for name in args.rewards:
        # Imported only now, because each module needs packages that the others do not need.
        card: Card = importlib.import_module(f"card_{name}").make_card(args)
        rows = [row for row in rows if row["reward"] != card.title] + card.rows
    write_rows(data, sorted(rows, key=lambda row: row["reward"]))
    for title in dict.fromkeys(row["reward"] for row in rows):
        own = [row for row in rows if row["reward"] == title]
        replace_block(PAGE, title, tables(own))
    replace_block(PAGE, "Cases", cases_text())


if __name__ == "__main__":
    main()
