"""Read the settings that a user wants to try: overrides of `algorithm`, as in training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigTypeError

from gdpo_verl.config.parsing import refuse_unused
from gdpo_verl.config.wording import VERL
from gdpo_verl.lab.rundir.run import as_settings
from gdpo_verl.lab.rundir.settings import Setting, recorded_algorithm, setting_of
from gdpo_verl.lab.rundir.source import Source

Overrides: TypeAlias = Sequence[tuple[str, Any]]


def parse_overrides(overrides: Sequence[str]) -> Overrides:
    """Return the keys and values of Hydra's overrides of `algorithm`.

    Raises:
      ValueError: Hydra rejects an override, or an override belongs to another node or changes no
        advantage.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed = []
    for override in overrides:
        try:
            (parsed_override,) = parser.parse_overrides([override])
        except HydraException as error:
            raise ValueError(f"{override}: {error}") from error
        if parsed_override.is_sweep_override():
            raise ValueError(f"{override}: expected one value, found a sweep over several")
        key = str(parsed_override.key_or_group)
        if not key.startswith("algorithm."):
            raise ValueError(
                f"{key}: expected a setting of `algorithm`, whose effect follows from stored "
                "responses. Other settings lead to other responses, which need a training run"
            )
        parsed.append((key, parsed_override.value()))
    algorithm = with_overrides({}, parsed)
    others = {str(key): value for key, value in algorithm.items() if key != "adv_estimator"}
    refuse_unused(others, VERL.root)
    return parsed


def with_overrides(base: Mapping[str, Any], overrides: Overrides) -> DictConfig:
    """Return an `algorithm` node to which the overrides are applied in order, as by Hydra.

    Raises:
      ValueError: an override is a list where the node has a mapping, or the reverse, which Hydra
        does not merge. The message names the key.
    """
    node = OmegaConf.create({"algorithm": dict(base)})
    for key, value in overrides:
        try:
            OmegaConf.update(node, key, value, force_add=True)
        except ConfigTypeError as error:
            raise ValueError(
                f"{key}: expected a value like {OmegaConf.select(node, key)}, which the run has, "
                f"found {value}. Hydra does not merge a mapping and a list. Write the value as the "
                f"run does, or set {key}=null first."
            ) from error
    algorithm: DictConfig = node.algorithm
    return algorithm


def asked_setting(source: Source, overrides: Overrides) -> Setting:
    """Return the settings to try: the run's settings, or GDPO's defaults, with the overrides."""
    base = recorded_algorithm(source) if source.algorithm else {"adv_estimator": "gdpo"}
    merged = OmegaConf.to_container(with_overrides(base, overrides), resolve=False)
    return setting_of(as_settings(merged), source)
