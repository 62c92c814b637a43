"""Write the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

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
