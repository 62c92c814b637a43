"""Stored answers under other weights, conditions, rewards or estimators: `gdpo-verl replay`.

It is the first step from these answers: which advantages the settings would have given. No policy
is trained; what it would do afterwards nobody knows. Nothing of verl is needed.
"""

from __future__ import annotations

import contextlib
import heapq
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import torch

from gdpo_verl.config.components import Component
from gdpo_verl.distinct import DISTINCT_TOLERANCE, levels
from gdpo_verl.lab.replay.advice import Verdict, advise
from gdpo_verl.lab.replay.figures import Figures, passing_values
from gdpo_verl.lab.replay.scoring import StoredAnswerScorer, token_counter
from gdpo_verl.lab.replay.settings import (
    ESTIMATORS,
    Setting,
    asked_algorithm,
    closest_of_trl,
    grpo_of_score,
    parse_overrides,
    recorded_algorithm,
    setting_of,
)
from gdpo_verl.lab.replay.sources import Batch, Source

CHANGED_MOST = 10
# Below it an advantage has no sign: rounding.
_NO_SIGN = 1e-9
_TEXTS = ("prompt", "output")


@dataclass(frozen=True)
class Request:
    """A question to stored answers.

    Attributes:
      where: runs, folders of dumps, files of rows.
      overrides: settings of `algorithm`, as a training takes them.
      group, components: columns of rows of anybody's.
      function: FILE:NAME of a reward that scores the answers anew.
      tokenizer: counts tokens where the rows hold no counts.
    """

    where: Sequence[Path]
    overrides: Sequence[str] = ()
    group: str | None = None
    components: Sequence[str] | None = None
    function: str | None = None
    tokenizer: str | None = None


@dataclass
class Replay:
    """The figures of all answers under the recorded and the asked settings.

    Attributes:
      recorded, asked: the figures of each.
      reproduces: the largest difference between the recorded advantages and those computed under
        the recorded settings; None where none are recorded.
      changed_most: the answers, the largest change first.
      notes: what is to be known of the sources, as sentences.
    """

    recorded: Figures
    asked: Figures
    where: list[str] = field(default_factory=list)
    reproduces: float | None = None
    rows: int = 0
    steps: int = 0
    order_changes: int = 0
    sign_changes: int = 0
    changed_most: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=Verdict)


def replay(request: Request, rows_file: Path | None = None) -> Replay:
    """Compute what the settings make of stored answers.

    Args:
      rows_file: gets a line of JSON for each answer.

    Raises:
      ValueError: a source, a row or a setting is wrong; names file and line, or the key.
    """
    result: Replay | None = None
    with contextlib.ExitStack() as stack:
        scorer = None
        if request.function:
            scorer = StoredAnswerScorer(request.function)
            stack.callback(scorer.close)
        out = None
        if rows_file:
            out = stack.enter_context(rows_file.open("w", encoding="utf-8", errors="replace"))
        for path in request.where:
            result = _replay_source(request, path, scorer, result, out)
    assert result is not None
    singletons = result.asked.groups - result.asked.several
    if singletons:
        result.notes.append(f"{singletons} groups have one answer, which gets 0")
    result.verdict = advise(result.asked)
    return result


def _replay_source(
    request: Request,
    path: Path,
    scorer: StoredAnswerScorer | None,
    result: Replay | None,
    out: TextIO | None,
) -> Replay:
    """Add the answers of a source to those of the sources before it."""
    overrides = parse_overrides(request.overrides)
    declared = scorer.components if scorer else ()
    named = request.components or [each.name for each in declared]
    source = Source(
        path,
        group=request.group or "",
        named=named or overrides.get("gdpo_reward_keys") or (),
        score=scorer,
        count=token_counter(request.tokenizer) if request.tokenizer else None,
    )
    source.check_columns("--group", [request.group] if request.group else [])
    source.check_columns("--components", request.components or ())
    if not source.components:
        raise ValueError(
            f"{source.first_place}: a dump without components: there is nothing to decouple in "
            f"{list(source.columns)}. Score the answers anew with --function FILE:NAME, or train "
            "with gdpo-verl installed."
        )
    asked = setting_of(asked_algorithm(source, overrides), source, declared)
    source.notes += _about(source, bool(request.components or scorer))
    steps = set()
    for batch, recorded in recorded_batches(source, declared, asked):
        if result is None:
            raw = asked.decompose(batch).raw
            passing = passing_values(asked.objective, raw)
            result = Replay(Figures(recorded, passing), Figures(asked, passing))
        for figures, setting in ((result.recorded, recorded), (result.asked, asked)):
            if figures.keys != setting.objective.keys:
                raise ValueError(
                    f"{path}: expected the components {list(figures.keys)} of {result.where[0]}, "
                    f"found {list(setting.objective.keys)}"
                )
            figures.setting = setting
        steps.add(batch.step)
        _add(result, source, batch, out)
    if result is None:
        raise ValueError(f"{path}: no whole step to replay. {'; '.join(source.notes)}")
    result.where.append(str(path))
    result.steps += len(steps)
    result.notes += source.notes
    return result


def recorded_batches(
    source: Source, declared: Sequence[Component], asked: Setting
) -> Iterator[tuple[Batch, Setting]]:
    """Each batch of a source with the settings that it was made with."""
    recorded = setting_of(recorded_algorithm(source), source, declared)
    column = recorded.column if source.is_ours else "advantage"
    source.recorded = column if column in source.columns else ""
    for number, batch in enumerate(source.batches()):
        if source.is_trls and not number:
            objective = asked.objective
            weights = dict(zip(objective.keys, objective.weights, strict=True))
            recorded = closest_of_trl(source, batch, weights)
        yield batch, recorded


def _about(source: Source, named: bool) -> Iterator[str]:
    path = source.path
    if not source.counts_tokens:
        yield f"{path}: no token counts, so whitening is over sequences; --tokenizer counts them"
    trained_with = (source.algorithm or {}).get("adv_estimator", ESTIMATORS[0])
    if trained_with not in ESTIMATORS:
        yield f"{path}: trained with {trained_with}; recorded are then GRPO's advantages"
    if source.is_ours and source.algorithm is None:
        yield f"{path}: no config.yaml; the recorded settings are taken to be GDPO's defaults"
    if not named and not source.is_ours:
        yield (
            f"{path}: every column of numbers is taken for a component "
            f"({', '.join(source.components)}); --components names them"
        )


def _add(result: Replay, source: Source, batch: Batch, out: TextIO | None) -> None:
    """Add a batch to the figures, and compare the advantages of its answers."""
    decomposition = result.recorded.setting.decompose(batch)
    computed = result.recorded.setting.advantage(decomposition, batch)
    if source.score_column:
        computed, weighted = grpo_of_score(result.recorded.setting, batch, decomposition)
        if weighted is not None:
            decomposition = weighted
        elif result.recorded.known:
            result.recorded.known = False
            source.notes.append(
                f"{source.path}: the score is no weighted sum of the components: the recorded "
                "shares are not known"
            )
    stored = torch.tensor([each.recorded for each in batch.answers], dtype=torch.float64)
    known = ~stored.isnan()
    if bool(known.any()):
        largest = float((stored - computed)[known].abs().max())
        result.reproduces = max(result.reproduces or 0.0, largest)
    before = torch.where(known, stored, computed)
    result.recorded.add(decomposition, before)
    decomposition = result.asked.setting.decompose(batch)
    after = result.asked.setting.advantage(decomposition, batch)
    result.asked.add(decomposition, after)
    result.rows += len(before)
    moved = (before * after < 0) & (torch.minimum(before.abs(), after.abs()) > _NO_SIGN)
    result.sign_changes += int(moved.sum())
    members: dict[str, list[int]] = defaultdict(list)
    entries = []
    for row, answer in enumerate(batch.answers):
        members[answer.group].append(row)
        values = {"step": batch.step, "recorded": float(before[row]), "asked": float(after[row])}
        entries.append(answer.entry | values)
    for rows in members.values():
        result.order_changes += levels(before[rows].tolist()) != levels(after[rows].tolist())
    changed = [entry for entry in entries if _change_of(entry) > DISTINCT_TOLERANCE]
    result.changed_most += heapq.nlargest(CHANGED_MOST, changed, key=_change_of)
    result.changed_most.sort(key=_change_of, reverse=True)
    del result.changed_most[CHANGED_MOST:]
    if out:
        for entry, is_known in zip(entries, known.tolist(), strict=True):
            shown = {key: value for key, value in entry.items() if key not in _TEXTS}
            shown |= {} if is_known else {"recorded": None}
            print(json.dumps(shown, ensure_ascii=False, default=str), file=out)


def _change_of(entry: dict[str, Any]) -> float:
    change: float = abs(entry["asked"] - entry["recorded"])
    return change
