"""Report the results of a reward function on a set of responses, as JSON or as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
import torch

from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.config.components import Component
from gdpo_verl.diagnostics import component_metrics
from gdpo_verl.lab.check_reward import checks
from gdpo_verl.lab.check_reward.answers import CheckedAnswer
from gdpo_verl.lab.check_reward.checks import NOTE, PROBLEM, Finding, ScoredAnswer
from gdpo_verl.lab.check_reward.teaching import capacity_lines, teaching
from gdpo_verl.lab.check_reward.worker import Scored
from gdpo_verl.lab.replay.forecast import forecast_lines
from gdpo_verl.lab.text import columns, duration
from gdpo_verl.names import CONSTANT_GROUPS, MAX, MEAN, MIN, UNSCORED
from gdpo_verl.plugin.checks.checks import Moment, Run, check_run
from gdpo_verl.plugin.checks.reward import not_a_dict
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows, judged
from gdpo_verl.reward_dicts import RewardErrors, read_components, unnested
from gdpo_verl.upstream.row_key import RowKey

NOTHING = "–"


def measure(
    config: Any,
    answers: Sequence[CheckedAnswer],
    scored: Scored,
) -> dict[str, Any]:
    """Summarise the results of the reward function, and list its problems.

    Args:
      config: verl's configuration, of which the algorithm and the group size are read.
      answers: the responses, in the order of `scored.results`, which may end earlier.
      scored: the results.

    Returns:
      the report that `--json` writes. `problems` would stop a run or distort what it learns;
      `notes` are less severe. Each of the `components` has `low`, `mean` and `high` in reward
      units, None if the component is never scored, and two shares with the names of metrics:
      `UNSCORED`, the share of responses, and `CONSTANT_GROUPS`, the share of groups with several
      responses, None if there are no such groups. `teaching` is the result of `teaching.teaching`.
      It is empty for made-up responses, because they do not show what a policy would learn.
    """
    settings = GdpoConfig.from_algorithm(config.algorithm)
    tried = [
        ScoredAnswer(answer, result, scored.again.get(place), not_a_dict(result.info, settings))
        for place, (answer, result) in enumerate(zip(answers, scored.results, strict=False))
    ]
    finished = [response for response in tried if not response.result.error]
    dicts = [response for response in finished if not response.no_dict]
    findings: list[Finding] = [(PROBLEM, problem) for problem in scored.unnamed]
    components, taught = _look_at_components(config, settings, scored, finished, dicts, findings)
    findings += checks.complaints(tried, scored.declared)
    findings += _constant(components)
    left = len(answers) - len(tried)
    if left:
        text = f"{left} responses were not scored: one that hangs or crashes is the last"
        findings.append((NOTE, text))
    codes = Counter(response.parse_error for response in dicts if response.parse_error is not None)
    seconds = [response.seconds for response in finished] or [0.0]
    times = np.percentile(seconds, [50, 99, 100]).tolist()
    return {
        "problems": [text for kind, text in findings if kind == PROBLEM],
        "notes": [text for kind, text in findings if kind == NOTE],
        "components": components,
        "teaching": taught,
        "kinds": _kinds(dicts),
        "parse_errors": dict(sorted(codes.items())),
        "seconds": dict(zip(("median", "p99", "max"), times, strict=True)) if finished else None,
        "sandboxes": sorted({name for response in tried for name in response.result.sandboxes}),
        "answers": [_of_answer(response) for response in tried],
    }


def _of_answer(response: ScoredAnswer) -> dict[str, Any]:
    return {
        "row": response.answer.row,
        "kind": response.answer.kind,
        "group": response.answer.group,
        "answer": response.answer.text,
        "score": response.score,
        "returned": response.result.info,
        "scored_again": response.again and response.again.info,
        "seconds": response.result.seconds,
        "error": response.result.error,
    }


def _look_at_components(
    config: Any,
    settings: GdpoConfig,
    scored: Scored,
    finished: Sequence[ScoredAnswer],
    dicts: Sequence[ScoredAnswer],
    findings: list[Finding],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Summarise the components and what they can teach, and find faults in all responses together.

    Findings are added to `findings`. Of the `finished` responses, `dicts` are those with a dict of
    components.
    """
    components: list[dict[str, Any]] = []
    taught: dict[str, Any] = {}
    if finished and not dicts:  # results that are only numbers have their own complaint
        return components, taught
    # A key counts as returned if at least one response has it.
    keys = list(dict.fromkeys(key for response in dicts for key in unnested(response.result.info)))
    try:
        objective = settings.resolve(scored.declared, keys or None)
        batch = _read_components(dicts, objective, findings)
        if batch is not None:
            readable = [response for response in dicts if response.weighted_sum is not None]
            findings += checks.no_variation(readable, batch)
            findings += checks.truth_not_preferred(readable)
            findings += checks.failing_pays(batch)
            findings += checks.criteria_that_teach_nothing(batch)
            components = _summarise(batch, scored.declared)
            if not readable[0].answer.made_up:
                taught = teaching(config, batch)
        returned = {response.answer.name: response.result.info for response in finished}
        run = Run(config, returned=returned)
        run.objective = objective
        check_run(run, Moment.COMPONENTS, Moment.RETURNED)
    except ValueError as error:  # the summary up to this point is still shown
        findings.append((PROBLEM, str(error)))
    return components, taught


def _read_components(
    dicts: Sequence[ScoredAnswer], objective: Objective, findings: list[Finding]
) -> RewardBatch | None:
    """Return the batch of the responses with readable components, and set their `values`.

    The result is None if no response has readable components. Faults are added to `findings`.
    """
    readable = []
    errors = []
    for response in dicts:
        try:
            info = judged(response.result.info, objective)
            read_components([info], objective, [response.answer.name])
        except ValueError as error:
            errors.append(str(error))
        else:  # a score that is no number is reported by another check
            if response.score is not None:
                readable.append(response)
    findings += checks.first_and_count(PROBLEM, errors)
    if not readable:
        return None
    infos = [response.result.info for response in readable]
    # The token counts of made-up responses are unknown, so their derived components are not scored.
    ids = [response.answer.token_ids for response in readable]
    masks = None if None in ids else [torch.ones(len(tokens or ())) for tokens in ids]
    keys = [str(RowKey("answer", number, 0)) for number in range(len(readable))]
    rows = RewardRows(objective, infos, keys, masks=masks)
    objective.try_derived(unnested(infos[0]))
    # Every response has the same weight in the whitening.
    tokens = torch.ones(len(readable))
    batch = RewardBatch.of(rows, [response.answer.group for response in readable], tokens)
    try:
        batch.check_errors()
    except RewardErrors as error:
        findings.append((PROBLEM, str(error)))
    sums = batch.returned_score().tolist()
    for place, response in enumerate(readable):
        response.values = dict(zip(objective.keys, batch.raw[place].tolist(), strict=True))
        response.weighted_sum = sums[place]
        response.parse_error = batch.parse_errors[place]
    return batch


def _summarise(batch: RewardBatch, declared: Sequence[Component]) -> list[dict[str, Any]]:
    names = batch.rows.objective.keys
    derived = batch.rows.objective.config.derived
    groups = batch.group_ids
    sizes = Counter(groups)
    # A group of a single response would always count as constant.
    several = [row for row, group in enumerate(groups) if sizes[group] > 1]
    metrics = component_metrics(batch.raw, groups, names)
    grouped = component_metrics(batch.raw[several], [groups[row] for row in several], names)
    ranges = {component.name: (component.low, component.high) for component in declared}
    return [
        {
            "name": name,
            "weight": weight,
            "declared": ranges.get(name, (None, None)),
            "low": metrics.get(MIN.of(name)),
            "mean": metrics.get(MEAN.of(name)),
            "high": metrics.get(MAX.of(name)),
            CONSTANT_GROUPS.last: grouped.get(CONSTANT_GROUPS.of(name)),
            UNSCORED.last: metrics[UNSCORED.of(name)],
        }
        for name, weight in zip(names, batch.rows.objective.weights, strict=True)
        if batch.rows.masks is not None or name not in derived
    ]


def _kinds(dicts: Sequence[ScoredAnswer]) -> list[dict[str, Any]]:
    scores: dict[str, list[float]] = {}
    for response in dicts:
        if response.score is not None:
            scores.setdefault(response.answer.kind, []).append(response.score)
    return [
        {
            "kind": kind,
            "count": len(scores_of_kind),
            "low": min(scores_of_kind),
            "mean": fmean(scores_of_kind),
            "high": max(scores_of_kind),
        }
        for kind, scores_of_kind in scores.items()
    ]


def _constant(components: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    nothing = "if it is so in the run, it teaches nothing"
    for component in components:
        name = component["name"]
        low = component["low"]
        if low is None:
            yield NOTE, f"{name!r} is not scored in any response"
        elif low == component["high"]:
            yield NOTE, f"{name!r} is {low:g} for every response: {nothing}"
        elif component[CONSTANT_GROUPS.last] == 1.0:
            yield NOTE, f"{name!r} is constant in every group: {nothing}"


def report_text(report: Mapping[str, Any]) -> str:
    """Write the report for a terminal."""
    about = report["about"]
    width = max(map(len, about), default=0)
    lines = [f"{heading:{width}}  {text}" for heading, text in about.items()]
    verdict = [f"note     {note}" for note in report["notes"]]
    verdict += [f"PROBLEM  {problem}" for problem in report["problems"]]
    for block in (
        _component_table(report["components"]),
        _kind_table(report["kinds"]),
        list(_facts(report)),
        list(capacity_lines(report["teaching"]["capacity"])) if report["teaching"] else [],
        list(forecast_lines(report["teaching"]["forecast"])) if report["teaching"] else [],
        verdict or ["ok"],
        ["Advice", *report["teaching"]["advice_lines"]] if report["teaching"] else [],
    ):
        lines += ["", *block] if block else []
    return "\n".join(lines)


def _component_table(components: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [("component", "weight", "declared", "observed", "mean", "constant", "not scored")]
    for component in components:
        mean = component["mean"]
        constant = component[CONSTANT_GROUPS.last]
        rows.append(
            (
                component["name"],
                f"{component['weight']:g}",
                _range(*component["declared"]),
                _range(component["low"], component["high"]),
                NOTHING if mean is None else f"{mean:.3f}",
                NOTHING if constant is None else f"{constant:.0%} of groups",
                f"{component[UNSCORED.last]:.0%} of responses",
            )
        )
    return columns(rows) if components else []


def _kind_table(kinds: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [("response", "count", "score: lowest", "mean", "highest")]
    for kind in kinds:
        low, mean, high = (f"{kind[key]:.3f}" for key in ("low", "mean", "high"))
        rows.append((kind["kind"], str(kind["count"]), low, mean, high))
    return columns(rows) if kinds else []


def _facts(report: Mapping[str, Any]) -> Iterator[str]:
    codes = report["parse_errors"]
    if codes:
        counts = ", ".join(f"{code}: {count}" for code, count in codes.items())
        yield f"parse_error codes and their responses: {counts}"
    times = report["seconds"]
    if times:
        median, p99, longest = map(duration, times.values())
        yield f"time for one response: median {median}, p99 {p99}, longest {longest}"
    if report["sandboxes"]:
        yield f"programs ran in: {', '.join(report['sandboxes'])}"


def _range(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return NOTHING
    return f"{_limit(low)} to {_limit(high)}"


def _limit(value: float | None) -> str:
    return "any" if value is None else f"{value:g}"
