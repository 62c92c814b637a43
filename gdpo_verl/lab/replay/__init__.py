"""`gdpo-verl replay`: compute the advantages of stored responses under other settings.

The settings may be other weights, conditions, rewards or another estimator. No policy is trained,
so a replay does not show what a policy would do afterwards. A replay does not need verl.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition
from gdpo_verl.config.parsing import check_component
from gdpo_verl.distinct import DISTINCT_TOLERANCE, levels
from gdpo_verl.lab.replay.advice import Verdict, advise
from gdpo_verl.lab.replay.figures import Figures, known_passing
from gdpo_verl.lab.replay.forecast import Forecast
from gdpo_verl.lab.replay.settings import (
    Overrides,
    asked_setting,
    parse_overrides,
)
from gdpo_verl.lab.rundir.responses import Batch, places_by_group
from gdpo_verl.lab.rundir.scoring import StoredAnswerScorer, token_counter
from gdpo_verl.lab.rundir.settings import ESTIMATORS, Setting, grpo_of_score, recorded_setting
from gdpo_verl.lab.rundir.source import Source

# The number of responses with the largest changes that are kept.
CHANGED_MOST = 10
# The sign of an advantage below this number comes from rounding.
_NO_SIGN = 1e-9


@dataclass
class Replay:
    """The figures of all responses under two settings.

    The recorded settings are those of the run, and the asked settings are those that the user wants
    to try.

    Attributes:
      where: the paths of the sources.
      recorded, asked: the figures under the recorded and under the asked settings.
      reproduces: the largest difference between a recorded advantage and the same advantage
        computed under the recorded settings; None if no advantages are recorded.
      rows: the number of responses.
      steps: the number of steps.
      order_changes: the number of groups whose order of responses changes.
      sign_changes: the number of responses whose advantage changes its sign.
      changed_most: the responses with the largest changes, the largest first.
      notes: sentences about the sources.
      verdict: advice about the asked settings.
      forecast: the push on each reward under the asked settings.
    """

    where: Sequence[str]
    recorded: Figures = field(default_factory=Figures)
    asked: Figures = field(default_factory=Figures)
    reproduces: float | None = None
    rows: int = 0
    steps: int = 0
    order_changes: int = 0
    sign_changes: int = 0
    changed_most: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)
    forecast: Forecast = field(default_factory=Forecast)

    @property
    def groups_per_step(self) -> float:
        """The mean number of groups in a step."""
        return self.asked.groups / self.steps


def replay(
    where: Sequence[Path],
    overrides: Sequence[str] = (),
    *,
    group: str = "",
    text: str = "",
    components: Sequence[str] = (),
    function: str | None = None,
    tokenizer: str | None = None,
    rows_file: Path | None = None,
    trust: bool = False,
    outcome: str = "",
) -> Replay:
    """Compute the advantages of stored responses under other settings.

    Args:
      where: paths of runs, of folders of dumps or of files of rows.
      overrides: settings of `algorithm`, as in a training command.
      group, text, components: the names of columns in a table without the usual names; empty if
        the user does not name them.
      function: FILE:NAME of a reward function that scores the responses again.
      tokenizer: a model whose tokenizer counts the tokens of the responses.
      rows_file: a file to which one line of JSON is written for each response.
      trust: True if a run's configuration may name code from outside this package.
      outcome: the component that says whether a response solves its task; "" chooses it from the
        settings and the rewards.

    Raises:
      ValueError: a source, a row or a setting is wrong; the message names file and line, or the
        key.
    """
    if not where:
        raise ValueError("WHERE: expected a run, a folder of dumps or a file of rows, found none")
    settings = parse_overrides(overrides)
    result = Replay([str(path) for path in where])
    result.asked.named_outcome = outcome
    with contextlib.ExitStack() as stack:
        scorer = StoredAnswerScorer(function) if function else None
        counter = token_counter(tokenizer) if tokenizer else None
        out = None
        if rows_file:
            out = stack.enter_context(rows_file.open("w", encoding="utf-8", errors="replace"))
        for path in where:
            source = Source(
                path,
                group=group,
                text=text,
                named=components,
                scorer=scorer,
                counter=counter,
                trust=trust,
            )
            _replay_source(source, settings, result, out)
    passing = known_passing(result.asked.setting.objective)
    result.asked.known_passing = result.recorded.known_passing = passing
    singletons = result.asked.groups - result.asked.several
    if singletons:
        result.notes.append(f"groups of one response, whose advantage is 0: {singletons}")
    result.verdict = advise(result.asked)
    return result


def _replay_source(
    source: Source, overrides: Overrides, result: Replay, out: TextIO | None
) -> None:
    """Add the responses of a source to the result."""
    if not source.components:
        raise ValueError(
            f"{source.first_place}: expected reward components among the columns, found "
            f"{source.columns.names}. Score the responses anew with --function FILE:NAME, or train "
            "with gdpo-verl installed."
        )
    asked = asked_setting(source, overrides)
    if result.asked.named_outcome:
        check_component("--outcome", result.asked.named_outcome, asked.objective.keys)
    source.notes += _about(source)
    recorded = recorded_setting(source, asked.objective)
    for figures, setting in ((result.recorded, recorded), (result.asked, asked)):
        if figures.settings and figures.keys != setting.objective.keys:
            raise ValueError(
                f"{source.path}: expected the components {list(figures.keys)} of "
                f"{result.where[0]}, found {list(setting.objective.keys)}"
            )
    steps = set()
    for batch in source.batches():
        steps.add(batch.step)
        _compare(result, source, batch, recorded, asked, out)
    if not steps:
        raise ValueError(f"{source.path}: no complete step to replay. {'; '.join(source.notes)}")
    result.steps += len(steps)
    result.notes += source.notes


def _about(source: Source) -> Iterator[str]:
    """Yield sentences about what the rows or the estimator of a source do not allow."""
    path = source.path
    if not source.counts_tokens:
        yield f"{path}: no token counts, so whitening is over responses; --tokenizer counts them"
    if source.columns.is_ours and source.algorithm is None:
        yield f"{path}: found no configuration of the run; GDPO's defaults count as recorded"
    trained_with = (source.algorithm or {}).get("adv_estimator", ESTIMATORS[0])
    if trained_with not in ESTIMATORS:
        yield f"{path}: trained with {trained_with}; GRPO's advantages count as recorded"


def _compare(
    result: Replay,
    source: Source,
    batch: Batch,
    recorded: Setting,
    asked: Setting,
    out: TextIO | None,
) -> None:
    """Add a batch to the figures, and compare the advantages of its responses."""
    decomposition = asked.decompose(batch)
    after = asked.advantage(decomposition, batch)
    result.asked.add(asked, decomposition, after)
    result.forecast.add(asked.objective.keys, decomposition)
    decomposition, computed = _recorded(result, source, batch, recorded)
    stored = batch.numbers(recorded.column if source.columns.is_ours else "advantage")
    is_stored = ~stored.isnan()
    if bool(is_stored.any()):
        largest = float((stored - computed)[is_stored].abs().max())
        result.reproduces = max(result.reproduces or 0.0, largest)
    before = torch.where(is_stored, stored, computed)
    result.recorded.add(recorded, decomposition, before)
    result.rows += len(before)
    smaller = torch.minimum(before.abs(), after.abs())
    changes_sign = (before * after < 0) & (smaller > _NO_SIGN)
    result.sign_changes += int(changes_sign.sum())
    for rows in places_by_group(batch.groups):
        result.order_changes += levels(before[rows].tolist()) != levels(after[rows].tolist())
    change, order = (after - before).abs().sort(descending=True, stable=True)
    largest_changes = order[change > DISTINCT_TOLERANCE][:CHANGED_MOST].tolist()
    changed = list(result.changed_most)
    for row in largest_changes:
        response = batch.responses[row]
        texts = {"prompt": response.prompt, "output": str(response.text or "")}
        changed.append(_entry(source, batch, row, before, after) | texts)
    changed.sort(key=lambda entry: abs(entry["asked"] - entry["recorded"]), reverse=True)
    result.changed_most = changed[:CHANGED_MOST]
    if out:
        for row, has_recorded in enumerate(is_stored.tolist()):
            line = _entry(source, batch, row, before, after)
            if not has_recorded:
                line["recorded"] = None
            out.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")


def _entry(source: Source, batch: Batch, row: int, before: Tensor, after: Tensor) -> dict[str, Any]:
    """Return the place, components and advantages of a response, as values of JSON."""
    response = batch.responses[row]
    rewards = batch.rewards[row]
    names = [component.name for component in source.components if component.name in rewards]
    return {
        "file": str(response.file),
        "line": response.line,
        "group": response.group,
        "components": {name: rewards[name] for name in names},
        "step": batch.step,
        "recorded": float(before[row]),
        "asked": float(after[row]),
    }


def _recorded(
    result: Replay, source: Source, batch: Batch, setting: Setting
) -> tuple[Decomposition, Tensor]:
    """Return the decomposition under the recorded settings, and the advantage: shape (B,)."""
    decomposition = setting.decompose(batch)
    if not source.columns.score or setting.estimator == "gdpo":
        return decomposition, setting.advantage(decomposition, batch)
    score = batch.numbers(source.columns.score)
    if bool(score.isnan().any()):
        row = int(score.isnan().nonzero()[0])
        raise ValueError(
            f"{batch.places[row]}: expected a number for {source.columns.score!r}, found none. "
            "Without it the group's advantages are unknown"
        )
    advantage, weighted = grpo_of_score(setting, score, decomposition)
    if weighted is None and result.recorded.known:
        result.recorded.known = False
        source.notes.append(
            f"{source.path}: the score is not a weighted sum of the components, so that the "
            "recorded shares are unknown"
        )
    return weighted or decomposition, advantage
