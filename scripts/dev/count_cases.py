"""Count the cases of each recipe by kind, for docs/reward_accuracy.md.

    python scripts/dev/count_cases.py       # writes the table into the page

A case is one line of recipes/NAME/cases.jsonl or of docs/judge_cases.jsonl. Its kind is the text of
`why` before the colon.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "studies"))
from page import ROOT, markdown_table, replace_block


def row_of(name: str, file: Path) -> list[str]:
    """Return the table's row for a file: how many cases and how many kinds it has."""
    lines = file.read_text(encoding="utf-8").splitlines()
    kinds = {json.loads(line)["why"].partition(":")[0] for line in lines}
    return [name, str(len(lines)), str(len(kinds))]


def main() -> None:
    files = {file.parent.name: file for file in sorted((ROOT / "recipes").glob("*/cases.jsonl"))}
    files["judge"] = ROOT / "docs/judge_cases.jsonl"
    rows = [row_of(name, file) for name, file in files.items()]
    table = markdown_table(["recipe", "cases", "kinds"], rows)
    replace_block(ROOT / "docs/reward_accuracy.md", "Cases", table)


if __name__ == "__main__":
    main()
