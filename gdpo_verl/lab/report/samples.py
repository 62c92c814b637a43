"""Held-out prompts whose answers before and after training are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdpo_verl.lab.report.groups import TEXT_CHARACTERS, prompt_digest
from gdpo_verl.lab.rundir.dumps import (
    DUMP_BYTES,
    Row,
    numbered_rows,
    reward_of,
    scores_text,
    short_prompt,
    shorten,
)
from gdpo_verl.lab.rundir.run import Run

MOST = 4000
CHANGED = 4
UNCHANGED = 2


def choose_samples(runs: Sequence[Run], components: Sequence[str]) -> dict[str, Any]:
    """Pick prompts by a rule that knows nothing of how good the answers are.

    Prompts that every run answered at its first and last validation are put in the
    order of their SHA-256. Taken are the first `CHANGED` for which a component's score
    differs between the two validations of some run, then the first `UNCHANGED` of the others.

    Returns:
      the `chosen` prompts with each run's completions as the page's template reads them, and the
      numbers of `prompts` to choose from and of those whose score `changed`.
    """
    usable = [run for run in runs if len(run.validation) > 1]
    ends = [(run, pick(run.validation)) for run in usable for pick in (min, max)]
    answers = [_by_prompt(run, step) for run, step in ends]
    shared = set.intersection(*map(set, answers)) if answers else set()
    moved: list[dict[str, Any]] = []
    still: list[dict[str, Any]] = []
    for prompt in sorted(shared, key=prompt_digest):
        rows = [each[prompt] for each in answers]
        # Of many rewards a prompt may have two; the others would be "not scored" throughout.
        scored = [
            name for name in components if any(reward_of(row.get(name)) is not None for row in rows)
        ]
        scores = [scores_text({name: row.get(name) for name in scored}) for row in rows]
        sample = {
            "title": short_prompt(prompt),
            "prompt": shorten(prompt, MOST),
            "expected": shorten(rows[0].get("gts"), TEXT_CHARACTERS),
            # First and last validation take turns, run by run.
            "changed": scores[::2] != scores[1::2],
            "completions": [
                {
                    "run": run.name,
                    "step": step,
                    "text": shorten(row.get("output"), MOST),
                    "scores": given,
                }
                for (run, step), row, given in zip(ends, rows, scores, strict=True)
            ],
        }
        (moved if sample["changed"] else still).append(sample)
    return {
        "chosen": [*moved[:CHANGED], *still[:UNCHANGED]],
        "prompts": len(shared),
        "changed": len(moved),
    }


def _by_prompt(run: Run, step: int) -> dict[str, Row]:
    """The first completion of each prompt; verl orders those of one prompt by session."""
    rows: dict[str, Row] = {}
    for _, row in numbered_rows(run.validation[step], DUMP_BYTES):
        if row is not None:
            rows.setdefault(str(row.get("input", "")), row)
    return rows
