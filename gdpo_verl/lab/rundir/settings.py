"""An estimator with its settings, and the settings under which stored responses were trained."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition, TurnDecomposition, Turns, group_normalize
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.config.components import ADVANTAGE, BY_TURN, TOKENS
from gdpo_verl.lab.rundir.responses import Batch
from gdpo_verl.lab.rundir.source import Source
from gdpo_verl.reward_dicts import decompose_by_turn, graded_criteria, read_components, turn_lists

ESTIMATORS = ("gdpo", "grpo")
_TRLS_EPSILON = 1e-4
# The ways in which TRL's `GRPOTrainer` may have computed its advantages: GRPO divided by the
# standard deviation of the group, GRPO without this division, and GDPO with or without whitening
# over responses.
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
      estimator: `gdpo` or `grpo`, as in `algorithm.adv_estimator`.
      by_batch: True if GRPO's score is divided by its standard deviation over the batch (TRL's
        scale_rewards="batch").
    """

    objective: Objective
    estimator: str
    by_batch: bool = False

    @property
    def name(self) -> str:
        """The name of the estimator or of its variant, for messages."""
        variant = self.objective.config.chosen_variant.name
        return variant if self.estimator == "gdpo" else self.estimator

    @property
    def whiten(self) -> str:
        """The unit of the whitening: `token`, `sequence` or `none`."""
        config = self.objective.config
        return config.estimator.whiten or config.chosen_variant.whiten

    @property
    def column(self) -> str:
        """The column of the plug-in's dumps that contains the advantage."""
        return f"{self.name}{ADVANTAGE}"

    def decompose(self, batch: Batch) -> Decomposition:
        """Decompose a batch under these settings.

        Raises:
          ValueError: a row lacks what the settings need; the message names file and line.
        """
        tokens = batch.numbers(TOKENS)
        uncounted = tokens.isnan()
        if self.whiten == "token" and bool(uncounted.any()):
            row = int(uncounted.nonzero()[0])
            raise ValueError(f"{batch.places[row]}: expected {TOKENS}, found none")
        graded = graded_criteria(batch.rewards, self.objective, batch.places)
        raw = self._read(batch, tokens, graded)
        # A response without a token count has the weight 1.
        counts = tokens.nan_to_num(1.0)
        return self.objective.decompose(raw, batch.groups, counts, batch.step, graded, batch.places)

    def _read(self, batch: Batch, tokens: Tensor, graded: Mapping[str, Any]) -> Tensor:
        """Return the components of a batch: shape (B, K).

        A derived component that the rows contain is read. Any other derived component is computed.
        """
        infos = batch.rewards
        config = self.objective.config
        stored = {key for info in infos for key in info}
        derived = {name: rule for name, rule in config.derived.items() if name not in stored}
        objective = replace(self.objective, config=replace(config, derived=derived))
        raw = read_components(infos, objective, batch.places, graded)
        lengths = [None if count != count else int(count) for count in tokens.tolist()]
        return objective.with_derived(raw, infos, lengths, batch.groups)

    def advantage(self, decomposition: Decomposition, batch: Batch | None = None) -> Tensor:
        """Return the final advantage of each response: shape (B,).

        With per-turn credit this is the mean of the advantage over the response's tokens.

        Args:
          batch: the batch that was decomposed; without it per-turn credit is not applied.

        Raises:
          ValueError: the token counts of a response's turns are unknown; the message names file
            and line.
        """
        score = decomposition.score[decomposition.scored]
        if self.by_batch and len(score) > 1:
            return decomposition.grpo / (score.std() + _TRLS_EPSILON)
        if self.estimator != "gdpo":
            return decomposition.grpo
        if batch is None:
            return decomposition.advantage
        return (self.by_turn(decomposition, batch) or decomposition).advantage

    def by_turn(self, decomposition: Decomposition, batch: Batch) -> TurnDecomposition | None:
        """Decompose the turns of a batch; None without per-turn credit.

        Raises:
          ValueError: the token counts of a response's turns are unknown; the message names file
            and line.
        """
        if not self.objective.credits_turns:
            return None
        column = f"{TOKENS}{BY_TURN}"
        tokens: list[Any] = [response.row.get(column) for response in batch.responses]
        for place, counts in zip(batch.places, tokens, strict=True):
            if counts is None:
                raise ValueError(
                    f"{place}: expected {column}, found none. Set algorithm.gdpo.credit=answer"
                )
        turns = Turns.of(tokens)
        lists = turn_lists(batch.rewards, self.objective, batch.places)
        return decompose_by_turn(decomposition, lists, self.objective, batch.places, turns)

    def terms(self, decomposition: Decomposition) -> Tensor:
        """Return the terms whose sum is the advantage before whitening: shape (B, K)."""
        return decomposition.terms if self.estimator == "gdpo" else decomposition.grpo_terms


def recorded_setting(source: Source, asked: Objective | None = None) -> Setting:
    """Return the settings under which the responses of a source were trained.

    A run has its own settings, and a dump of stock verl has GRPO's defaults. TRL's `GRPOTrainer`
    logs no settings. For its completions, the settings are those that best reproduce the logged
    advantages of the first batch with a nonzero advantage.

    Args:
      asked: settings whose weights are tried as well, because TRL's trainer logs no weights.
    """
    if source.columns.is_trls and source.algorithm is None:
        # The caller reads all batches, and gets the same error then.
        with contextlib.suppress(ValueError):
            for batch in source.batches():
                if bool(batch.numbers("advantage").nan_to_num(0.0).any()):
                    return _closest_of_trl(source, batch, asked)
    return setting_of(recorded_algorithm(source), source)


def recorded_algorithm(source: Source) -> dict[str, Any]:
    """Return the node `algorithm` of a source's run.

    An unknown estimator becomes GDPO if the plug-in has dumped the rows, else GRPO.
    """
    algorithm = dict(source.algorithm or {})
    if algorithm.get("adv_estimator") not in ESTIMATORS:
        dumped_by_plugin = source.columns.is_ours and source.algorithm is None
        algorithm["adv_estimator"] = "gdpo" if dumped_by_plugin else "grpo"
    return algorithm


def setting_of(algorithm: Any, source: Source) -> Setting:
    """Return the settings that an `algorithm` node, a dict or a DictConfig, has for a source.

    Raises:
      ValueError: a setting is wrong; the message names its key.
    """
    estimator = algorithm.get("adv_estimator", ESTIMATORS[0])
    if estimator not in ESTIMATORS:
        raise ValueError(
            f"algorithm.adv_estimator: expected one of {list(ESTIMATORS)}, whose advantages follow "
            f"from rewards alone, found {estimator!r}"
        )
    config = GdpoConfig.from_algorithm(algorithm)
    whiten = config.estimator.whiten or config.chosen_variant.whiten
    if whiten == "token" and not source.counts_tokens:
        config = replace(config, estimator=replace(config.estimator, whiten="sequence"))
    # The rows also contain the derived components of their run, which no reward function returned.
    components = [
        component for component in source.components if component.name not in config.derived
    ]
    returned = [component.name for component in components]
    return Setting(config.resolve(components, returned), str(estimator))


def _closest_of_trl(source: Source, batch: Batch, asked: Objective | None) -> Setting:
    """Return the settings of TRL's trainer that best reproduce the logged advantages of a batch.

    Two sets of weights are tried: 1 for each component, and the weights of `asked`.
    """
    logged = batch.numbers("advantage")

    def difference(setting: Setting) -> float:
        computed = setting.advantage(setting.decompose(batch), batch)
        return float((computed - logged).abs().nan_to_num(0.0).max())

    algorithms = list(_TRLS)
    if asked is not None:
        weights = dict(zip(asked.keys, asked.weights, strict=True))
        algorithms += [algorithm | {"gdpo_reward_weights": weights} for algorithm in _TRLS]
    settings = [setting_of(algorithm, source) for algorithm in algorithms]
    for setting in list(settings):
        if not setting.objective.config.estimator.scale:
            settings.append(replace(setting, by_batch=True))
    return min(settings, key=difference)


def grpo_of_score(
    setting: Setting, score: Tensor, decomposition: Decomposition
) -> tuple[Tensor, Decomposition | None]:
    """Return GRPO's advantage of the dumped score, and the decomposition with the score's weights.

    The weights are those with which the components add up to the score, apart from a constant in
    each group.

    Args:
      score: float64, shape (B,), in reward units.

    Returns:
      the advantage, shape (B,), and the decomposition; None instead of the decomposition if no
      weights reproduce the score.
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
