"""Held-out prompts whose answers before and after training are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdpo_verl.lab.report.groups import TEXT_CHARACTERS, prompt_digest
from gdpo_verl.lab.rundir.dumps import (
    DUMP_BYTES,
    complete_rows,
    reward_of,
    scores_text,
    short_prompt,
    shorten,
)
from gdpo_verl.lab.rundir.responses import Response, responses_of
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
        found = [each[prompt] for each in answers]
        # Of many rewards a prompt may have two; the others would be "not scored" throughout.
        scored = [
            name
            for name in components
            if any(reward_of(each.row.get(name)) is not None for each in found)
        ]
        scores = [scores_text({name: each.row.get(name) for name in scored}) for each in found]
        sample = {
            "title": short_prompt(prompt),
            "prompt": shorten(prompt, MOST),
            "expected": shorten(found[0].row.get("gts"), TEXT_CHARACTERS),
            # First and last validation take turns, run by run.
            "changed": scores[::2] != scores[1::2],
            "completions": [
                {
                    "run": run.name,
                    "step": step,
                    "text": shorten(response.text, MOST),
                    "scores": given,
                }
                for (run, step), response, given in zip(ends, found, scores, strict=True)
            ],
        }
        (moved if sample["changed"] else still).append(sample)
    return {
        "chosen": [*moved[:CHANGED], *still[:UNCHANGED]],
        "prompts": len(shared),
        "changed": len(moved),
    }


def _is_scored(name: str, responses: Sequence[Response]) -> bool:
    return any(reward_of(response.row.get(name)) is not None for response in responses)


def _by_prompt(run: Run, step: int) -> dict[str, Response]:
    """The first response to each prompt; verl orders those to one prompt by session."""
    path = run.validation[step]
    found: dict[str, Response] = {}
    for response in responses_of(complete_rows(path, [], DUMP_BYTES), path):
        found.setdefault(response.prompt, response)
    return found
