"""Stored answers under other weights, conditions, rewards or estimators: `gdpo-verl replay`.

It is the first step from these answers: which advantages the settings would have given. No policy
is trained; what it would do afterwards nobody knows. Nothing of verl is needed.
"""

from __future__ import annotations

import contextlib
import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor

from gdpo_verl.advantage import group_normalize
from gdpo_verl.config.components import TOKENS, Component
from gdpo_verl.distinct import DISTINCT_TOLERANCE, levels
from gdpo_verl.lab.replay.advice import Verdict, advise
from gdpo_verl.lab.replay.figures import Figures, Outcome, Setting, least_passing, outcome_of
from gdpo_verl.lab.replay.rows import Reader, Step
from gdpo_verl.lab.replay.scoring import StoredAnswerScorer, token_counter
from gdpo_verl.lab.replay.settings import (
    ESTIMATORS,
    advantage_column,
    closest_of_trl,
    decomposed,
    fitted_weights,
    parse_overrides,
    recorded_algorithm,
    setting_of,
    with_sequences,
)
from gdpo_verl.lab.replay.sources import find_source, read_layout, returned_numbers

CHANGED_MOST = 10
# Below it an advantage has no sign: rounding.
_NO_SIGN = 1e-9


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
      recorded, asked: the settings.
      outcome: of the asked settings.
      reproduces: the largest difference between the recorded advantages and those computed under
        the recorded settings; None where none are recorded.
      shares_known: the recorded scores are the components' weighted sum.
      changed_most: the answers, the largest change first.
    """

    where: list[str]
    recorded: Figures
    asked: Figures
    outcome: Outcome | None = None
    reproduces: float | None = None
    shares_known: bool = True
    rows: int = 0
    steps: int = 0
    singletons: int = 0
    dead: list[int] = field(default_factory=lambda: [0, 0])
    order_changes: int = 0
    sign_changes: int = 0
    changed_most: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdict: Verdict = field(default_factory=lambda: Verdict(0))


def replay(request: Request, rows_file: Path | None = None) -> Replay:
    """Compute what the settings make of stored answers.

    Args:
      rows_file: gets a line of JSON for each answer.

    Raises:
      ValueError: a source, a row or a setting is wrong; names file and line, or the key.
    """
    overrides = parse_overrides(request.overrides)
    with contextlib.ExitStack() as stack:
        scorer = None
        if request.function:
            scorer = StoredAnswerScorer(request.function)
            stack.callback(scorer.close)
        out = None
        if rows_file:
            out = stack.enter_context(rows_file.open("w", encoding="utf-8", errors="replace"))
        result: Replay | None = None
        for path in request.where:
            result = SourceReplay(request, overrides, path, scorer).replay(result, out)
    assert result is not None
    if not result.rows:
        raise ValueError(f"{result.where[0]}: no whole step to replay. {'; '.join(result.notes)}")
    if result.singletons:
        result.notes.append(f"{result.singletons} groups have one answer, which gets 0")
    result.verdict = advise(result.asked, result.outcome)
    _add_texts(result)
    return result


class SourceReplay:
    """One source with its settings."""

    def __init__(
        self,
        request: Request,
        overrides: dict[str, Any],
        path: Path,
        scorer: StoredAnswerScorer | None,
    ) -> None:
        self.source = find_source(path)
        self.scorer = scorer
        declared = scorer.components if scorer else ()
        keys = [each.name for each in declared] or overrides.get("gdpo_reward_keys") or ()
        if scorer and not keys:
            keys = returned_numbers(self.source, scorer)
        self.layout = read_layout(
            self.source, request.group, request.components, keys, scored=scorer is not None
        )
        own = recorded_algorithm(self.source, self.layout)
        # A dump of somebody's is asked what GDPO would have said.
        base = own if self.source.algorithm else {"adv_estimator": "gdpo"}
        self.notes = [*self.source.notes, *self._notes(request)]
        self.asked = self._setting({**base, **_merged(base, overrides)}, declared, request)
        self.recorded = self._setting(own, declared, request)
        column = advantage_column(self.recorded, self.layout)
        count = token_counter(request.tokenizer) if request.tokenizer else None
        self.reader = Reader(self.source, self.layout, column, scorer, count)
        self.declared = declared
        self.shares_known = True
        self._looked_at = False

    def _setting(
        self, algorithm: dict[str, Any], declared: Sequence[Component], request: Request
    ) -> Setting:
        setting = setting_of(algorithm, self.layout, declared)
        counted = TOKENS in self.layout.columns or request.tokenizer
        return setting if counted else with_sequences(setting)

    def _notes(self, request: Request) -> Iterator[str]:
        path, layout = self.source.path, self.layout
        if TOKENS not in layout.columns and not request.tokenizer:
            yield (
                f"{path}: no token counts, so whitening is over sequences; --tokenizer counts them"
            )
        trained_with = (self.source.algorithm or {}).get("adv_estimator", ESTIMATORS[0])
        if trained_with not in ESTIMATORS:
            yield f"{path}: trained with {trained_with}; recorded are then GRPO's advantages"
        if layout.kind == "run" and self.source.algorithm is None:
            yield f"{path}: no config.yaml; the recorded settings are taken to be GDPO's defaults"
        if not request.components and not self.scorer and not self.source.named:
            yield (
                f"{path}: every column of numbers is taken for a component "
                f"({', '.join(layout.components)}); --components names them"
            )

    def replay(self, result: Replay | None, out: TextIO | None) -> Replay:
        """Add the answers of this source to the result."""
        for step in self.reader.steps(self.notes):
            self.look_at_first(step)
            if result is None:
                raw = step.components(self.asked.objective)
                result = Replay([], Figures(self.recorded), Figures(self.asked))
                result.outcome = outcome_of(self.asked.objective, raw)
                result.shares_known = self.shares_known
            elif result.asked.keys != self.asked.objective.keys:
                raise ValueError(
                    f"{self.source.path}: expected the components {list(result.asked.keys)} of "
                    f"{result.where[0]}, found {list(self.asked.objective.keys)}"
                )
            self._add(result, step, out)
        if result is None:
            result = Replay([], Figures(self.recorded), Figures(self.asked))
        result.where.append(str(self.source.path))
        result.notes += self.notes
        return result

    def look_at_first(self, step: Step) -> None:
        """Find out under which settings a dump was made that does not say so: of the first step."""
        if self._looked_at:
            return
        self._looked_at = True
        if self.layout.kind == "trl" and self.reader.recorded:
            own = self.asked.objective.weights
            asked = dict(zip(self.asked.objective.keys, own, strict=True))
            closest = closest_of_trl(step, self.layout, self.declared, asked)
            self.recorded = with_sequences(setting_of(closest, self.layout, self.declared))
        if not self.layout.score or self.layout.kind == "run":
            return
        weights = fitted_weights(step, self.recorded)
        self.shares_known = weights is not None
        if weights is None:
            self.notes.append(
                f"{self.source.path}: the score is no weighted sum of the components: the recorded "
                "shares are not known"
            )
        elif any(weights):
            objective = replace(self.recorded.objective, weights=weights)
            self.recorded = replace(self.recorded, objective=objective)

    def _add(self, result: Replay, step: Step, out: TextIO | None) -> None:
        result.recorded.setting = self.recorded
        computed = torch.zeros(len(step.groups), dtype=torch.float64)
        asked = computed.clone()
        for rows in step.whitened_together():
            before = decomposed(self.recorded, step, rows)
            after = decomposed(self.asked, step, rows)
            computed[rows] = self.recorded.advantage(before)
            if not self.shares_known:
                score = torch.tensor([step.score[row] for row in rows], dtype=torch.float64)
                groups = [step.groups[row] for row in rows]
                computed[rows] = group_normalize(score[:, None], groups)[:, 0].nan_to_num(0.0)
            asked[rows] = self.asked.advantage(after)
            for which, (figures, decomposition, advantage) in enumerate(
                ((result.recorded, before, computed), (result.asked, after, asked))
            ):
                objective = figures.setting.objective
                least = least_passing(objective, result.outcome)
                fails = decomposition.raw.nan_to_num(0.0) < torch.tensor(least, dtype=torch.float64)
                figures.add(decomposition, advantage[rows], fails)
                still = ~decomposition.spread.varies.any(dim=1) & decomposition.scored
                several = decomposition.groups.codes.bincount()[decomposition.groups.codes] > 1
                result.dead[which] += len(set(decomposition.groups.codes[still & several].tolist()))
        stored = torch.tensor(step.recorded, dtype=torch.float64)
        known = ~stored.isnan()
        if bool(known.any()):
            largest = float((stored - computed)[known].abs().max())
            result.reproduces = max(result.reproduces or 0.0, largest)
        before_all = torch.where(known, stored, computed)
        self._compare(result, step, before_all, asked)
        self._write(out, step, stored, asked)

    def _compare(self, result: Replay, step: Step, before: Tensor, after: Tensor) -> None:
        result.steps += 1
        result.rows += len(step.groups)
        members: dict[str, list[int]] = {}
        for row, group in enumerate(step.groups):
            members.setdefault(group, []).append(row)
        old, new = before.tolist(), after.tolist()
        for rows in members.values():
            result.singletons += len(rows) == 1
            ranks = levels([old[row] for row in rows]), levels([new[row] for row in rows])
            result.order_changes += ranks[0] != ranks[1]
        moved = (before * after < 0) & (torch.minimum(before.abs(), after.abs()) > _NO_SIGN)
        result.sign_changes += int(moved.sum())
        most = heapq.nlargest(CHANGED_MOST, range(len(old)), lambda row: abs(new[row] - old[row]))
        for row in most:
            if abs(new[row] - old[row]) <= DISTINCT_TOLERANCE:
                continue
            entry = self._entry(step, row, old[row], new[row])
            result.changed_most.append(entry | {"prompt": "", "output": ""})
        result.changed_most.sort(key=lambda each: -abs(each["asked"] - each["recorded"]))
        del result.changed_most[CHANGED_MOST:]

    def _entry(self, step: Step, row: int, recorded: float | None, asked: float) -> dict[str, Any]:
        file, line = step.places[row]
        return {
            "file": str(file),
            "line": line,
            "group": step.groups[row],
            "step": step.number,
            "components": step.infos[row],
            "recorded": recorded,
            "asked": asked,
        }

    def _write(self, out: TextIO | None, step: Step, stored: Tensor, asked: Tensor) -> None:
        if out is None:
            return
        for row, (before, after) in enumerate(zip(stored.tolist(), asked.tolist(), strict=True)):
            recorded = None if before != before else before
            entry = self._entry(step, row, recorded, after)
            out.write(json.dumps(entry, ensure_ascii=False, default=str) + "\n")


def _merged(base: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The overrides, a mapping joined to what the run has there, as Hydra does."""
    return {
        key: _merged_value(base.get(key), value) if isinstance(value, dict) else value
        for key, value in overrides.items()
    }


def _merged_value(base: Any, value: dict[str, Any]) -> dict[str, Any]:
    known = base if isinstance(base, dict) else {}
    return {**known, **_merged(known, value)}


def _add_texts(result: Replay) -> None:
    """Read the texts of the answers that change most, which were let go."""
    from gdpo_verl.lab.rundir.dumps import numbered_rows

    wanted: dict[Path, dict[int, dict[str, Any]]] = {}
    for entry in result.changed_most:
        wanted.setdefault(Path(entry["file"]), {})[entry["line"]] = entry
    for path, entries in wanted.items():
        for line, row in numbered_rows(path):
            if line in entries and row is not None:
                entries[line]["prompt"] = str(row.get("input", ""))
                entries[line]["output"] = str(row.get("output", ""))
                if line == max(entries):
                    break
