"""Settings as a training has them: the recorded ones of a source, and those that are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gdpo_verl.advantage import GDPO, Decomposition, decompose, group_normalize
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import TOKENS, Component
from gdpo_verl.lab.replay.figures import Setting
from gdpo_verl.lab.replay.rows import Step, place_text
from gdpo_verl.lab.replay.sources import Layout, Source

ESTIMATORS = ("gdpo", "grpo")
# What TRL's `GRPOTrainer` may have done: its sum's advantage, without the deviation, and GDPO.
_TRLS = (
    {"adv_estimator": "grpo", "gdpo": {"epsilon": 1e-4}},
    {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False},
    {"adv_estimator": "gdpo", "gdpo": {"epsilon": 1e-4, "whiten": "sequence"}},
    {"adv_estimator": "gdpo", "gdpo": {"whiten": "token"}},
)


def parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    """The `algorithm` node of Hydra's overrides, as a training takes them.

    Raises:
      ValueError: one that Hydra refuses, or that is of another node.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    node = OmegaConf.create({})
    for override in overrides:
        try:
            (parsed,) = OverridesParser.create().parse_overrides([override])
        except HydraException as error:
            raise ValueError(f"{override}: {error}") from error
        key = str(parsed.key_or_group)
        if not key.startswith("algorithm."):
            raise ValueError(
                f"{key}: expected a setting of `algorithm`, which is computed from stored answers; "
                "another one makes other answers, and needs a training"
            )
        OmegaConf.update(node, key, parsed.value(), force_add=True)
    found = OmegaConf.to_container(node)
    assert isinstance(found, dict)
    algorithm: dict[str, Any] = found.get("algorithm", {})
    return algorithm


def setting_of(
    algorithm: Mapping[str, Any], layout: Layout, declared: Sequence[Component]
) -> Setting:
    """An `algorithm` node with the components of the rows.

    Raises:
      ValueError: names the key.
    """
    estimator = algorithm.get("adv_estimator", "gdpo")
    if estimator not in ESTIMATORS:
        raise ValueError(
            f"algorithm.adv_estimator: expected one of {list(ESTIMATORS)}, whose advantages follow "
            f"from rewards alone, found {estimator!r}"
        )
    config = GdpoConfig.from_algorithm(algorithm)
    known = {each.name: each for each in declared}
    components = [known.get(name, Component(name)) for name in layout.components]
    if config.reward_keys is not None:
        components = [each for each in components if each.name in config.reward_keys]
    return Setting(config.resolve(components, [*layout.components]), str(estimator))


def with_sequences(setting: Setting) -> Setting:
    """The setting with whitening over sequences, for rows without token counts."""
    config = setting.objective.config
    if not _whitens_tokens(config):
        return setting
    return replace(
        setting, objective=replace(setting.objective, config=replace(config, whiten="sequence"))
    )


def _whitens_tokens(config: GdpoConfig) -> bool:
    return (config.whiten or config.chosen_variant.whiten) == "token"


def recorded_algorithm(source: Source, layout: Layout) -> dict[str, Any]:
    """The recorded settings: a run's own, else GRPO's defaults; of the plug-in's dump GDPO's."""
    if source.algorithm is not None:
        algorithm = dict(source.algorithm)
        if algorithm.get("adv_estimator") not in ESTIMATORS:
            algorithm["adv_estimator"] = "grpo"
        return algorithm
    return {"adv_estimator": "gdpo" if layout.kind == "run" else "grpo"}


def advantage_column(setting: Setting, layout: Layout) -> str:
    """The column of the advantage that a setting trained with; '' where there is none."""
    if layout.kind != "run":
        return "advantage" if "advantage" in layout.columns else ""
    variant = setting.objective.config.chosen_variant
    name = setting.estimator if variant is GDPO or setting.estimator == "grpo" else variant.name
    column = f"{name}_advantage"
    return column if column in layout.columns else ""


def fitted_weights(step: Step, setting: Setting) -> tuple[float, ...] | None:
    """The weights with which the components add up to the scores within groups; None for none."""
    raw = step.components(setting.objective).nan_to_num(0.0)
    score = torch.tensor(step.score, dtype=torch.float64)[:, None]
    if bool(score.isnan().any()):
        return setting.objective.weights
    centred = group_normalize(raw, step.groups, scale=False)
    target = group_normalize(score, step.groups, scale=False)
    declared = torch.tensor(setting.objective.weights, dtype=torch.float64)[:, None]
    solution = torch.linalg.lstsq(centred, target, driver="gelsd").solution
    largest = float(target.abs().max())
    for weights in (declared, solution):
        if float((centred @ weights - target).abs().max()) <= 1e-5 * max(largest, 1.0):
            return tuple(round(weight, 6) for weight in weights[:, 0].tolist())
    return None


def closest_of_trl(
    step: Step, layout: Layout, declared: Sequence[Component], weights: Any
) -> dict[str, Any]:
    """Find the settings of TRL's trainer that make the logged advantages.

    TRL logs no weights: they are all 1, or those that are asked for.
    """

    def difference(algorithm: dict[str, Any]) -> float:
        setting = with_sequences(setting_of(algorithm, layout, declared))
        found = setting.advantage(decomposed(setting, step, list(range(len(step.groups)))))
        logged = torch.tensor(step.recorded, dtype=torch.float64)
        return float((found - logged).abs().nan_to_num(0.0).max())

    weighted = [each | {"gdpo_reward_weights": weights} for each in _TRLS if weights]
    return min([*_TRLS, *weighted], key=difference)


def decomposed(setting: Setting, step: Step, rows: Sequence[int]) -> Decomposition:
    """Decompose some rows of a step, whitened together."""
    objective = setting.objective
    raw = step.components(objective)[list(rows)]
    config = objective.config
    for row in rows:
        if step.tokens[row] != step.tokens[row] and _whitens_tokens(config):
            raise ValueError(f"{place_text(step.places[row])}: expected {TOKENS}, found none")
    # Without them every sequence counts alike.
    tokens = torch.tensor([step.tokens[row] for row in rows], dtype=torch.float64).nan_to_num(1.0)
    return decompose(
        raw,
        [step.groups[row] for row in rows],
        tokens,
        conditioned=objective.conditioned(raw),
        **objective.settings_at(step.number),
    )
