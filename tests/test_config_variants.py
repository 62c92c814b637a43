"""The settings of variants, gates and schedules: what is read, and what is refused."""

from __future__ import annotations

import re

import pytest
from test_config import CORRECTNESS, read, setting

from gdpo_verl.advantage import Gate
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards.components import Component

DECLARED = (CORRECTNESS, Component("length", 0, 1))
RAMP = "{from: 0.0, to: 1.0, steps: 200}"


def test_a_variant_with_its_settings_a_gate_and_a_schedule_are_read() -> None:
    found = read(
        "gdpo: {variant: dara, dara: {w_max: 3, symmetric: true}, "
        "gate: {on: correctness, when: failed}, "
        f"schedule: {{length: {RAMP}}}}}"
    )
    assert found.estimator.settings == {"w_max": 3, "symmetric": True}
    objective = found.resolve(DECLARED)
    assert objective.gate == Gate(0, "failed")
    assert objective.weights_at(50) == (1.0, 0.25)
    assert objective.weights == (1.0, 1.0)  # the score's
    gate = read("gdpo: {gate: {on: correctness}}").resolve(DECLARED).gate
    assert gate == Gate(0, "constant")


# A key under algorithm.gdpo, its value, and how the message goes on behind the key.
LENGTH = "schedule.length"
ZERO = "{length: &zero {from: 0.0, to: 0.0, steps: 9}, correctness: *zero}"
DOWN = "{length: &down {from: 1.0, to: 0.0, steps: 5}, correctness: *down}"
OTHERS = r": a setting of the variant 'dara', but algorithm\.gdpo\.variant is 'gd2po'"
INVALID = [
    ("variant", "dvoa", r": expected one of .* Did you mean 'dvao'\?$"),
    ("variant", "[dvao]", ": expected one of"),
    ("variant", "null", ": expected one of"),
    ("dara", "{wmax: 2.0}, variant: dara", r"\.wmax: .* no such setting.* Did you mean 'w_max'\?$"),
    ("dara", "{w_max: 2.0}, variant: gd2po", rf"\.w_max{OTHERS}"),
    ("rvpo", "{k: 2.0}", r"\.k: a setting of .* is 'gdpo'"),
    ("dara", "3, variant: dara", ": expected a mapping"),
    ("gd2po", "{tau: 1.5}, variant: gd2po", r"\.tau: expected .* number from 0 to 1, found 1\.5"),
    ("epsilon", "1e-4, variant: dvao", ": the variant 'dvao' has none"),
    ("gates", "{on: length}", ": unknown .* Did you mean 'gate'"),
    ("variants", "dvao", ": unknown .* Did you mean 'variant'"),
    ("dvoa", "{}", ": unknown key.* Did you mean 'dvao'"),
    ("gate", "correctness", r": expected \{on: component\}"),
    ("gate", "{when: failed}", r"\.on: expected a component"),
    ("gate", "{on: length, wen: 1}", r"\.wen: .* 'when'\?$"),
    ("gate", "{on: length, when: solved}", r"\.when: expected one of \['constant', 'failed'\]"),
    ("gate", "{on: corectness}", r"\.on: 'corectness' is not among .* mean 'correctness'"),
    ("schedule", "3", ": expected"),
    (LENGTH, "3", ": expected"),
    (LENGTH, "{from: 0.0, to: 1.0}", r"\.steps: expected a number of steps above 0, found None"),
    (LENGTH, "{from: 0.0, to: 1.0, steps: 0}", r"\.steps: expected .* above 0, found 0"),
    (LENGTH, "{from: 0.0, to: 1.0, step: 5}", r"\.step: unknown .* Did you mean 'steps'"),
    (LENGTH, "{from: 0.0, to: .inf, steps: 5}", r"\.to: expected a finite number"),
    (LENGTH, "{from: 0, to: 1, steps: 5, shape: cubic}", r"\.shape: expected linear or cosine"),
    (LENGTH, "{steps: [0, 9, 5], weights: [1, 2, 3]}", r"\.steps: expected rising steps"),
    (LENGTH, "{steps: [0, 9], weights: [1, 2, 3]}", r"\.weights: expected 2, one for each step"),
    ("schedule", f"{{lenght: {RAMP}}}", r"\.lenght: not among .* Did you mean 'length'"),
    ("schedule", ZERO, ": at step 1 all weights are 0"),
    ("schedule", DOWN, ": at step 5 all weights are 0"),
]


@pytest.mark.parametrize(
    ("key", "value", "message"), INVALID, ids=[f"{key}: {value}" for key, value, _ in INVALID]
)
def test_a_bad_variant_gate_or_schedule_is_refused_with_its_full_key(
    key: str, value: str, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.gdpo\.{re.escape(key)}{message}"):
        read(setting(f"gdpo.{key}", value)).resolve(DECLARED)


def test_sa_mrpo_without_declared_ranges_is_refused_with_the_remedy() -> None:
    config = read("gdpo: {variant: sa_mrpo}")
    declared = (CORRECTNESS, Component("length", 0))
    with pytest.raises(
        ValueError,
        match=r"algorithm\.gdpo\.variant: .* known for \['length'\].*Component\(name, low",
    ):
        config.resolve(declared)
    config.resolve(DECLARED)


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
    condition = {"length": {"on": "correctness", "at_least": 1.0}}
    named = (Component("solved", 0, 1), Component("length", 0, 1))
    assert GdpoConfig().resolve(DECLARED).outcome == "correctness"
    assert GdpoConfig().resolve(named).outcome is None
    assert GdpoConfig(conditions=condition).resolve(DECLARED).outcome == "correctness"
    gated = GdpoConfig(gate={"on": "length", "when": "constant"}).resolve(DECLARED)
    assert (gated.outcome, gated.outcome_column) == ("length", 1)
