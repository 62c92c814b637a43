"""An estimator with its settings, and those that stored responses were made with."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition, Turns, group_normalize
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.config.components import ADVANTAGE, BY_TURN, TOKENS
from gdpo_verl.lab.rundir.responses import Batch
from gdpo_verl.lab.rundir.source import Source
from gdpo_verl.reward_dicts import decompose_by_turn, graded_criteria, read_components, turn_lists

ESTIMATORS = ("gdpo", "grpo")
_TRLS_EPSILON = 1e-4
# What TRL's `GRPOTrainer` may have computed: GRPO with the deviation of the group, without one, or
# GDPO.
_TRLS: list[dict[str, Any]] = [
    {"adv_estimator": "grpo", "gdpo": {"epsilon": _TRLS_EPSILON}},
    {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False},
    {"adv_estimator": "gdpo", "gdpo": {"epsilon": _TRLS_EPSILON, "whiten": "sequence"}},
    {"adv_estimator": "gdpo"},
]


@dataclass(frozen=True)
class Setting:
    """An estimator with its components and settings.

    Attributes:
      objective: components, weights, conditions, variant.
      estimator: `gdpo` or `grpo`, as `algorithm.adv_estimator`.
      by_batch: GRPO's sum is divided by its deviation over the batch (TRL's scale_rewards="batch").
    """

    objective: Objective
    estimator: str
    by_batch: bool = False

    @property
    def name(self) -> str:
        """The estimator or its variant, for people."""
        variant = self.objective.config.chosen_variant.name
        return variant if self.estimator == "gdpo" else self.estimator

    @property
    def whiten(self) -> str:
        """The unit of the whitening: `token`, `sequence` or `none`."""
        config = self.objective.config
        return config.estimator.whiten or config.chosen_variant.whiten

    @property
    def column(self) -> str:
        """The column of our dumps that holds the advantage."""
        return f"{self.name}{ADVANTAGE}"

    def decompose(self, batch: Batch) -> Decomposition:
        """Decompose a batch under these settings; ValueError names file and line."""
        tokens = batch.numbers(TOKENS)
        uncounted = tokens.isnan()
        if self.whiten == "token" and bool(uncounted.any()):
            row = int(uncounted.nonzero()[0])
            raise ValueError(f"{batch.places[row]}: expected {TOKENS}, found none")
        graded = graded_criteria(batch.rewards, self.objective, batch.places)
        raw = self._read(batch, tokens, graded)
        # Without token counts every response has the same weight.
        counts = tokens.nan_to_num(1.0)
        return self.objective.decompose(raw, batch.groups, counts, batch.step, graded, batch.places)

    def _read(self, batch: Batch, tokens: Tensor, graded: Mapping[str, Any]) -> Tensor:
        """Return the components of a batch: shape (B, K).

        A derived component that the rows hold is read; another one is computed.
        """
        infos = batch.rewards
        config = self.objective.config
        held = {key for info in infos for key in info}
        derived = {name: each for name, each in config.derived.items() if name not in held}
        objective = replace(self.objective, config=replace(config, derived=derived))
        raw = read_components(infos, objective, batch.places, graded)
        lengths = [None if count != count else int(count) for count in tokens.tolist()]
        return objective.with_derived(raw, infos, lengths, batch.groups)

    def advantage(self, decomposition: Decomposition, batch: Batch | None = None) -> Tensor:
        """Return the final advantage, per turn its mean over a response's tokens: shape (B,).

        Args:
          batch: the batch that was decomposed; without it no credit is given per turn.

        Raises:
          ValueError: the token counts of a response's turns are unknown; names file and line.
        """
        score = decomposition.score[decomposition.scored]
        if self.by_batch and len(score) > 1:
            return decomposition.grpo / (score.std() + _TRLS_EPSILON)
        if self.estimator != "gdpo":
            return decomposition.grpo
        if batch is None or not self.objective.credits_turns:
            return decomposition.advantage
        column = f"{TOKENS}{BY_TURN}"
        tokens: list[Any] = [each.row.get(column) for each in batch.responses]
        for place, counts in zip(batch.places, tokens, strict=True):
            if counts is None:
                raise ValueError(
                    f"{place}: expected {column}, found none. Set algorithm.gdpo.credit=answer"
                )
        turns = Turns.of(tokens)
        lists = turn_lists(batch.rewards, self.objective, batch.places)
        by_turn = decompose_by_turn(decomposition, lists, self.objective, batch.places, turns)
        return by_turn.advantage

    def terms(self, decomposition: Decomposition) -> Tensor:
        """Return the terms whose sum is the advantage before whitening: shape (B, K)."""
        return decomposition.terms if self.estimator == "gdpo" else decomposition.grpo_terms


def recorded_setting(source: Source, asked: Objective | None = None) -> Setting:
    """Return the settings that a source was made with.

    A run has its own settings, a dump of stock verl has GRPO's defaults, and completions of TRL's
    `GRPOTrainer` have those settings that give the advantages of the first batch that has any.

    Args:
      asked: its weights may be those of TRL's trainer, which logs none.
    """
    if source.columns.is_trls and source.algorithm is None:
        with contextlib.suppress(ValueError):  # who reads all batches gets this error
            for batch in source.batches():
                if bool(batch.numbers("advantage").nan_to_num(0.0).any()):
                    return _closest_of_trl(source, batch, asked)
    return setting_of(recorded_algorithm(source), source)


def recorded_algorithm(source: Source) -> dict[str, Any]:
    """Return the settings that a source was made with: its own, else GRPO's defaults."""
    algorithm = dict(source.algorithm or {})
    if algorithm.get("adv_estimator") not in ESTIMATORS:
        known = source.columns.is_ours and source.algorithm is None
        algorithm["adv_estimator"] = "gdpo" if known else "grpo"
    return algorithm


def setting_of(algorithm: Any, source: Source) -> Setting:
    """Return the settings of an `algorithm` node, a dict or OmegaConf's, for a source.

    Raises:
      ValueError: names the key.
    """
    estimator = algorithm.get("adv_estimator", ESTIMATORS[0])
    if estimator not in ESTIMATORS:
        raise ValueError(
            f"algorithm.adv_estimator: expected one of {list(ESTIMATORS)}, whose advantages follow "
            f"from rewards alone, found {estimator!r}"
        )
    config = GdpoConfig.from_algorithm(algorithm)
    over = config.estimator.whiten or config.chosen_variant.whiten
    if over == "token" and not source.counts_tokens:
        config = replace(config, estimator=replace(config.estimator, whiten="sequence"))
    # The rows hold the derived components of their run, which no reward function returned.
    components = [each for each in source.components if each.name not in config.derived]
    returned = [each.name for each in components]
    if config.reward_keys is not None:
        components = [each for each in components if each.name in config.reward_keys]
    return Setting(config.resolve(components, returned), str(estimator))


def _closest_of_trl(source: Source, batch: Batch, asked: Objective | None) -> Setting:
    """Return the settings of TRL's trainer that give the logged advantages of a batch.

    Either all weights are 1, or they are those that are asked for.
    """
    logged = batch.numbers("advantage")

    def difference(setting: Setting) -> float:
        found = setting.advantage(setting.decompose(batch), batch)
        return float((found - logged).abs().nan_to_num(0.0).max())

    algorithms = list(_TRLS)
    if asked is not None:
        weights = dict(zip(asked.keys, asked.weights, strict=True))
        algorithms += [each | {"gdpo_reward_weights": weights} for each in _TRLS]
    settings = [setting_of(each, source) for each in algorithms]
    for each in list(settings):
        if not each.objective.config.estimator.scale:
            settings.append(replace(each, by_batch=True))
    return min(settings, key=difference)


def grpo_of_score(
    setting: Setting, score: Tensor, decomposition: Decomposition
) -> tuple[Tensor, Decomposition | None]:
    """Return GRPO's advantage of the dumped score, and the components with its weights.

    With these weights the components add up to the score within groups. The second value is None
    where no weights do.

    Args:
      score: float64, shape (B,), in reward units.
    """
    groups = decomposition.groups
    estimator = setting.objective.config.estimator
    normal = group_normalize(
        score[:, None], groups, epsilon=estimator.epsilon, scale=estimator.scale
    )
    components = group_normalize(decomposition.rewards.nan_to_num(0.0), groups, scale=False)
    target = group_normalize(score[:, None], groups, scale=False)
    weights = torch.linalg.lstsq(components, target, driver="gelsd").solution
    error = (components @ weights - target).abs().max()
    advantage = normal[:, 0].nan_to_num(0.0)
    if bool(error > 1e-5 * target.abs().max().clamp(min=1.0)):
        return advantage, None
    return advantage, replace(decomposition, weights=weights[:, 0])
