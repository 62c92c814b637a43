"""Put what scripts/results.sh measured into docs/results.md: a table and a picture for each task.

    python scripts/results_docs.py runs/results

Nothing is typed by hand: the tables are those of the reports, between the marks
``<!-- TASK -->`` and ``<!-- /TASK -->``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
TASKS = ("toolbox", "reasoning-gym", "bfcl")


def main(out: Path, docs: Path = DOCS) -> None:
    """Replace each task's block; a task without a report keeps the one it has."""
    page = docs / "results.md"
    text = page.read_text(encoding="utf-8")
    for task in TASKS:
        if (out / "report" / task / "summary.md").exists():
            text = replace_block(text, task, block(out, task))
            small_png(out / "report" / task / "curves.png", docs / f"results_{task}.png")
    page.write_text(text, encoding="utf-8")


def block(out: Path, task: str) -> str:
    """The picture, the policy before the trainings, and the paired table."""
    summary = (out / "report" / task / "summary.md").read_text(encoding="utf-8")
    table = paired_table(summary)
    runs = [name.strip() for name in summary.partition("\n")[0].strip("|").split("|")][1:]
    policy = json.loads((out / "models" / task / "policy.json").read_text(encoding="utf-8"))
    steps, batch = (policy["settings"][name] for name in ("steps", "batch_size"))
    asked = {"sampled": "held-out", "trained": "training"}
    shares = "; ".join(
        f"to {questions} questions {policy[how]['format']:.1%} right in form, "
        f"{policy[how]['exact']:.1%} exactly right"
        for how, questions in asked.items()
        if how in policy
    )
    return (
        f"![Learning curves on {task} under GDPO and GRPO](results_{task}.png)\n\n"
        f"Policy: {policy['parameters']:,} parameters, {steps} steps of {batch} flawed answers. "
        f"Before these trainings, of its sampled answers by the hardened rewards: {shares}. "
        f"Runs: {', '.join(runs)}.\n\n"
        f"{table}\n{clear_differences(table)}\n"
    )


def paired_table(summary: str) -> str:
    """The table of a report whose last column is a difference.

    Raises:
      ValueError: there is none, because the runs of two recipes are not of the same seeds.
    """
    for table in re.findall(r"(?:^\|.*\n)+", summary, re.MULTILINE):
        if " − " in table.partition("\n")[0]:
            return str(table)
    raise ValueError("the report pairs no runs: expected GDPO and GRPO over the same seeds")


def clear_differences(table: str) -> str:
    """Name the rows of a paired table whose difference's interval leaves out 0, in a sentence.

    >>> clear_differences("|  | a | a − b |\\n|---|---|---|\\n| x | 1.5 | −1.0 ± 0.5 |\\n")
    'Of 1 differences the interval leaves out 0 in 1: x.'
    """
    rows = [line.strip("| \n").split(" | ") for line in table.splitlines()[2:]]
    numbers = [re.match(r"([+−][\d.]+) ± ([\d.]+)", row[-1]) for row in rows]
    clear = [
        row[0].partition(", first")[0].partition(", before")[0]
        for row, found in zip(rows, numbers, strict=True)
        if found and abs(float(found[1].replace("−", "-"))) > float(found[2])
    ]
    which = f" in {len(clear)}: {', '.join(clear)}" if clear else " in none"
    return f"Of {len(rows)} differences the interval leaves out 0{which}."


def replace_block(text: str, task: str, content: str) -> str:
    """``text`` with ``content`` between the task's marks.

    Raises:
      ValueError: the marks are not there.
    """
    begin, end = f"<!-- {task} -->\n", f"<!-- /{task} -->"
    before, found, rest = text.partition(begin)
    _, closed, behind = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"docs/results.md: expected the marks {begin.strip()} and {end}")
    return f"{before}{begin}\n{content}\n{end}{behind}"


def small_png(source: Path, target: Path) -> None:
    """The picture in 64 colours: less than half of its size, to the eye the same."""
    Image.open(source).convert("RGB").quantize(64).save(target, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
