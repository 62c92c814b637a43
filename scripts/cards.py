"""Count what the rewards pay and refuse of answers known to be right or wrong.

    python scripts/cards.py [--math FILE] [--gsm8k FILE ...] [--toolrl FILE] ...
    python scripts/cards.py --rewards          # the tables of the committed counts alone

Each reward's answers stand in card_<reward>.py, with the corpora it reads. A corpus that is not
given is named and left out. The counts go to docs/evidence/reward_cards.csv, of which the tables
of docs/reward_cards.md are made; a reward that is not counted anew keeps its rows.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from page import ROOT, markdown_table, replace_block

REFUSED, PAID = "right answers refused", "wrong answers paid"
FIELDS = ("reward", "counted", "answers", "of", "rule", "judged the other way")
Row = dict[str, Any]


class Answer(NamedTuple):
    """An answer, what it is judged by, and the question, empty where no rule looks at it."""

    text: str
    truth: str
    question: str = ""


@dataclass
class Card:
    """The counts of one reward.

    Attributes:
      title: the reward.
      rules: each rule's name, and whether it pays an answer in full.
      rows: what was counted, a row a rule.
    """

    title: str
    rules: dict[str, Callable[[Answer], bool]]
    rows: list[Row] = field(default_factory=list)

    def count_right(self, name: str, answers: Iterable[Answer]) -> None:
        """Count the answers that are right, and that a rule does not pay."""
        self._count(REFUSED, name, list(answers), expected=True)

    def count_wrong(self, name: str, answers: Iterable[Answer]) -> None:
        """Count the answers that are wrong, and that a rule pays."""
        self._count(PAID, name, list(answers), expected=False)

    def count_real(self, name: str, judged: Iterable[tuple[Answer, bool]]) -> None:
        """Count models' answers, each with whether its publishers call it right."""
        pairs = list(judged)
        self.count_right(f"{name}, called right there", (a for a, right in pairs if right))
        self.count_wrong(f"{name}, called wrong there", (a for a, right in pairs if not right))

    def _count(self, counted: str, name: str, answers: list[Answer], *, expected: bool) -> None:
        if not answers:
            return
        with ThreadPoolExecutor(4) as threads:  # of rules that ask other processes
            for rule, pays in self.rules.items():
                faults = sum(paid != expected for paid in threads.map(pays, answers))
                values = (self.title, counted, name, len(answers), rule, faults)
                self.rows.append(dict(zip(FIELDS, values, strict=True)))


def read_lines(path: str | Path | None) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines; none of a corpus that is not given."""
    if path is None:
        return []
    with Path(path).expanduser().open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def shifted(values: Sequence[Any], shift: int = 7) -> list[Any]:
    """Another row's value for each row."""
    return [values[(i + shift) % len(values)] for i in range(len(values))]


def tables(rows: Sequence[Row]) -> str:
    """The kinds of answers that a reward's first rule, the default, judges the other way.

    Kinds that all rules judge alike are counted and not listed.
    """
    parts = []
    for counted in (REFUSED, PAID):
        own = [row for row in rows if row["counted"] == counted]
        by_answers: dict[str, list[Row]] = {}
        for row in own:
            by_answers.setdefault(row["answers"], []).append(row)
        faults = [found for found in by_answers.values() if int(found[0][FIELDS[-1]])]
        of = sum(int(found[0]["of"]) for found in by_answers.values())
        text = f"**{counted.capitalize()}**: {len(faults)} of {len(by_answers)} kinds"
        parts.append(f"{text} ({of:,} answers).")
        differing = [found for found in faults if len({row[FIELDS[-1]] for row in found}) > 1]
        if differing:
            rules = list(dict.fromkeys(row["rule"] for found in differing for row in found))
            lines = []
            for found in differing:
                counts = {row["rule"]: f"{int(row[FIELDS[-1]]):,}" for row in found}
                cells = [counts.get(rule, "–") for rule in rules]
                lines.append([found[0]["answers"], f"{int(found[0]['of']):,}", *cells])
            parts.append(markdown_table([counted, "of", *rules], lines))
    return "\n\n".join(parts)


def main() -> None:
    names = ("code", "gsm8k", "math_length", "tool_call")
    modules = {name: importlib.import_module(f"card_{name}") for name in names}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rewards", nargs="*", choices=names, default=names)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    for module in modules.values():
        module.add_arguments(parser)
    args = parser.parse_args()
    data = args.docs / "evidence/reward_cards.csv"
    with data.open(encoding="utf-8", newline="") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for name, value in vars(args).items():
        if args.rewards and (value is None or value == []):
            print(f"--{name.replace('_', '-')} is not given: its rows are left out", flush=True)
    for name in args.rewards:
        card: Card = modules[name].card(args)
        rows = [row for row in rows if row["reward"] != card.title] + card.rows
    with data.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: row["reward"]))
    for title in dict.fromkeys(row["reward"] for row in rows):
        own = [row for row in rows if row["reward"] == title]
        replace_block(args.docs / "reward_cards.md", title, tables(own))


if __name__ == "__main__":
    main()
