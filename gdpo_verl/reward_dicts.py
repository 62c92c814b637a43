"""Rewards as dicts of named components, as trainers and environments hand them over.

`advantages_of` makes one advantage a response of them, for any trainer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage import apply_conditions
from gdpo_verl.advantage.checks import LARGEST
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.rewards.components import RESERVED, Component

# The key under which NeMo Gym and SkyRL hand over a dict of components.
NESTED = "reward_components"
_NO_COMPONENTS = (*RESERVED, "parse_error")


def advantages_of(
    rewards: Sequence[Mapping[str, Any]],
    groups: Sequence[Hashable],
    token_counts: Sequence[int] | None = None,
    *,
    config: GdpoConfig | Mapping[str, Any] | None = None,
    components: Sequence[Component] = (),
    step: int = 0,
) -> list[float]:
    """GDPO's advantage of each response, or that of another variant, from rewards as dicts.

    >>> rewards = [{"right": 1, "short": 0}, {"right": 0, "short": 0}]
    >>> rewards += [{"right": 1, "short": 1}, {"right": 0, "short": None}]
    >>> [round(advantage, 4) for advantage in advantages_of(rewards, ["a", "a", "b", "b"])]
    [0.866, -0.866, 0.866, -0.866]
    >>> config = {"gdpo": {"variant": "mo_grpo"}, "gdpo_reward_weights": {"short": 0.5}}
    >>> round(advantages_of(rewards[:2] * 2, [0, 0, 1, 1], config=config)[0], 4)
    0.7071

    Args:
      rewards: of each response; None and NaN are *not scored*. The components are those of
        `reward_components` where a dict has them (NeMo Gym, SkyRL), else its numbers by name.
      groups: of each response; equal ones share a prompt.
      token_counts: response tokens that count in the loss. Without them every response counts
        alike in the whitening.
      config: verl's `algorithm` node as a dict, or `GdpoConfig`; default: GDPO's defaults. It
        names the components, `gdpo_reward_keys`, where dicts hold other things, too.
      components: with ranges, where a variant needs them.
      step: of the training, for scheduled weights.

    Returns:
      B numbers, unitless; 0 where nothing is scored.

    Raises:
      ValueError: a component is absent, infinite or not a number, with the row; or a setting is
        wrong, with its key.
    """
    if not isinstance(config, GdpoConfig):
        config = GdpoConfig.from_algorithm(config or {})
    if not rewards:
        return []
    # Nothing is named or declared: whatever the dicts hold is a component.
    if not components and config.reward_keys is None:
        dicts = [info.get(NESTED) or info for info in rewards]
        names = dict.fromkeys(key for info in dicts for key in info if key not in _NO_COMPONENTS)
        components = [Component(name) for name in names]
    objective = config.resolve(components)
    raw = read_components(rewards, objective, [str(row) for row in range(len(rewards))])
    counts = [1] * len(rewards) if token_counts is None else list(token_counts)
    found = objective.estimate(raw, groups, torch.tensor(counts), step)
    return found.advantage.tolist()


def unnested(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The dict of a reward, with the components of its `reward_components` among its keys."""
    nested = info.get(NESTED)
    if not isinstance(nested, Mapping):
        return info
    return {key: value for key, value in info.items() if key != NESTED} | dict(nested)


def score_of(info: Mapping[str, Any], objective: Objective, row: str) -> float:
    """sum_k w_k r_k of one response, after the conditions, in reward units.

    Args:
      info: what the reward returned.
      row: what to call it in an error.

    Raises:
      ValueError: a component is absent, infinite or not a number.
    """
    raw = read_components([info], objective, [row])
    conditioned = apply_conditions(raw, objective.keys, objective.config.conditions)
    return float(weighted_sum(conditioned, objective)[0])


def weighted_sum(rewards: Tensor, objective: Objective) -> Tensor:
    """sum_k w_k r_k without schedules, an unscored component adding 0: (B, K) to (B,)."""
    return rewards.nan_to_num(0.0) @ torch.tensor(objective.weights, dtype=torch.float64)


def failed_judgement(info: Mapping[str, Any]) -> str:
    """The reason why verl's `rate_limited` manager has no reward for a row; '' where it has one.

    It then returns the score 0 and one of two more keys beside 'acc' (verl/experimental/
    reward_loop/reward_manager/limited.py, `run_single`); such a row is not scored.
    """
    if set(info) == {"timeout", "acc"}:
        return "timeout"
    return str(info["error"]) if set(info) == {"error", "acc"} else ""


def read_components(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> Tensor:
    """Read the reward components of each row, in the order of the objective's keys.

    Args:
      infos: what the reward returned for each row (verl's `reward_extra_info`).
      objective: names the components and says which may be absent.
      rows: what to call each row in an error.

    Returns:
      float64, shape (B, K), in reward units; NaN where not scored: None, NaN, an optional
      component that is absent, or a row without a reward (`failed_judgement`).

    Raises:
      ValueError: a component is absent, infinite or not a number; names key and row.
    """
    # A row without a judgement has none of the keys, which is no fault of the reward.
    nothing = dict.fromkeys(objective.keys)
    infos = [nothing if failed_judgement(info) else unnested(info) for info in infos]
    columns = [
        [_read(info, key, objective, row) for info, row in zip(infos, rows, strict=True)]
        for key in objective.keys
    ]
    return torch.tensor(columns, dtype=torch.float64).T.contiguous()


def _read(info: Mapping[str, Any], key: str, objective: Objective, row: str) -> float:
    if key not in info:
        if key in objective.optional:
            return math.nan
        remedy = (
            "Return it from compute_score on every path, failures included."
            if info
            else "An agent loop that sets reward_score itself must put the components into "
            "extra_fields['reward_extra_info']."
        )
        raise ValueError(
            f"algorithm.gdpo_reward_keys: the reward returned no {key!r} for row {row}, only "
            f"{sorted(info)}. {remedy}"
        )
    value = info[key]
    if value is None:
        return math.nan
    # Text is refused although float() would read "nan" and "1": a reward returns numbers.
    try:
        number = math.inf if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if abs(number) > LARGEST:
        raise ValueError(
            f"algorithm.gdpo_reward_keys: expected a finite number, None or NaN for {key!r}, found "
            f"{value!r} for row {row}. Numbers are at most {LARGEST:g} in size."
        )
    return _as_written(number, value)


def _as_written(number: float, value: Any) -> float:
    """0.7 for a half-precision 0.7, which as a float64 is 0.69921875 or 0.70019531."""
    dtype = torch.float16 if isinstance(value, np.float16) else getattr(value, "dtype", None)
    if dtype not in (torch.float16, torch.bfloat16):
        return number
    written = (float(f"{number:.{digits}g}") for digits in range(1, 6))
    return next((x for x in written if float(torch.tensor(x).to(dtype)) == number), number)
