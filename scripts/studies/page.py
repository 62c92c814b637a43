"""Write the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` of a page, and read its data."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpo_verl.lab.files import write_text

ROOT = Path(__file__).parents[2]


def replace_block(page: Path, name: str, content: str) -> None:
    """Put the content between the marks of that name, and keep the rest of the page.

    Raises:
      ValueError: the page has no such marks.
    """
    begin = f"<!-- {name} -->\n"
    end = f"<!-- /{name} -->"
    before, opened, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (opened and closed):
        raise ValueError(f"{page}: expected the marks {begin.strip()} and {end}")
    write_text(page, f"{before}{begin}\n{content.strip()}\n\n{end}{after}")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table whose first column is text."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with the same keys, of which there is at least one."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")  # as git keeps it
        writer.writeheader()
        writer.writerows(rows)
