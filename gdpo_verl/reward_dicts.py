"""Read rewards from dicts of named components, the form in which trainers pass them on.

`advantages_of` computes one advantage for each response from such dicts, for any trainer.

The value of a component is a number, or None where the response is not scored. There are two
further kinds of components. A component *by turn* has a list with one number for each turn of the
model. A component *by criterion* is a rubric: it has a mapping from each criterion of the prompt to
a number.
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

# The key under which NeMo Gym and SkyRL return a dict of components.
NESTED = "reward_components"
# Keys of a reward dict that are never the names of components.
_NO_COMPONENTS = (*RESERVED, "parse_error", NESTED)
_CRITERION = {"value", "weight"}
# In a batch with fewer responses, `most_unscored` is a share of this number instead. Otherwise a
# single missing reward would end a run with small batches.
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
    """Too many responses of a batch have no reward."""


def advantages_of(
    rewards: Iterable[Mapping[str, Any]],
    groups: Sequence[Hashable],
    token_counts: Sequence[int | Sequence[int]] | None = None,
    *,
    config: GdpoConfig | Mapping[str, Any] | None = None,
    components: Sequence[Component | str] = (),
    step: int | None = None,
) -> list[Any]:
    """Compute the advantage of each response with GDPO, or with another variant, from reward dicts.

    >>> rewards = [{"right": 1, "short": 0}, {"right": 0, "short": 0}]
    >>> rewards += [{"right": 1, "short": 1}, {"right": 0, "short": None}]
    >>> [round(advantage, 4) for advantage in advantages_of(rewards, ["a", "a", "b", "b"])]
    [0.866, -0.866, 0.866, -0.866]
    >>> calls = [{"call_ok": [1, 0]}, {"call_ok": [0, 1]}, {"call_ok": [1]}]
    >>> credit = {"gdpo": {"credit": "turn", "whiten": "none"}}
    >>> [[round(turn, 4) for turn in turns] for turns in advantages_of(calls, "aaa", config=credit)]
    [[0.5773, -0.7071], [-1.1547, 0.7071], [0.5773]]
    >>> config = {"gdpo": {"variant": "mo_grpo"}, "gdpo_reward_weights": {"short": 0.5}}
    >>> round(advantages_of(rewards[:2] * 2, [0, 0, 1, 1], config=config)[0], 4)
    0.7071

    Args:
      rewards: a dict for each of the B responses. If it has the key `reward_components` (NeMo Gym
        and SkyRL), then that dict holds the components; otherwise every entry is a component. The
        values None and NaN mean *not scored*. A list makes a component by turn: it has a number or
        None for each turn of the model. A mapping makes a component by criterion: it has for each
        criterion of the prompt a number, None, or ``{"value": number, "weight": number}``.
      groups: an identifier for each response. Responses with equal identifiers share a prompt.
      token_counts: the number of tokens of each response that count in the loss. They are the
        weights of the responses in the whitening, and the lengths for derived components. Without
        `token_counts` every response has the same weight. If there are components by turn, give a
        list for each response, with the number of tokens of each turn; without them every turn has
        the same weight.
      config: verl's `algorithm` node as a dict, or a `GdpoConfig`; the default is GDPO with its
        default settings. If the dicts hold other entries than components, its `gdpo_reward_keys`
        name the components.
      components: the names of the components, or `Component` objects, because some variants need
        the range of each component.
      step: the number of the training step, for scheduled weights. The first step is 1.

    Returns:
      A list of B numbers, unitless. The advantage of a response without any scored component is 0.
      If there are components by turn, and ``credit`` is not ``answer``, the list has a list for
      each response instead, with one number for each turn.

    Raises:
      ValueError: a component is absent, infinite or not a number (the error names the row), a
        setting is wrong (the error names its key), or no two responses share a prompt.
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
        lengths = [sum(counts) for counts in by_turn]
    elif objective.credits_turns:
        by_turn = _one_token_a_turn(infos, objective)
    ids = groups.tolist() if isinstance(groups, Tensor) else groups
    raw = objective.with_derived(raw, infos, lengths or [None] * len(rows), ids)
    # The last batch of a data set may be a single response, which is not the user's mistake.
    objective.check_groups(numbered.largest if len(rows) > 1 else None)
    check_unscored(infos, raw, objective)
    tokens = torch.tensor(lengths or [1] * len(rows))
    whole = objective.decompose(raw, numbered, tokens, step or 0, graded, rows)
    if not objective.credits_turns:
        return whole.advantage.tolist()
    lists = turn_lists(infos, objective, rows)
    return decompose_by_turn(whole, lists, objective, rows, Turns.of(by_turn)).lists


def _flat(rewards: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Apply `unnested` to each dict; raise ValueError with the row of a value that is no dict."""
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
    """Build the objective of `advantages_of`.

    A component is by turn if its first value is a list, and by criterion if its first value is a
    mapping.
    """
    if isinstance(config, GdpoConfig):
        settings = replace(config, wording=_DICTS)
    else:
        settings = GdpoConfig.from_algorithm(config, _DICTS)
    # Without names or declarations, every entry of the dicts is a component.
    if not components and settings.reward_keys is None:
        names = (key for info in rewards for key in _own(info) if key not in _NO_COMPONENTS)
        components = list(dict.fromkeys(names))
    listed = []
    mapped = []
    declared = [component.name for component in as_components(components)]
    for name in settings.reward_keys or declared:
        first = next((info[name] for info in infos if info.get(name) is not None), None)
        if is_list(first):
            listed.append(name)
        if isinstance(first, Mapping):
            mapped.append(name)
    return settings.resolve(components, listed=listed, mapped=mapped)


def _token_counts(token_counts: Any, objective: Objective, size: int) -> list[list[int]]:
    """Return the token counts of the turns of each response.

    Without components by turn, each response counts as one turn. Raises ValueError for a wrong
    number of responses, and for a value that is not a count of tokens (the error names its row).
    """
    count = len(token_counts) if hasattr(token_counts, "__len__") else repr(token_counts)
    if count != size:
        raise ValueError(f"token_counts: expected {size}, one for each response, found {count}")
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
    """Return one token for each turn, so that all turns have the same weight in the whitening.

    Raises ValueError for a response without a list, because its number of turns is unknown.
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
    """Return the keys of a reward dict that may be names of components."""
    if NESTED not in info:
        return info
    nested = info[NESTED]
    return nested if isinstance(nested, Mapping) else ()


def unnested(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reward dict with the entries of its `reward_components` moved to the top level."""
    nested = info.get(NESTED)
    if not isinstance(nested, Mapping):
        return info
    return {key: value for key, value in info.items() if key != NESTED} | dict(nested)


def failed_judgement(info: Mapping[str, Any]) -> str:
    """Return why verl's reward manager `rate_limited` has no reward for a row.

    If the manager has no reward, it returns the score 0, and in addition to 'acc' one of the keys
    'timeout' and 'error' (verl/experimental/reward_loop/reward_manager/limited.py, `run_single`).
    We treat such a row as not scored.

    Returns:
      "timeout", the text of the error, or an empty string for a row with a reward.
    """
    if set(info) == {"timeout", "acc"}:
        return "timeout"
    return str(info["error"]) if set(info) == {"error", "acc"} else ""


def score_of(info: Mapping[str, Any], objective: Objective, row: str) -> float:
    """Return the score of one response, sum_k w_k r_k after the conditions, in reward units.

    Args:
      info: the dict that the reward function returned.
      row: the name of the row in error messages.

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
      infos: the dict that the reward function returned for each row, after `unnested`.
      objective: the objective, which names the components and says which may be absent.
      rows: the name of each row in error messages.
      graded: the components by criterion, if `graded_criteria` has read them already.

    Returns:
      float64, shape (B, K), in reward units. NaN means not scored: the value is None or NaN, or
      the component is optional and absent. Derived components are NaN, too;
      `Objective.with_derived` computes them.

    Raises:
      ValueError: a component is absent, infinite or not a number. The error names key and row.
    """
    if graded is None:
        graded = graded_criteria(infos, objective, rows)
    columns = []
    for key in objective.keys:
        column = [math.nan] * len(infos)
        if key in graded:
            column = [rubric_number(criteria) for criteria in graded[key]]
        elif key not in objective.config.derived:
            column = [
                _read(info, key, objective, row) for info, row in zip(infos, rows, strict=True)
            ]
        columns.append(column)
    return torch.tensor(columns, dtype=torch.float64).T.contiguous()


def turn_lists(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> dict[str, list[list[float] | None]]:
    """Read the components by turn of each row.

    Args:
      infos, objective, rows: as for `read_components`.

    Returns:
      For each component by turn, a list of numbers for each row. A turn that is not scored is NaN,
      and a row that is not scored is None.

    Raises:
      ValueError: a value is not a list, or an entry of a list is not a number. The error names key
        and row.
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
            "by turn, with one number or None for each turn of the model, found "
            f"{value!r} for row {row}"
        )
    return [_number(number, key, objective, row) for number in value]


def listed_turns(info: Mapping[str, Any], key: str) -> Any:
    """Return the list of a component by turn, also if `with_numbers` stored it as text."""
    return _stored_or_returned(info, key, BY_TURN)


def is_list(value: Any) -> bool:
    """Return whether the value of a component is a list, a tuple, or an array of one dimension."""
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) == 1


def graded_criteria(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> dict[str, list[Graded | None]]:
    """Read the components by criterion of each row.

    Args:
      infos, objective, rows: as for `read_components`.

    Returns:
      For each component by criterion, a mapping for each row from the name of a criterion to its
      value and weight. A row that is not scored is None.

    Raises:
      ValueError: a value is not a mapping, or an entry of a mapping is not the value of a
        criterion. The error names key and row.
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
    criteria = mapped_criteria(info, key)
    if criteria is None or criteria != criteria:  # None or NaN
        return None
    place = f"{objective.config.wording.rewards}: {key!r}, which is by criterion, of row {row}"
    if not isinstance(criteria, Mapping):
        raise ValueError(
            f"{place}: expected a mapping from the name of each criterion to a number, found "
            f"{criteria!r}"
        )
    graded: dict[str, tuple[float, float]] = {}
    for name, entry in criteria.items():
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
    """Return the mapping of a component by criterion, also if `with_numbers` stored it as text."""
    return _stored_or_returned(info, key, BY_CRITERION)


def _stored_or_returned(info: Mapping[str, Any], key: str, suffix: str) -> Any:
    """Return the value that `with_numbers` stored under `key + suffix`, else the value of `key`."""
    stored = info.get(f"{key}{suffix}")
    if stored is None:
        return info.get(key)
    return json.loads(stored) if isinstance(stored, str) else stored


def with_numbers(info: Mapping[str, Any], objective: Objective) -> dict[str, Any]:
    """Return the dict with one number for each component, and its list or mapping as JSON text.

    The number is the sum over the turns, or the `rubric_number` of the criteria. During validation
    verl averages every entry of the dict that is not a text, and cannot average lists and mappings.
    """
    numbers: dict[str, Any] = {}
    for key, (turns,) in turn_lists([info], objective, [""]).items():
        total = _sum(turns)
        numbers[key] = None if math.isnan(total) else total
        numbers[f"{key}{BY_TURN}"] = json.dumps(turns and as_written(turns))
    for key, (graded,) in graded_criteria([info], objective, [""]).items():
        number = rubric_number(graded)
        numbers[key] = None if math.isnan(number) else number
        numbers[f"{key}{BY_CRITERION}"] = json.dumps(criteria_as_written(graded))
    return {**info, **numbers}


def criteria_as_written(graded: Graded | None) -> dict[str, Any] | None:
    """Convert the criteria of a response back to a mapping that a reward function can return."""
    if graded is None:
        return None
    written: dict[str, Any] = {}
    for name, (value, weight) in graded.items():
        (number,) = as_written([value])
        written[name] = number if weight == 1 else {"value": number, "weight": weight}
    return written


def as_written(numbers: Sequence[float]) -> list[float | None]:
    """Replace NaN by None, because JSON has no NaN."""
    return [None if math.isnan(number) else number for number in numbers]


def _sum(turns: Sequence[float] | None) -> float:
    """Return the sum over the scored turns; NaN where no turn is scored."""
    scored = [number for number in turns or () if not math.isnan(number)]
    return math.fsum(scored) if scored else math.nan


def decompose_by_turn(
    whole: Decomposition,
    lists: Mapping[str, Sequence[Sequence[float] | None]],
    objective: Objective,
    rows: Sequence[str],
    turns: Turns,
) -> TurnDecomposition:
    """Compute the advantage of each turn.

    Args:
      whole: the decomposition of the responses. Its reward of a component by turn is the sum over
        the turns.
      lists: the components by turn, as `turn_lists` returns them.
      objective: the objective, with which `whole` was computed.
      rows: the name of each response in error messages.
      turns: the turns of each response, with their token counts.

    Raises:
      ValueError: a list has another length than the response has turns. The error names key, row
        and both numbers.
    """
    in_verl = f" {TURNS_OF_ANSWER}" if objective.config.wording is VERL else ""
    to_go_is_credited = whole.settings.credit == "to_go"
    credit = torch.full((len(turns.tokens), len(objective.keys)), math.nan, dtype=torch.float64)
    for key, column in lists.items():
        values: list[float] = []
        for numbers, row, count in zip(column, rows, turns.counts.tolist(), strict=True):
            if numbers is not None and len(numbers) != count:
                raise ValueError(
                    f"{objective.config.wording.rewards}: expected a number for each of the "
                    f"{count} turns of row {row} for {key!r}, found {len(numbers)}. A turn is a "
                    "run of the model's own tokens between two results of tools."
                    f"{in_verl}"
                )
            earned = numbers or [math.nan] * count
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
        # If the reward function returns no dict, verl passes its value on under the key "acc".
        if wording is VERL and set(info) == {"acc"}:
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
            fault += (
                " A list with one number for each turn must be declared: "
                f"@declares(..., by_turn=({key!r},))."
            )
        if isinstance(value, Mapping):
            fault += f" A mapping must be declared: @declares(..., by_criterion=({key!r},))."
        raise ValueError(fault)
    return number
