"""The same held-out prompts before and after training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo_verl.report.groups import TEXT_CHARACTERS, prompt_digest
from gdpo_verl.rundir.dumps import Row, read_rows, short_prompt, shorten
from gdpo_verl.rundir.metrics import is_number
from gdpo_verl.rundir.run import Run

MOST = 4000


@dataclass(frozen=True)
class Sample:
    """A held-out prompt with each run's first and last completion, and their scores."""

    prompt: str
    expected: str
    changed: bool
    completions: tuple[dict[str, Any], ...]

    @property
    def title(self) -> str:
        return short_prompt(self.prompt)


@dataclass(frozen=True)
class Samples:
    """The chosen prompts and how many there were to choose from."""

    chosen: tuple[Sample, ...]
    prompts: int
    changed: int


def choose_samples(
    runs: Sequence[Run], components: Sequence[str], *, changed: int = 4, unchanged: int = 2
) -> Samples:
    """Pick prompts by a rule that knows nothing of how good the answers are.

    Prompts that every run answered at its first and last validation are put in the
    order of their SHA-256. Taken are the first `changed` for which a component's score
    differs between the two validations of some run, then the first `unchanged` of the others.
    """
    usable = [run for run in runs if len(run.validation) > 1]
    ends = [(run, pick(run.validation)) for run in usable for pick in (min, max)]
    answers = [_by_prompt(run, step) for run, step in ends]
    shared = set.intersection(*map(set, answers)) if answers else set()
    samples = []
    for prompt in sorted(shared, key=prompt_digest):
        rows = [each[prompt] for each in answers]
        scored = [name for name in components if any(is_number(row.get(name)) for row in rows)]
        scores = [_scores(row, scored) for row in rows]
        texts = [shorten(row.get("output"), MOST) for row in rows]
        completions = tuple(
            {"run": run.name, "step": step, "text": text, "scores": given}
            for (run, step), text, given in zip(ends, texts, scores, strict=True)
        )
        expected = shorten(rows[0].get("gts"), TEXT_CHARACTERS)
        differs = scores[::2] != scores[1::2]
        samples.append(Sample(shorten(prompt, MOST), expected, differs, completions))
    moved = [sample for sample in samples if sample.changed]
    still = [sample for sample in samples if not sample.changed]
    return Samples((*moved[:changed], *still[:unchanged]), len(samples), len(moved))


def _by_prompt(run: Run, step: int) -> dict[str, Row]:
    """The first completion of each prompt; verl orders those of one prompt by session."""
    rows: dict[str, Row] = {}
    for row in read_rows(run.validation[step]):
        rows.setdefault(str(row.get("input", "")), row)
    return rows


def _scores(row: Mapping[str, Any], components: Sequence[str]) -> dict[str, str]:
    return {
        component: f"{row[component]:.4g}" if is_number(row.get(component)) else "not scored"
        for component in components
    }
