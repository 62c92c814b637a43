"""Rewards as dicts of named components, as trainers and environments hand them over.

`advantages_of` makes one advantage a response of them, for any trainer.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gdpo_verl.advantage import decompose, factorize_groups
from gdpo_verl.advantage.checks import LARGEST
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.config.components import RESERVED, Component
from gdpo_verl.config.wording import VERL, Wording

# The key under which NeMo Gym and SkyRL hand over a dict of components.
NESTED = "reward_components"
_NO_COMPONENTS = (*RESERVED, "parse_error", NESTED)
# In a smaller batch a component's `most_unscored` is a share of this many responses.
FEWEST_RESPONSES = 20
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
    rewards: Sequence[Mapping[str, Any]],
    groups: Sequence[Hashable],
    token_counts: Sequence[int] | None = None,
    *,
    config: GdpoConfig | Mapping[str, Any] | None = None,
    components: Sequence[Component | str] = (),
    step: int | None = None,
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
      components: their names; with ranges, where a variant needs them.
      step: of the training, for scheduled weights; 1 is the first.

    Returns:
      B numbers, unitless; 0 where nothing is scored.

    Raises:
      ValueError: a component is absent, infinite or not a number, with the row; a setting is
        wrong, with its key; or no two responses share a prompt.
      RewardErrors: more responses lack a component than its `most_unscored` allows.
    """
    if isinstance(config, GdpoConfig):
        config = replace(config, wording=_DICTS)
    else:
        config = GdpoConfig.from_algorithm(config, _DICTS)
    if not len(rewards):
        return []
    rows = [str(row) for row in range(len(rewards))]
    _check_dicts(rewards, rows, _DICTS)
    # Nothing is named or declared: whatever the dicts hold is a component.
    if not components and config.reward_keys is None:
        names = (key for info in rewards for key in _own(info) if key not in _NO_COMPONENTS)
        components = list(dict.fromkeys(names))
    objective = config.resolve(components)
    if config.schedule and (step is None or step < 1):
        raise ValueError(
            "step: config.gdpo.schedule needs the number of the training step, 1 for the first; "
            f"found {step}"
        )
    raw = read_components(rewards, objective, rows)
    numbered = factorize_groups(groups, raw, "groups")
    # A response alone, as the last of a data set may be, has nothing to compare.
    largest = int(numbered.codes.bincount().max())
    objective.check_groups(largest if len(rows) > 1 else None)
    check_unscored(rewards, raw, objective)
    counts = [1] * len(rewards) if token_counts is None else list(token_counts)
    found = decompose(
        raw,
        numbered,
        torch.tensor(counts),
        conditioned=objective.conditioned(raw),
        **objective.settings_at(step or 0),
    )
    return found.advantage.tolist()


def _own(info: Mapping[str, Any]) -> Iterable[str]:
    """The keys of a dict among which its components are."""
    if NESTED not in info:
        return info
    nested = info[NESTED]
    return nested if isinstance(nested, Mapping) else ()


def _check_dicts(infos: Sequence[Any], rows: Sequence[str], wording: Wording) -> None:
    for info, row in zip(infos, rows, strict=True):
        if not isinstance(info, Mapping):
            raise ValueError(
                f"{wording.rewards}: expected a dict of components for row {row}, found {info!r}"
            )


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
    return float(weighted_sum(objective.conditioned(raw), objective)[0])


def weighted_sum(rewards: Tensor, objective: Objective) -> Tensor:
    """sum_k w_k r_k without schedules, an unscored component adding 0: (B, K) to (B,)."""
    return rewards.nan_to_num(0.0) @ torch.tensor(objective.weights, dtype=torch.float64)


def read_components(
    infos: Sequence[Mapping[str, Any]], objective: Objective, rows: Sequence[str]
) -> Tensor:
    """Read the reward components of each row, in the order of the objective's keys.

    Args:
      infos: what the reward returned for each row.
      objective: names the components and says which may be absent.
      rows: what to call each row in an error.

    Returns:
      float64, shape (B, K), in reward units; NaN where not scored: None, NaN, or an optional
      component that is absent.

    Raises:
      ValueError: a component is absent, infinite or not a number; names key and row.
    """
    _check_dicts(infos, rows, objective.config.wording)
    infos = [unnested(info) for info in infos]
    columns = [
        [_read(info, key, objective, row) for info, row in zip(infos, rows, strict=True)]
        for key in objective.keys
    ]
    return torch.tensor(columns, dtype=torch.float64).T.contiguous()


def check_unscored(infos: Sequence[Mapping[str, Any]], raw: Tensor, objective: Objective) -> None:
    """Raise RewardErrors where more rows lack a component than its `most_unscored` allows."""
    for key, most in objective.most_unscored.items():
        missing = raw[:, objective.keys.index(key)].isnan().nonzero()[:, 0].tolist()
        if len(missing) > most * max(len(raw), FEWEST_RESPONSES):
            error = infos[missing[-1]].get(f"{key}_error", "in the reward workers' log")
            raise RewardErrors(
                f"{len(missing)} of {len(raw)} responses of a batch have no {key!r}; at most "
                f"{most:.0%} may. See to the judge. The last error: {error}"
            )


def _read(info: Mapping[str, Any], key: str, objective: Objective, row: str) -> float:
    wording = objective.config.wording
    if key not in info:
        if key in objective.optional:
            return math.nan
        if NESTED in info:
            raise ValueError(
                f"{wording.rewards}: expected a dict of components as {NESTED!r} for row {row}, "
                f"found {info[NESTED]!r}"
            )
        remedy = wording.absent if info or wording is not VERL else _NO_REWARD
        raise ValueError(
            f"{wording.rewards}: the reward returned no {key!r} for row {row}, only "
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
            f"{wording.rewards}: expected a finite number, None or NaN for {key!r}, found "
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
