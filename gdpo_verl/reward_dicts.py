"""Rewards as dicts of named components, as trainers and environments hand them over.

`advantages_of` makes one advantage a response of them, for any trainer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import (
    Decomposition,
    TurnDecomposition,
    Turns,
    decompose_turns,
    factorize_groups,
    to_go,
)
from gdpo_verl.advantage.checks import LARGEST, read_number
from gdpo_verl.advantage.criteria import Graded, rubric_number
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.config.components import BY_CRITERION, BY_TURN, RESERVED, Component, as_components
from gdpo_verl.config.wording import VERL, Wording

# The key under which NeMo Gym and SkyRL hand over a dict of components.
NESTED = "reward_components"
_NO_COMPONENTS = (*RESERVED, "parse_error", NESTED)
_CRITERION = {"value", "weight"}
# In a smaller batch a component's `most_unscored` is a share of this many responses.
FEWEST_RESPONSES = 20
TURNS_OF_ANSWER = (
    "Return one number, or None, for each turn. The number of turns is "
    "extra_info['num_turns'] // 2, because verl also counts the prompt and the results of tools as "
    "turns."
)
_NO_REWARD = (
    "An agent loop that sets reward_score itself must put the components into "
    "extra_fields['reward_extra_info']."
)
_DICTS = Wording(
    root="config",
    rewards="rewards",
    group_size="groups",
    components="Put them into each dict, or name them: config={'gdpo_reward_keys': [...]}.",
    ranges="Give them as components=[Component(name, low, high), ...].",
    absent="Every dict needs it, with None where it is not scored.",
)


class RewardErrors(RuntimeError):
    """Too many of a batch's responses are without a reward."""


def advantages_of(
    rewards: Iterable[Mapping[str, Any]],
    groups: Sequence[Hashable],
    token_counts: Sequence[int | Sequence[int]] | None = None,
    *,
    config: GdpoConfig | Mapping[str, Any] | None = None,
    components: Sequence[Component | str] = (),
    step: int | None = None,
) -> list[Any]:
    """GDPO's advantage of each response, or that of another variant, from rewards as dicts.

    >>> rewards = [{"right": 1, "short": 0}, {"right": 0, "short": 0}]
    >>> rewards += [{"right": 1, "short": 1}, {"right": 0, "short": None}]
    >>> [round(advantage, 4) for advantage in advantages_of(rewards, ["a", "a", "b", "b"])]
    [0.866, -0.866, 0.866, -0.866]
    >>> calls = [{"call_ok": [1, 0]}, {"call_ok": [0, 1]}, {"call_ok": [1]}]
    >>> credit = {"gdpo": {"credit": "turn", "whiten": "none"}}
    >>> [[round(turn, 4) for turn in each] for each in advantages_of(calls, "aaa", config=credit)]
    [[0.5773, -0.7071], [-1.1547, 0.7071], [0.5773]]
    >>> config = {"gdpo": {"variant": "mo_grpo"}, "gdpo_reward_weights": {"short": 0.5}}
    >>> round(advantages_of(rewards[:2] * 2, [0, 0, 1, 1], config=config)[0], 4)
    0.7071

    Args:
      rewards: of each response; None and NaN are *not scored*. The components are those of
        `reward_components` where a dict has them (NeMo Gym, SkyRL), else its numbers by name. A
        list is a component by turn, one number or None for each turn of the model's. A mapping is a
        component by criterion: for each criterion of the prompt a number, None, or
        ``{"value": number, "weight": number}``.
      groups: of each response; equal ones share a prompt.
      token_counts: response tokens that count in the loss, the lengths of derived components.
        Without them every response counts alike in the whitening. With components by turn a list
        for each response, the tokens of its turns; without them every turn counts alike.
      config: verl's `algorithm` node as a dict, or `GdpoConfig`; default: GDPO's defaults. It
        names the components, `gdpo_reward_keys`, where dicts hold other things, too.
      components: their names; with ranges, where a variant needs them.
      step: of the training, for scheduled weights; 1 is the first.

    Returns:
      B numbers, unitless; 0 where nothing is scored. With components by turn, unless
      ``credit: answer``, a list for each response, one number a turn.

    Raises:
      ValueError: a component is absent, infinite or not a number, with the row; a setting is
        wrong, with its key; or no two responses share a prompt.
      RewardErrors: more responses lack a component than its `most_unscored` allows.
    """
    rewards = list(rewards)
    if not rewards:
        return []
    components = as_components(components)
    rows = [str(row) for row in range(len(rewards))]
    infos = _flat(rewards)
    objective = _objective_of(rewards, infos, config, components)
    if objective.config.schedule and not (isinstance(step, Integral) and step > 0):
        raise ValueError(
            "step: config.gdpo.schedule needs the number of the training step, 1 for the first; "
            f"found {step!r}"
        )
    graded = graded_criteria(infos, objective, rows)
    raw = read_components(infos, objective, rows, graded)
    numbered = factorize_groups(groups, raw, "groups")
    by_turn: list[list[int]] = []
    lengths: list[int] = []
    if token_counts is not None:
        by_turn = _token_counts(token_counts, objective, len(rows))
        lengths = [sum(each) for each in by_turn]
    elif objective.credits_turns:
        by_turn = _one_token_a_turn(infos, objective)
    ids = groups.tolist() if isinstance(groups, Tensor) else groups
    raw = objective.with_derived(raw, infos, lengths or [None] * len(rows), ids)
    # A response alone, as the last of a data set may be, has nothing to compare.
    objective.check_groups(numbered.largest if len(rows) > 1 else None)
    check_unscored(infos, raw, objective)
    counts = torch.tensor(lengths or [1] * len(rows))
    whole = objective.decompose(raw, numbered, counts, step or 0, graded, rows)
    if not objective.credits_turns:
        return whole.advantage.tolist()
    lists = turn_lists(infos, objective, rows)
    return decompose_by_turn(whole, lists, objective, rows, Turns.of(by_turn)).lists


def _flat(rewards: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The dicts, `unnested`; ValueError for what is none, with its row."""
    for row, info in enumerate(rewards):
        if not isinstance(info, Mapping):
            raise ValueError(
                f"rewards: expected a dict of components for row {row}, found {info!r}"
            )
    return [unnested(info) for info in rewards]


def _objective_of(
    rewards: Sequence[Mapping[str, Any]],
    infos: Sequence[Mapping[str, Any]],
    config: Any,
    components: Sequence[Component | str],
) -> Objective:
    """The objective of `advantages_of`.

    A component is by turn whose first value is a list, and by criterion if it is a mapping.
    """
    if isinstance(config, GdpoConfig):
        settings = replace(config, wording=_DICTS)
    else:
        settings = GdpoConfig.from_algorithm(config, _DICTS)
    # Nothing is named or declared: whatever the dicts hold is a component.
    if not components and settings.reward_keys is None:
        names = (key for info in rewards for key in _own(info) if key not in _NO_COMPONENTS)
        components = list(dict.fromkeys(names))
    listed = []
    mapped = []
    for name in settings.reward_keys or [each.name for each in as_components(components)]:
        first = next((info[name] for info in infos if info.get(name) is not None), None)
        if is_list(first):
            listed.append(name)
        if isinstance(first, Mapping):
            mapped.append(name)
    return settings.resolve(components, listed=listed, mapped=mapped)


def _token_counts(token_counts: Any, objective: Objective, size: int) -> list[list[int]]:
    """The tokens of the turns of each response; without components by turn it has one.

    Raises ValueError for another number of responses, and for what is no count, with its row.
    """
    found = len(token_counts) if hasattr(token_counts, "__len__") else repr(token_counts)
    if found != size:
        raise ValueError(f"token_counts: expected {size}, one a response, found {found}")
    wanted = "a number of tokens, as no component is by turn"
    if objective.by_turn:
        names = sorted(objective.by_turn)
        wanted = f"a list for each response, the tokens of its turns, as {names} are by turn"
    by_turn = []
    for row, counts in enumerate(token_counts):
        if is_list(counts) != bool(objective.by_turn):
            raise ValueError(f"token_counts: expected {wanted}, found {counts!r} for row {row}")
        of_turns = counts if objective.by_turn else [counts]
        numbers = [read_number(count) for count in of_turns]
        if not all(number >= 0 and number.is_integer() for number in numbers):
            raise ValueError(
                f"token_counts: expected whole numbers, 0 or more, found {counts!r} for row {row}"
            )
        by_turn.append([int(number) for number in numbers])
    return by_turn


def _one_token_a_turn(infos: Sequence[Mapping[str, Any]], objective: Objective) -> list[list[int]]:
    """A token for each turn, so that all count alike.

    Raises ValueError for a response of which nothing says how many turns it has.
    """
    by_turn = []
    for row, info in enumerate(infos):
        turns = next((info[key] for key in objective.by_turn if is_list(info.get(key))), None)
        if turns is None:
            raise ValueError(
                f"token_counts: no list says how many turns row {row} has. Give the tokens of "
                "the turns of each response."
            )
        by_turn.append([1] * len(turns))
    return by_turn


def _own(info: Mapping[str, Any]) -> Iterable[str]:
    """The keys of a dict among which its components are."""
    if NESTED not in info:
        return info
    nested = info[NESTED]
    return nested if isinstance(nested, Mapping) else ()


def unnested(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The dict of a reward, with the components of its `reward_components` among its keys."""
    nested = info.get(NESTED)
    if not isinstance(nested, Mapping):
        return info
    return {key: value for key, value in info.items() if key != NESTED} | dict(nested)


def failed_judgement(info: Mapping[str, Any]) -> str:
    """Return why verl's `rate_limited` manager has no reward for a row; '' where it has one.

    Without a reward it returns the score 0 and one of two keys in addition to 'acc'
    (verl/experimental/reward_loop/reward_manager/limited.py, `run_single`); such a row is not
    scored.
    """
    if set(info) == {"timeout", "acc"}:
        return "timeout"
    return str(info["error"]) if set(info) == {"error", "acc"} else ""


def score_of(info: Mapping[str, Any], objective: Objective, row: str) -> float:
    """sum_k w_k r_k of one response, after the conditions, in reward units.

    Args:
      info: what the reward returned.
      row: what to call it in an error.

    Raises:
      ValueError: a component is absent, infinite or not a number.
    """
    return float(objective.score(read_components([info], objective, [row]))[0])


def read_components(
    infos: Sequence[Mapping[str, Any]],
    objective: Objective,
    rows: Sequence[str],
    graded: Mapping[str, Sequence[Graded | None]] | None = None,
) -> Tensor:
    """Read the reward components of each row, in the order of the objective's keys.

    Args:
      infos: what the reward returned for each row (`unnested`).
      objective: names the components and says which may be absent.
      rows: what to call each row in an error.
      graded: the components by criterion, where `graded_criteria` has read them already.

    Returns:
      float64, shape (B, K), in reward units; NaN where not scored: None, NaN, or an optional
      component that is absent, and a derived one (`Objective.with_derived`).

    Raises:
      ValueError: a component is absent, infinite or not a number; names key and row.
    """
    if graded is None:
        graded = graded_criteria(infos, objective, rows)
    columns = []
    for key in objective.keys:
        column = [math.nan] * len(infos)
        if key in graded:
            column = [rubric_number(each) for each in graded[key]]
        elif key not in objective.config.derived:
            column = [
                _read(info, key, objective, row) for info, row in zip(infos, rows, strict=True)
            ]
        columns.append(column)
    return torch.tensor(columns, dtype=torch.float64).T.contiguous()


def turn_lists(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> dict[str, list[list[float] | None]]:
    """Read the components by turn of each row: lists of numbers and NaN; None where not scored.

    Args:
      infos, objective, rows: as for `read_components`.

    Raises:
      ValueError: there is no list, or what is no number in it; names key and row.
    """
    lists = {}
    for key in objective.keys:
        if key in objective.by_turn:
            pairs = zip(infos, rows, strict=True)
            lists[key] = [_turns_of(info, key, objective, row) for info, row in pairs]
    return lists


def _turns_of(
    info: Mapping[str, Any], key: str, objective: Objective, row: str
) -> list[float] | None:
    value = listed_turns(info, key)
    if value is None:
        return None
    if not is_list(value):
        raise ValueError(
            f"{objective.config.wording.rewards}: expected a list for {key!r}, which is declared "
            "by turn, one number or None for each turn of the model's, found "
            f"{value!r} for row {row}"
        )
    return [_number(each, key, objective, row) for each in value]


def listed_turns(info: Mapping[str, Any], key: str) -> Any:
    """Return the value of a component by turn, whose list `with_numbers` may have kept as text."""
    return _kept(info, key, BY_TURN)


def is_list(value: Any) -> bool:
    """Return whether a component's value is one of several numbers."""
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1


def graded_criteria(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> dict[str, list[Graded | None]]:
    """Read the components by criterion of each row; None where a row is not scored.

    Args:
      infos, objective, rows: as for `read_components`.

    Raises:
      ValueError: there is no mapping, or an entry is no value of a criterion; names key and row.
    """
    graded = {}
    for key in objective.keys:
        if key in objective.by_criterion:
            pairs = zip(infos, rows, strict=True)
            graded[key] = [_criteria_of(info, key, objective, row) for info, row in pairs]
    return graded


def _criteria_of(
    info: Mapping[str, Any], key: str, objective: Objective, row: str
) -> Graded | None:
    _check_present(info, key, objective, row)
    found = mapped_criteria(info, key)
    if found is None or found != found:
        return None
    place = f"{objective.config.wording.rewards}: {key!r}, which is by criterion, of row {row}"
    if not isinstance(found, Mapping):
        raise ValueError(
            f"{place}: expected a mapping from the name of each criterion to a number, found "
            f"{found!r}"
        )
    graded: dict[str, tuple[float, float]] = {}
    for name, entry in found.items():
        value = entry
        weight = 1.0
        fits = isinstance(name, str) and bool(name.strip())
        if isinstance(entry, dict):
            value = entry.get("value")
            weight = read_number(entry.get("weight", 1.0))
            fits = fits and entry.keys() <= _CRITERION and math.isfinite(weight)
        number = read_number(value)
        if not fits or math.isinf(number):
            raise ValueError(
                f"{place}: expected for the name of each criterion a finite number, None, or "
                f"{{'value': number, 'weight': number}}, found {entry!r} for {name!r}"
            )
        graded[name] = (number, weight)
    if graded and not any(weight for _, weight in graded.values()):
        raise ValueError(f"{place}: the weights of all criteria are 0: {list(graded)}")
    return graded


def mapped_criteria(info: Mapping[str, Any], key: str) -> Any:
    """Return the value of a component by criterion, which `with_numbers` may have kept as text."""
    return _kept(info, key, BY_CRITERION)


def _kept(info: Mapping[str, Any], key: str, end: str) -> Any:
    kept = info.get(f"{key}{end}")
    if kept is None:
        return info.get(key)
    return json.loads(kept) if isinstance(kept, str) else kept


def with_numbers(info: Mapping[str, Any], objective: Objective) -> dict[str, Any]:
    """Return the dict with one number for each component, and lists and mappings as text.

    The number is the sum over the turns, or the number of the rubric. verl averages what a reward
    returns in a validation, and leaves texts out.
    """
    sums: dict[str, Any] = {}
    for key, (turns,) in turn_lists([info], objective, [""]).items():
        total = _sum(turns)
        sums[key] = None if math.isnan(total) else total
        sums[f"{key}{BY_TURN}"] = json.dumps(turns and as_written(turns))
    for key, (graded,) in graded_criteria([info], objective, [""]).items():
        number = rubric_number(graded)
        sums[key] = None if math.isnan(number) else number
        sums[f"{key}{BY_CRITERION}"] = json.dumps(criteria_as_written(graded))
    return {**info, **sums}


def criteria_as_written(graded: Graded | None) -> dict[str, Any] | None:
    """The criteria of a response as its reward may return them, and as JSON has them."""
    if graded is None:
        return None
    written: dict[str, Any] = {}
    for name, (value, weight) in graded.items():
        (number,) = as_written([value])
        written[name] = number if weight == 1 else {"value": number, "weight": weight}
    return written


def as_written(numbers: Sequence[float]) -> list[float | None]:
    """The numbers with None for NaN, which JSON has none of."""
    return [None if math.isnan(number) else number for number in numbers]


def _sum(turns: Sequence[float] | None) -> float:
    scored = [each for each in turns or () if not math.isnan(each)]
    return math.fsum(scored) if scored else math.nan


def decompose_by_turn(
    whole: Decomposition,
    lists: Mapping[str, Sequence[Sequence[float] | None]],
    objective: Objective,
    rows: Sequence[str],
    turns: Turns,
) -> TurnDecomposition:
    """The decomposition of the turns of the responses of another, whose sums it has.

    Args:
      lists: the components by turn, as `turn_lists` reads them.
      rows: what to call each response in an error.

    Raises:
      ValueError: a list of another length than the turns; names key, row and both numbers.
    """
    in_verl = f" {TURNS_OF_ANSWER}" if objective.config.wording is VERL else ""
    to_go_is_credited = whole.settings.credit == "to_go"
    credit = torch.full((len(turns.tokens), len(objective.keys)), math.nan, dtype=torch.float64)
    for key, column in lists.items():
        values: list[float] = []
        for own, row, count in zip(column, rows, turns.counts.tolist(), strict=True):
            if own is not None and len(own) != count:
                raise ValueError(
                    f"{objective.config.wording.rewards}: expected a number for each of the "
                    f"{count} turns of row {row} for {key!r}, found {len(own)}. A turn is a run "
                    "of the model's own tokens between two results of tools."
                    f"{in_verl}"
                )
            earned = own or [math.nan] * count
            values += to_go(earned) if to_go_is_credited else earned
        credit[:, objective.keys.index(key)] = torch.tensor(values, dtype=torch.float64)
    credit = objective.conditioned(credit, whole.rewards[turns.responses])
    by_turn = torch.tensor([key in lists for key in objective.keys])
    return decompose_turns(whole, turns, credit, by_turn)


def check_unscored(infos: Sequence[Mapping[str, Any]], raw: Tensor, objective: Objective) -> None:
    """Raise RewardErrors where more rows lack a component than its `most_unscored` allows."""
    for key, most in objective.most_unscored.items():
        missing = raw[:, objective.keys.index(key)].isnan().nonzero()[:, 0].tolist()
        if len(missing) > most * max(len(raw), FEWEST_RESPONSES):
            error = infos[missing[-1]].get(f"{key}_error", "in the reward workers' log")
            raise RewardErrors(
                f"{len(missing)} of {len(raw)} responses of a batch have no {key!r}; at most "
                f"{most:.0%} may. Check the judge. The last error: {error}"
            )


def expected_dict(value: Any) -> str:
    """Say that the reward function returned this value, and what it has to return instead."""
    return (
        f"expected compute_score to return a dict with 'score' and the components, found {value!r}."
        " Return {'score': …, 'correctness': …} and declare the components "
        "(gdpo_verl.rewards.declares), or name them in algorithm.gdpo_reward_keys"
    )


def _read(info: Mapping[str, Any], key: str, objective: Objective, row: str) -> float:
    _check_present(info, key, objective, row)
    if key in objective.by_turn:
        return _sum(_turns_of(info, key, objective, row))
    return _number(info.get(key), key, objective, row)


def _check_present(info: Mapping[str, Any], key: str, objective: Objective, row: str) -> None:
    """Raise ValueError where a row lacks a component that is not optional."""
    wording = objective.config.wording
    if key not in info and key not in objective.optional:
        if NESTED in info:
            raise ValueError(
                f"{wording.rewards}: expected a dict of components as {NESTED!r} for row {row}, "
                f"found {info[NESTED]!r}"
            )
        if wording is VERL and set(info) == {"acc"}:  # verl's name of what is no dict
            raise ValueError(
                f"reward.custom_reward_function: row {row}: {expected_dict(info['acc'])}. To find "
                "such responses before a run, use `gdpo-verl check-reward`."
            )
        remedy = wording.absent if info or wording is not VERL else _NO_REWARD
        raise ValueError(
            f"{wording.rewards}: the reward returned no {key!r} for row {row}, only "
            f"{sorted(info)}. {remedy}"
        )


def _number(value: Any, key: str, objective: Objective, row: str) -> float:
    number = read_number(value)
    if math.isinf(number):
        fault = (
            f"{objective.config.wording.rewards}: expected a finite number, None or NaN for "
            f"{key!r}, found {value!r} for row {row}. Numbers are at most {LARGEST:g} in size."
        )
        if is_list(value) and key not in objective.by_turn:
            fault += f" A list, one number a turn, is declared: @declares(..., by_turn=({key!r},))."
        if isinstance(value, Mapping):
            fault += f" A mapping is declared: @declares(..., by_criterion=({key!r},))."
        raise ValueError(fault)
    return number
