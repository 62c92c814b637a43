"""Held-out prompts whose answers before and after training are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gdpo_verl.lab.report.groups import TEXT_CHARACTERS, prompt_digest, reward_vector
from gdpo_verl.lab.rundir.dumps import (
    DUMP_BYTES,
    numbered_rows,
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
    ends: list[tuple[Run, int]] = []
    for run in runs:
        if len(run.validation) > 1:
            ends += [(run, min(run.validation)), (run, max(run.validation))]
    answers = [_by_prompt(run, step) for run, step in ends]
    shared = set.intersection(*map(set, answers)) if answers else set()
    changed = []
    unchanged = []
    for prompt in sorted(shared, key=prompt_digest):
        responses = [each[prompt] for each in answers]
        rewards = [reward_vector(each.row, components) for each in responses]
        # Of many rewards a prompt may have two; the others would be "not scored" throughout.
        columns = zip(components, *rewards, strict=True)
        scored = [name for name, *values in columns if set(values) != {None}]
        completions = []
        for (run, step), response in zip(ends, responses, strict=True):
            completions.append(
                {
                    "run": run.name,
                    "step": step,
                    "text": shorten(response.text, MOST),
                    "scores": scores_text({name: response.row.get(name) for name in scored}),
                }
            )
        texts = [each["scores"] for each in completions]
        sample = {
            "title": short_prompt(prompt),
            "prompt": shorten(prompt, MOST),
            "expected": shorten(responses[0].row.get("gts"), TEXT_CHARACTERS),
            # First and last validation take turns, run by run.
            "changed": texts[::2] != texts[1::2],
            "completions": completions,
        }
        if sample["changed"]:
            changed.append(sample)
        else:
            unchanged.append(sample)
    return {
        "chosen": [*changed[:CHANGED], *unchanged[:UNCHANGED]],
        "prompts": len(shared),
        "changed": len(changed),
    }


def _by_prompt(run: Run, step: int) -> dict[str, Response]:
    """The first response to each prompt; verl orders those to one prompt by session."""
    path = run.validation[step]
    found: dict[str, Response] = {}
    responses, _ = responses_of(numbered_rows(path, DUMP_BYTES), path)
    for response in responses:
        found.setdefault(response.prompt, response)
    return found
