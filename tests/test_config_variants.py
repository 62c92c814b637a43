"""The settings of variants, gates and schedules: what is read, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from omegaconf import OmegaConf
from test_config import CORRECTNESS, under_gdpo

from gdpo_verl.advantage import Gate
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards.components import Component

DECLARED = (CORRECTNESS, Component("length", 0, 1))
RAMP = {"length": {"from": 0.0, "to": 1.0, "steps": 200}}


@pytest.mark.parametrize("kind", [dict, OmegaConf.create], ids=["dict", "omegaconf"])
def test_a_variant_with_its_settings_a_gate_and_a_schedule_are_read(
    kind: Callable[[Any], Mapping[str, Any]],
) -> None:
    found = GdpoConfig.from_algorithm(
        kind(
            under_gdpo(
                variant="dara",
                dara={"w_max": 3, "symmetric": True},
                gate={"on": "correctness", "when": "failed"},
                schedule=RAMP,
            )
        )
    )
    assert found.estimator.settings == {"w_max": 3, "symmetric": True}
    objective = found.resolve(DECLARED)
    assert objective.gate == Gate(0, "failed")
    assert objective.weights_at(50) == (1.0, 0.25)
    assert objective.weights == (1.0, 1.0)  # the score's


def test_a_gate_is_read_from_yaml() -> None:
    found = GdpoConfig.from_algorithm(OmegaConf.create("gdpo: {gate: {on: correctness}}"))
    assert found.resolve(DECLARED).gate == Gate(0, "constant")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"variant": "dvoa"},
            r"^algorithm\.gdpo\.variant: expected one of .* Did you mean 'dvao'\?$",
        ),
        ({"variant": ["dvao"]}, r"^algorithm\.gdpo\.variant: expected one of"),
        ({"variant": None}, r"^algorithm\.gdpo\.variant: expected one of"),
        (
            {"variant": "dara", "dara": {"wmax": 2.0}},
            r"^algorithm\.gdpo\.dara\.wmax: .* has no such setting.* Did you mean 'w_max'\?$",
        ),
        (
            {"variant": "gd2po", "dara": {"w_max": 2.0}},
            r"^algorithm\.gdpo\.dara\.w_max: a setting of the variant 'dara', but "
            r"algorithm\.gdpo\.variant is 'gd2po'",
        ),
        ({"rvpo": {"k": 2.0}}, r"^algorithm\.gdpo\.rvpo\.k: a setting of .* is 'gdpo'"),
        ({"variant": "dara", "dara": 3}, r"^algorithm\.gdpo\.dara: expected a mapping"),
        (
            {"variant": "gd2po", "gd2po": {"tau": 1.5}},
            r"^algorithm\.gdpo\.gd2po\.tau: expected a finite number from 0 to 1, found 1\.5",
        ),
        (
            {"variant": "dvao", "epsilon": 1e-4},
            r"^algorithm\.gdpo\.epsilon: the variant 'dvao' has none",
        ),
        ({"gates": {"on": "length"}}, r"^algorithm\.gdpo\.gates: unknown .* Did you mean 'gate'"),
        ({"variants": "dvao"}, r"^algorithm\.gdpo\.variants: unknown .* Did you mean 'variant'"),
        ({"dvoa": {}}, r"^algorithm\.gdpo\.dvoa: unknown key.* Did you mean 'dvao'"),
        ({"gate": "correctness"}, r"^algorithm\.gdpo\.gate: expected \{on: component\}"),
        ({"gate": {"when": "failed"}}, r"^algorithm\.gdpo\.gate\.on: expected a component"),
        ({"gate": {"on": "length", "wen": 1}}, r"^algorithm\.gdpo\.gate\.wen: .* 'when'\?$"),
        (
            {"gate": {"on": "length", "when": "solved"}},
            r"^algorithm\.gdpo\.gate\.when: expected one of \['constant', 'failed'\]",
        ),
        (
            {"gate": {"on": "corectness"}},
            r"^algorithm\.gdpo\.gate\.on: 'corectness' is not among .* Did you mean 'correctness'",
        ),
        ({"schedule": 3}, r"^algorithm\.gdpo\.schedule: expected"),
        ({"schedule": {"length": 3}}, r"^algorithm\.gdpo\.schedule\.length: expected"),
        (
            {"schedule": {"length": {"from": 0.0, "to": 1.0}}},
            r"^algorithm\.gdpo\.schedule\.length\.steps: expected a number of steps above 0, found "
            "None",
        ),
        (
            {"schedule": {"length": {"from": 0.0, "to": 1.0, "step": 5}}},
            r"^algorithm\.gdpo\.schedule\.length\.step: unknown .* Did you mean 'steps'",
        ),
        (
            {"schedule": {"length": {"from": 0.0, "to": math.inf, "steps": 5}}},
            r"^algorithm\.gdpo\.schedule\.length\.to: expected a finite number",
        ),
        (
            {"schedule": {"length": {**RAMP["length"], "shape": "cubic"}}},
            r"^algorithm\.gdpo\.schedule\.length\.shape: expected linear or cosine",
        ),
        (
            {"schedule": {"length": {"steps": [0, 9, 5], "weights": [1, 2, 3]}}},
            r"^algorithm\.gdpo\.schedule\.length\.steps: expected rising steps",
        ),
        (
            {"schedule": {"length": {"steps": [0, 9], "weights": [1, 2, 3]}}},
            r"^algorithm\.gdpo\.schedule\.length\.weights: expected 2, one for each step",
        ),
        (
            {"schedule": {"lenght": RAMP["length"]}},
            r"^algorithm\.gdpo\.schedule\.lenght: not among .* Did you mean 'length'",
        ),
        (
            {
                "schedule": {
                    name: {**RAMP["length"], "to": 0.0} for name in ("length", "correctness")
                }
            },
            r"^algorithm\.gdpo\.schedule: at step 1 all weights are 0",
        ),
        (
            {
                "schedule": {
                    name: {"from": 1.0, "to": 0.0, "steps": 5} for name in ("length", "correctness")
                }
            },
            r"^algorithm\.gdpo\.schedule: at step 5 all weights are 0",
        ),
        (
            {"variant": "rvpo", "schedule": RAMP},
            r"^algorithm\.gdpo_reward_weights: the variant 'rvpo' .* undefined with weights",
        ),
    ],
)
def test_a_bad_variant_gate_or_schedule_is_refused_with_its_full_key(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        GdpoConfig.from_algorithm(under_gdpo(**settings)).resolve(DECLARED)


def test_sa_mrpo_without_declared_ranges_is_refused_with_the_remedy() -> None:
    config = GdpoConfig.from_algorithm(under_gdpo(variant="sa_mrpo"))
    declared = (CORRECTNESS, Component("length", 0))
    with pytest.raises(
        ValueError,
        match=r"algorithm\.gdpo\.variant: .* known for \['length'\].*Component\(name, low",
    ):
        config.resolve(declared)
    config.resolve(DECLARED)


def test_weights_are_held_against_the_variant() -> None:
    weights = {"gdpo_reward_weights": {"length": -0.5}}
    with pytest.raises(ValueError, match=r"^algorithm\.gdpo_reward_weights: the variant 'dvao'"):
        GdpoConfig.from_algorithm({**weights, **under_gdpo(variant="dvao")}).resolve(DECLARED)
    GdpoConfig.from_algorithm({**weights, **under_gdpo(variant="dara")}).resolve(DECLARED)


def test_a_schedule_beside_a_weight_is_refused() -> None:
    algorithm = {"gdpo_reward_weights": {"length": 0.5}, **under_gdpo(schedule=RAMP)}
    with pytest.raises(ValueError, match=r"schedule\.length: .* gives it 0\.5 besides"):
        GdpoConfig.from_algorithm(algorithm).resolve(DECLARED)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        pytest.param({"from": 0.0, "to": 1.0, "steps": 200}, [0.0, 0.25, 1.0, 1.0], id="linear"),
        # (1 - cos(pi / 4)) / 2.
        pytest.param(
            {"from": 0.0, "to": 1.0, "steps": 200, "shape": "cosine"},
            [0.0, 0.1464466, 1.0, 1.0],
            id="cosine",
        ),
        pytest.param(
            {"steps": [10, 50, 200], "weights": [2.0, 1.0, -1.0]}, [2.0, 1.0, -1.0, -1.0], id="list"
        ),
    ],
)
def test_a_schedule_is_a_function_of_the_global_step(
    schedule: dict[str, Any], expected: list[float]
) -> None:
    config = GdpoConfig.from_algorithm(under_gdpo(schedule={"length": schedule}))
    objective = config.resolve(DECLARED)
    found = [objective.weights_at(step)[1] for step in (0, 50, 200, 1000)]
    assert found == pytest.approx(expected, abs=1e-7)


def test_the_outcome_is_the_gate_s_else_the_conditions_else_a_usual_name() -> None:
    condition = {"length": {"on": "correctness", "at_least": 1.0}}
    named = (Component("solved", 0, 1), Component("length", 0, 1))
    assert GdpoConfig().resolve(DECLARED).outcome == "correctness"
    assert GdpoConfig().resolve(named).outcome is None
    assert GdpoConfig(conditions=condition).resolve(DECLARED).outcome == "correctness"
    gated = GdpoConfig(gate={"on": "length", "when": "constant"}).resolve(DECLARED)
    assert (gated.outcome, gated.outcome_column) == ("length", 1)
