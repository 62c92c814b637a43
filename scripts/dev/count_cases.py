"""Count the cases of each recipe by kind, for docs/reward_accuracy.md.

    python scripts/dev/count_cases.py       # writes the table into the page

A case is one line of recipes/NAME/cases.jsonl or of docs/judge_cases.jsonl. Its kind is the text of
`why` before the colon.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "studies"))
from page import ROOT, markdown_table, replace_block

NAMED_KINDS = 6


def row_of(name: str, file: Path) -> list[str]:
    """Return the table's row for a file: how many cases it has, and its most frequent kinds."""
    kinds: Counter[str] = Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        kind = json.loads(line)["why"].partition(":")[0]
        kinds[kind] += 1
    named = kinds.most_common(NAMED_KINDS)
    words = [f"{kind} ({count})" for kind, count in named]
    return [name, str(kinds.total()), str(len(kinds)), "; ".join(words)]


def main() -> None:
    files = {file.parent.name: file for file in sorted((ROOT / "recipes").glob("*/cases.jsonl"))}
    files["judge"] = ROOT / "docs/judge_cases.jsonl"
    rows = [row_of(name, file) for name, file in files.items()]
    table = markdown_table(["recipe", "cases", "kinds", "most frequent kinds"], rows)
    replace_block(ROOT / "docs/reward_accuracy.md", "Cases", table)


if __name__ == "__main__":
    main()
