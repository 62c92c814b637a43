"""The settings: what is read, what is refused by its full name, what a reward must return."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from gdpo_verl.advantage import Gate
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component

FORMAT = Component("format", 0, 1)
CORRECTNESS = Component("correctness", -3, 3)
LENGTH = Component("length", 0, 1, optional=True)
BOTH = [FORMAT, CORRECTNESS]

# As verl's own node has it, gdpo's keys among many others.
FULL: dict[str, Any] = {
    "adv_estimator": "gdpo",
    "gamma": 1.0,
    "gdpo_reward_keys": ["correctness", "format"],
    "gdpo_reward_weights": [1.0, 0.5],
    "norm_adv_by_std_in_grpo": False,
    "gdpo": {
        "whiten": "sequence",
        "epsilon": 1e-4,
        "conditions": {"format": {"on": "correctness", "at_least": 1}},
        "metrics": False,
    },
}


@pytest.mark.parametrize("kind", [dict, OmegaConf.create], ids=["dict", "omegaconf"])
def test_every_key_is_read(kind: Callable[[Any], Mapping[str, Any]]) -> None:
    assert GdpoConfig.from_algorithm(kind(FULL)) == GdpoConfig(
        reward_keys=("correctness", "format"),
        reward_weights={"correctness": 1.0, "format": 0.5},
        scale=False,
        whiten="sequence",
        epsilon=1e-4,
        conditions={"format": {"on": "correctness", "at_least": 1}},
        metrics=False,
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"adv_estimator": "gdpo", "gamma": 0.5, "gdpo_reward_keys": None, "gdpo": None},
        OmegaConf.create({"gdpo_reward_weights": None, "gdpo": {"conditions": None}}),
    ],
    ids=["empty", "null", "omegaconf null"],
)
def test_what_is_not_given_has_the_documented_default(algorithm: Mapping[str, Any]) -> None:
    found = GdpoConfig.from_algorithm(algorithm)
    assert found == GdpoConfig(None, None, True, None, 1e-6, {}, True, "gdpo", {}, None, {})


KEYS, WEIGHTS = "gdpo_reward_keys", "gdpo_reward_weights"


def read(text: str) -> GdpoConfig:
    """The settings of an `algorithm` section as a recipe writes it."""
    return GdpoConfig.from_algorithm(OmegaConf.create(text))


def test_what_yaml_makes_of_a_key_or_a_value_is_undone() -> None:
    # YAML 1.1 takes an unquoted on for true.
    for key in ("on", "'on'"):
        config = read(f"gdpo: {{conditions: {{length: {{{key}: correctness, at_least: 1.0}}}}}}")
        assert config.conditions == {"length": {"on": "correctness", "at_least": 1.0}}
    assert read(f"{{keys: [a, b], {KEYS}: '${{keys}}'}}").reward_keys == ("a", "b")


@pytest.mark.parametrize("keys", ["null", "[format, correctness]"], ids=["declared", "named"])
@pytest.mark.parametrize("weight", [0.5, 0, -1.0], ids=str)
def test_a_weight_by_name_needs_no_keys_and_may_switch_off_or_turn_round(
    keys: str, weight: float
) -> None:
    objective = read(f"{{{KEYS}: {keys}, {WEIGHTS}: {{format: {weight}}}}}").resolve(BOTH)
    assert (objective.keys, objective.weights) == (("format", "correctness"), (weight, 1.0))


def setting(key: str, value: str) -> str:
    """The YAML that sets one key, whose sections are divided by dots."""
    for part in reversed(key.split(".")):
        value = f"{{{part}: {value}}}"
    return value


# A key that is none, and what was meant.
NEAREST = {
    "gdpo_reward_weight": "gdpo_reward_weights",
    "gdpo_whiten": "gdpo.whiten",
    "gdpo_gate": "gdpo.gate",
}
# A key, what it may be, what it may not be, and how the message goes on behind the key.
UNKNOWN = r"\.zzz: unknown key; known are \['variant', 'whiten', .* names of variants.$"
INVALID = [
    ("gdpo", "{epsilon: 1.0}", "{zzz: 1.0}", UNKNOWN),
    ("gdpo", "{}", "token", ": expected a mapping"),
    ("gdpo.whiten", "sequence", "batch", r": .* of \['token', 'sequence', 'none'\], found 'batch'"),
    ("gdpo.whiten", "none", "null", ": .* found None"),
    ("gdpo.epsilon", "0", "-1e-6", ": expected a number >= 0, found -1e-06"),
    ("gdpo.epsilon", "1e-12", ".nan", ": expected a number"),
    ("gdpo.epsilon", "1.0", "true", ": expected a number"),
    ("gdpo.metrics", "false", "'false'", ": expected true or false, found 'false'"),
    ("norm_adv_by_std_in_grpo", "true", "1", ": expected true or false, found 1"),
    ("gdpo.conditions", "null", "false", ": expected a mapping, found False"),
    (KEYS, "[a]", "a", ": expected a list"),
    (KEYS, "['1']", "[1]", ": expected distinct"),
    (KEYS, "[a, b]", "[a, a]", ": expected distinct"),
    (KEYS, "[a, scores]", "[a, score]", ": .*'score'"),
    (WEIGHTS, "{a: 2}", "[2]", rf": a list of weights needs algorithm\.{KEYS}"),
    (WEIGHTS, "null", "'2'", ": expected a list or"),
    (WEIGHTS, "{a: 1}", f"{{a: 1{'0' * 400}}}", ": expected finite numbers, found 1000"),
    (WEIGHTS, "{a: 1}", "{a: null}", ": expected finite numbers, found None for 'a'"),
    *[(key, "null", "1.0", f": unknown.*mean '{near}'\\?$") for key, near in NEAREST.items()],
]


@pytest.mark.parametrize(
    ("key", "valid", "invalid", "message"),
    INVALID,
    ids=[f"{key}={invalid[:40]}" for key, _, invalid, _ in INVALID],
)
def test_a_bad_setting_is_refused_with_its_full_key(
    key: str, valid: str, invalid: str, message: str
) -> None:
    read(setting(key, valid))
    with pytest.raises(ValueError, match=rf"^algorithm\.{re.escape(key)}{message}"):
        read(setting(key, invalid))


@pytest.mark.parametrize(
    ("valid", "invalid", "message"),
    [
        ("[1, 2]", "[1, 2, 3]", rf"2 weights, .*{KEYS} \['a', 'b'\], found 3"),
        ("{b: 2}", "[2]", "expected 2 weights"),
        ("[1, -1]", "[1, .inf]", "expected finite numbers, found inf for 'b'"),
        ("[0, 1]", "[0, 0.0]", "all are zero"),
    ],
)
def test_weights_are_held_against_the_keys(valid: str, invalid: str, message: str) -> None:
    read(f"{{{KEYS}: [a, b], {WEIGHTS}: {valid}}}")
    with pytest.raises(ValueError, match=rf"^algorithm\.{WEIGHTS}: .*{message}"):
        read(f"{{{KEYS}: [a, b], {WEIGHTS}: {invalid}}}")


@pytest.mark.parametrize("returned", [None, ["score", "parse_error", "correctness", "format"]])
def test_the_declared_components_are_the_default_whatever_else_is_returned(
    returned: list[str] | None,
) -> None:
    objective = GdpoConfig().resolve([FORMAT, CORRECTNESS, LENGTH], returned)
    assert objective.keys == ("format", "correctness", "length")
    assert objective.weights == (1.0, 1.0, 1.0)
    assert objective.optional == {"length"}  # which need not be returned


@pytest.mark.parametrize("declared", [[FORMAT, LENGTH, CORRECTNESS], []], ids=["declared", "not"])
def test_named_components_give_the_order_and_their_weights_follow_it(
    declared: list[Component],
) -> None:
    config = read(f"{{{KEYS}: [correctness, format], {WEIGHTS}: [2, -1e300]}}")
    for returned in (None, ["score", "format", "correctness"]):
        objective = config.resolve(declared, returned)
        assert objective.keys == ("correctness", "format")
        assert objective.weights == (2.0, -1e300)


def test_neither_declared_nor_named_is_refused_with_what_was_returned() -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.{KEYS}: the reward declares no comp"):
        GdpoConfig().resolve([])
    with pytest.raises(ValueError, match=r"although it returns \['score', 'format'\]"):
        GdpoConfig().resolve([], ["score", "format"])


@pytest.mark.parametrize(
    ("key", "value", "declared", "returned", "message"),
    [
        (KEYS, "[formt]", [], ["score", "format"], r": 'formt' is .* \['format'\]\. .* Did you"),
        (KEYS, "null", BOTH, ["score", "format"], r": 'correctness' is not among .* \['format'\]"),
        (WEIGHTS, "{formt: 2}", BOTH, None, r"\.formt: 'formt' is .* Did you mean 'format'\?"),
        (WEIGHTS, "{format: 0, correctness: 0}", BOTH, None, ": all are zero"),
        ("gdpo.conditions", "{format: {on: len, at_least: 1}}", BOTH, None, r"\.format: 'len' is"),
    ],
    ids=["not returned", "declared", "weight", "all weigh zero", "condition"],
)
def test_what_the_reward_does_not_have_is_refused(
    key: str, value: str, declared: list[Component], returned: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.{re.escape(key)}{message}"):
        read(setting(key, value)).resolve(declared, returned)


# ---------------------------------------------------------------- variants, gates, schedules


DECLARED = (CORRECTNESS, Component("length", 0, 1))
RAMP = "{from: 0.0, to: 1.0, steps: 200}"


def test_a_variant_with_its_settings_a_gate_and_a_schedule_are_read() -> None:
    found = read(
        "gdpo: {variant: dara, dara: {w_max: 3, symmetric: true}, "
        "gate: {on: correctness, when: failed}, "
        f"schedule: {{length: {RAMP}}}}}"
    )
    assert found.chosen_variant.settings == {"w_max": 3, "symmetric": True}
    objective = found.resolve(DECLARED)
    assert objective.gate == Gate(0, "failed")
    assert objective.weights_at(50) == (1.0, 0.25)
    assert objective.weights == (1.0, 1.0)  # the score's
    gate = read("gdpo: {gate: {on: correctness}}").resolve(DECLARED).gate
    assert gate == Gate(0, "constant")


# A key under algorithm.gdpo, its value, and how the message goes on behind the key.
OF_LENGTH = "schedule.length"
ZERO = "{length: &zero {from: 0.0, to: 0.0, steps: 9}, correctness: *zero}"
DOWN = "{length: &down {from: 1.0, to: 0.0, steps: 5}, correctness: *down}"
OTHERS = r": a setting of the variant 'dara', but algorithm\.gdpo\.variant is 'gd2po'"
INVALID_VARIANTS = [
    ("variant", "dvoa", r": expected one of .* Did you mean 'dvao'\?$"),
    ("variant", "null", ": expected one of"),
    ("dara", "{wmax: 2.0}, variant: dara", r"\.wmax: .* no such setting.* Did you mean 'w_max'\?$"),
    ("dara", "{w_max: 2.0}, variant: gd2po", rf"\.w_max{OTHERS}"),
    ("rvpo", "{k: 2.0}", r"\.k: a setting of .* is 'gdpo'"),
    ("dara", "3, variant: dara", ": expected a mapping"),
    ("gd2po", "{tau: 1.5}, variant: gd2po", r"\.tau: expected .* number from 0 to 1, found 1\.5"),
    ("epsilon", "1e-4, variant: dvao", ": the variant 'dvao' has none"),
    ("dvoa", "{}", ": unknown key.* Did you mean 'dvao'"),
    ("gate", "correctness", r": expected \{on: component\}"),
    ("gate", "{on: length, wen: 1}", r"\.wen: .* 'when'\?$"),
    ("gate", "{on: length, when: solved}", r"\.when: expected one of \['constant', 'failed'\]"),
    ("gate", "{on: corectness}", r"\.on: 'corectness' is not among .* mean 'correctness'"),
    ("schedule", "3", ": expected"),
    (OF_LENGTH, "{from: 0.0, to: 1.0, steps: 0}", r"\.steps: expected .* above 0, found 0"),
    (OF_LENGTH, "{from: 0.0, to: 1.0, step: 5}", r"\.step: unknown .* Did you mean 'steps'"),
    (OF_LENGTH, "{from: 0.0, to: .inf, steps: 5}", r"\.to: expected a finite number"),
    (OF_LENGTH, "{from: 0, to: 1, steps: 5, shape: cubic}", r"\.shape: expected linear or cosine"),
    (OF_LENGTH, "{steps: [0, 9, 5], weights: [1, 2, 3]}", r"\.steps: expected rising steps"),
    (OF_LENGTH, "{steps: [0, 9], weights: [1, 2, 3]}", r"\.weights: expected 2, one for each step"),
    ("schedule", f"{{lenght: {RAMP}}}", r"\.lenght: 'lenght' is not .* Did you mean 'length'"),
    ("schedule", ZERO, ": at step 1 all weights are 0"),
    ("schedule", DOWN, ": at step 5 all weights are 0"),
]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    INVALID_VARIANTS,
    ids=[f"{key}: {value}" for key, value, _ in INVALID_VARIANTS],
)
def test_a_bad_variant_gate_or_schedule_is_refused_with_its_full_key(
    key: str, value: str, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.gdpo\.{re.escape(key)}{message}"):
        read(setting(f"gdpo.{key}", value)).resolve(DECLARED)


def test_sa_mrpo_without_declared_ranges_is_refused_with_the_remedy() -> None:
    config = read("gdpo: {variant: sa_mrpo}")
    message = r"algorithm\.gdpo\.variant: .* known for \['length'\].*Component\(name, low"
    with pytest.raises(ValueError, match=message):
        config.resolve([CORRECTNESS, Component("length", 0)])
    config.resolve(DECLARED)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        pytest.param(-3, 3, {"r": (-3.0, 3.0)}, id="finite"),
        pytest.param(None, 1.0, {}, id="no lower end"),
        pytest.param(1, np.int64(2), {"r": (1.0, 2.0)}, id="of numpy"),
        pytest.param(1.0, 1.0, {}, id="a point"),
    ],
)
def test_only_declared_finite_ranges_are_carried(
    low: float | None, high: float | None, expected: dict[str, tuple[float, float]]
) -> None:
    declared = [Component("r", low, high), Component("unused", 0, 1)]
    assert read(f"{{{KEYS}: [r, named]}}").resolve(declared).ranges == expected


def test_weights_are_held_against_the_variant() -> None:
    weights = "gdpo_reward_weights: {length: -0.5}"
    with pytest.raises(ValueError, match=r"^algorithm\.gdpo_reward_weights: the variant 'dvao'"):
        read(f"{{{weights}, gdpo: {{variant: dvao}}}}").resolve(DECLARED)
    read(f"{{{weights}, gdpo: {{variant: dara}}}}").resolve(DECLARED)
    scheduled = f"schedule: {{length: {RAMP}}}"
    with pytest.raises(ValueError, match=r"weights: the variant 'rvpo' .* undefined with weights"):
        read(f"gdpo: {{variant: rvpo, {scheduled}}}").resolve(DECLARED)
    with pytest.raises(ValueError, match=r"schedule\.length: .* gives it -0\.5\. Remove"):
        read(f"{{{weights}, gdpo: {{{scheduled}}}}}").resolve(DECLARED)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (RAMP, [0.0, 0.25, 1.0, 1.0]),
        # (1 - cos(pi / 4)) / 2.
        ("{from: 0.0, to: 1.0, steps: 200, shape: cosine}", [0.0, 0.1464466, 1.0, 1.0]),
        ("{steps: [10, 50, 200], weights: [2.0, 1.0, -1.0]}", [2.0, 1.0, -1.0, -1.0]),
    ],
    ids=["linear", "cosine", "list"],
)
def test_a_schedule_is_a_function_of_the_global_step(schedule: str, expected: list[float]) -> None:
    objective = read(f"gdpo: {{schedule: {{length: {schedule}}}}}").resolve(DECLARED)
    found = [objective.weights_at(step)[1] for step in (0, 50, 200, 1000)]
    assert found == pytest.approx(expected, abs=1e-7)


def test_the_outcome_is_the_gate_s_else_the_conditions_else_a_usual_name() -> None:
    declared = [Component("solved"), Component("length"), CORRECTNESS]
    condition = {"length": {"on": "solved", "at_least": 1.0}}
    assert GdpoConfig().resolve(declared).outcome_column == 2
    assert GdpoConfig().resolve(declared[:2]).outcome_column is None
    assert GdpoConfig(conditions=condition).resolve(declared).outcome_column == 0
    gate = {"on": "length", "when": "constant"}
    assert GdpoConfig(conditions=condition, gate=gate).resolve(declared).outcome_column == 1
