"""Count the cases of each recipe by kind, for docs/reward_accuracy.md.

    python scripts/dev/count_cases.py       # writes the table into the page

A case is one line of recipes/NAME/cases.jsonl or of docs/judge_cases.jsonl. Its kind is the text of
`why` before the colon.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reward_accuracy.md"
BEGIN = "<!-- Cases -->\n"
END = "<!-- /Cases -->"
NAMED_KINDS = 6


def row_of(name: str, file: Path) -> str:
    """Return the table's row for a file: how many cases it has, and its most frequent kinds."""
    kinds: Counter[str] = Counter()
    for line in file.read_text(encoding="utf-8").splitlines():
        kind = json.loads(line)["why"].partition(":")[0]
        kinds[kind] += 1
    named = kinds.most_common(NAMED_KINDS)
    words = [f"{kind} ({count})" for kind, count in named]
    return f"| {name} | {kinds.total()} | {len(kinds)} | {'; '.join(words)} |"


def table() -> str:
    """Return the table of all files."""
    lines = ["| recipe | cases | kinds | most frequent kinds |", "|---|---|---|---|"]
    for file in sorted((ROOT / "recipes").glob("*/cases.jsonl")):
        lines.append(row_of(file.parent.name, file))
    lines.append(row_of("judge", ROOT / "docs" / "judge_cases.jsonl"))
    return "\n".join(lines)


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
