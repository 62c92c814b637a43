"""The settings: which are read, which are rejected by full name, what a reward must return."""

import re

import numpy as np
import pytest
from omegaconf import OmegaConf

from gdpo_verl.advantage import EstimatorSettings, Gate
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component

FORMAT = Component("format", 0, 1)
CORRECTNESS = Component("correctness", -3, 3)
LENGTH = Component("length", 0, 1, optional=True)
BOTH = [FORMAT, CORRECTNESS]

# A node `algorithm` like verl's, with keys of gdpo among many others.
FULL = {
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


@pytest.mark.parametrize("kind", [dict, OmegaConf.create])
def test_every_key_is_read(kind):
    assert GdpoConfig.from_algorithm(kind(FULL)) == GdpoConfig(
        reward_keys=("correctness", "format"),
        reward_weights={"correctness": 1.0, "format": 0.5},
        conditions={"format": {"on": "correctness", "at_least": 1}},
        metrics=False,
        estimator=EstimatorSettings(scale=False, whiten="sequence", epsilon=1e-4),
    )


@pytest.mark.parametrize(
    "algorithm",
    [
        {},
        {"adv_estimator": "gdpo", "gamma": 0.5, "gdpo_reward_keys": None, "gdpo": None},
        OmegaConf.create({"gdpo_reward_weights": None, "gdpo": {"conditions": None}}),
    ],
)
def test_absent_settings_have_the_documented_defaults(algorithm):
    found = GdpoConfig.from_algorithm(algorithm)
    assert found == GdpoConfig(
        None, None, {}, True, "gdpo", {}, None, {}, {}, EstimatorSettings(epsilon=1e-6)
    )


KEYS, WEIGHTS = "gdpo_reward_keys", "gdpo_reward_weights"
TURNED = f"{{{KEYS}: [correctness, format], {WEIGHTS}: [2, -1e300]}}"


def read(text):
    """Read the settings of an `algorithm` section that a recipe could have."""
    return GdpoConfig.from_algorithm(OmegaConf.create(text))


def test_keys_and_values_that_yaml_changes_are_restored():
    # YAML 1.1 reads an unquoted on as true.
    for key in ("on", "'on'"):
        config = read(f"gdpo: {{conditions: {{length: {{{key}: correctness, at_least: 1.0}}}}}}")
        assert config.conditions == {"length": {"on": "correctness", "at_least": 1.0}}
    assert read(f"{{keys: [a, b], {KEYS}: '${{keys}}'}}").reward_keys == ("a", "b")


@pytest.mark.parametrize("returned", [None, ["score", "parse_error", "correctness", "format"]])
@pytest.mark.parametrize(
    ("settings", "declared", "expected"),
    [
        # The declared components count, whatever else is returned, and even if an optional one is
        # not returned.
        ("{}", [*BOTH, LENGTH], {"format": 1.0, "correctness": 1.0, "length": 1.0}),
        # Weights by name need no list of keys. A weight may be 0 or negative.
        (f"{WEIGHTS}: {{format: 0.5}}", BOTH, {"format": 0.5, "correctness": 1.0}),
        (f"{WEIGHTS}: {{format: 0}}", BOTH, {"format": 0.0, "correctness": 1.0}),
        (
            f"{{{KEYS}: [format, correctness], {WEIGHTS}: {{format: -1.0}}}}",
            BOTH,
            {"format": -1.0, "correctness": 1.0},
        ),
        # The list of keys determines the order, which a list of weights follows.
        (TURNED, [FORMAT, LENGTH, CORRECTNESS], {"correctness": 2.0, "format": -1e300}),
        (TURNED, [], {"correctness": 2.0, "format": -1e300}),
    ],
)
def test_components_are_the_named_or_the_declared_ones_with_their_weights(
    settings, declared, expected, returned
):
    objective = read(settings).resolve(declared, returned)
    assert objective.keys == tuple(expected)
    assert objective.weights == tuple(expected.values())
    assert objective.optional == {part.name for part in declared if part.optional}


@pytest.mark.parametrize(
    ("settings", "declared", "returned", "message"),
    [
        ("{}", [], None, "the reward declares no comp"),
        ("{}", [], ["score", "format"], r".* although it returns \['score', 'format'\]"),
        ("{}", BOTH, ["score", "format"], "'correctness' is not among"),
        (f"{KEYS}: [formt]", [], ["score", "format"], "'formt' is not .* Did you mean 'format'"),
    ],
)
def test_components_that_are_not_known_or_not_returned_are_rejected(
    settings, declared, returned, message
):
    with pytest.raises(ValueError, match=rf"^algorithm\.{KEYS}: {message}"):
        read(settings).resolve(declared, returned)


# ---------------------------------------------------------------- variants, gates, schedules


DECLARED = (CORRECTNESS, Component("length", 0, 1))
RAMP = "{from: 0.0, to: 1.0, steps: 200}"


def test_a_variant_with_its_settings_a_gate_and_a_schedule_are_read():
    found = read(
        "gdpo: {variant: dara, dara: {w_max: 3, symmetric: true}, "
        "gate: {on: correctness, when: failed}, "
        f"schedule: {{length: {RAMP}}}}}"
    )
    assert found.chosen_variant.settings == {"w_max": 3, "symmetric": True}
    objective = found.resolve(DECLARED)
    assert objective.gate == Gate(0, "failed")
    assert objective.weights_at(50) == (1.0, 0.25)
    assert objective.weights == (1.0, 1.0)  # the weights of the score
    gate = read("gdpo: {gate: {on: correctness}}").resolve(DECLARED).gate
    assert gate == Gate(0, "constant")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-3, 3, {"r": (-3.0, 3.0)}),
        # No lower end.
        (None, 1.0, {}),
        # A number of NumPy.
        (1, np.int64(2), {"r": (1.0, 2.0)}),
        (1.0, 1.0, {}),
    ],
)
def test_only_declared_finite_ranges_are_passed_on(low, high, expected):
    declared = [Component("r", low, high), Component("unused", 0, 1)]
    assert read(f"{{{KEYS}: [r, named]}}").resolve(declared).ranges == expected


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (RAMP, [0.0, 0.25, 1.0, 1.0]),
        # (1 - cos(pi / 4)) / 2.
        ("{from: 0.0, to: 1.0, steps: 200, shape: cosine}", [0.0, 0.1464466, 1.0, 1.0]),
        ("{steps: [10, 50, 200], weights: [2.0, 1.0, -1.0]}", [2.0, 1.0, -1.0, -1.0]),
    ],
)
def test_a_schedule_is_a_function_of_the_global_step(schedule, expected):
    objective = read(f"gdpo: {{schedule: {{length: {schedule}}}}}").resolve(DECLARED)
    found = [objective.weights_at(step)[1] for step in (0, 50, 200, 1000)]
    assert found == pytest.approx(expected, abs=1e-7)


def test_the_outcome_is_that_of_the_gate_else_of_all_conditions_else_has_a_usual_name():
    declared = [Component("solved"), Component("length"), CORRECTNESS]
    condition = {"length": {"on": "solved", "at_least": 1.0}}
    assert GdpoConfig().resolve(declared).outcome_column == 2
    assert GdpoConfig().resolve(declared[:2]).outcome_column is None
    assert GdpoConfig(conditions=condition).resolve(declared).outcome_column == 0
    gate = {"on": "length", "when": "constant"}
    assert GdpoConfig(conditions=condition, gate=gate).resolve(declared).outcome_column == 1


# ---------------------------------------------------------------- what is refused

ZERO = "{length: &zero {from: 0.0, to: 0.0, steps: 9}, correctness: *zero}"
DOWN = "{length: &down {from: 1.0, to: 0.0, steps: 5}, correctness: *down}"
OF_LENGTH = "gdpo.schedule.length"
OTHERS = r": a setting of the variant 'dara', but algorithm\.gdpo\.variant is 'gd2po'"
UNKNOWN = r"\.zzz: unknown key; known are \['variant', 'whiten', .* names of variants.$"
MODULE = r"\.x: expected pkg://module:function or FILE\.py:function, or it as \{function"
RANK = "pkg://gdpo_verl.rewards.derived:rank"
NEGATIVE = "{length: -0.5}"
TARGETS = "gdpo.sa_mrpo"
# A key, a value that is rejected, and the message after the key.
REFUSED = [
    ("gdpo", "{zzz: 1.0}", UNKNOWN),
    ("gdpo", "token", ": expected a mapping"),
    ("gdpo.whiten", "batch", r": .* of \['token', 'sequence', 'none'\], found 'batch'"),
    ("gdpo.credit", "step", r": .* of \['to_go', 'turn', 'answer'\], found 'step'"),
    ("gdpo.epsilon", "-1e-6", ": expected a number >= 0, found -1e-06"),
    ("gdpo.epsilon", ".nan", ": expected a number"),
    ("gdpo.epsilon", "true", ": expected a number"),
    ("gdpo.epsilon", "1e-4, variant: dvao", ": the variant 'dvao' has none"),
    ("gdpo.metrics", "'false'", ": expected true or false, found 'false'"),
    ("norm_adv_by_std_in_grpo", "1", ": expected true or false, found 1"),
    ("gdpo.conditions", "false", ": expected a mapping, found False"),
    ("gdpo.conditions", "{length: {on: len, at_least: 1}}", r"\.length: 'len' is not among"),
    (
        "gdpo.conditions",
        "{length: {on: correctness, at_least: 3.1}}",
        r"\.length\.at_least: expected a threshold from -3 to 3, .* found 3\.1",
    ),
    (
        "gdpo.conditions",
        "{length: [{on: correctness, at_least: 1}, {true: correctness, at_most: 4}]}",
        r"\.length\.at_most: expected a threshold from -3 to 3, .* found 4",
    ),
    (
        "gdpo.conditions",
        "{length: {on: correctness, equals: 1}, correctness: {on: length, equals: 1}}",
        ": the conditions form a cycle: (length -> correctness|correctness -> length)",
    ),
    ("gdpo.conditions", "'{length'", ": expected a mapping in JSON"),
    ("gdpo_reward_weight", "1.0", r": unknown.*mean 'gdpo_reward_weights'\?$"),
    ("gdpo_whiten", "1.0", r": unknown.*mean 'gdpo\.whiten'\?$"),
    (KEYS, "a", ": expected a list"),
    (KEYS, "[1]", ": expected distinct"),
    (KEYS, "[a, a]", ": expected distinct"),
    (KEYS, "[a, score]", ": .*'score'"),
    (KEYS, "[a, output]", ": 'output' cannot be the name of a component"),
    (WEIGHTS, "[2]", rf": a list of weights needs algorithm\.{KEYS}"),
    (WEIGHTS, "'2'", ": expected a list or"),
    (WEIGHTS, f"{{length: 1{'0' * 400}}}", ": expected finite numbers, found 1000"),
    (WEIGHTS, "{length: null}", ": expected finite numbers, found None for 'length'"),
    (WEIGHTS, f"[1, 2, 3], {KEYS}: [a, b]", rf": .* 2 weights, .*{KEYS} \['a', 'b'\], found 3"),
    (WEIGHTS, f"[1, .inf], {KEYS}: [a, b]", ": expected finite numbers, found inf for 'b'"),
    (WEIGHTS, "{length: 0, correctness: 0}", ": all are zero"),
    (WEIGHTS, "{lenght: 2}", r"\.lenght: 'lenght' is .* Did you mean 'length'\?"),
    (WEIGHTS, NEGATIVE + ", gdpo: {variant: dvao}", ": the variant 'dvao'"),
    (
        WEIGHTS,
        f"null, gdpo: {{variant: rvpo, schedule: {{length: {RAMP}}}}}",
        ": the variant 'rvpo' is not defined with different weights",
    ),
    (
        "gdpo.variant",
        f"sa_mrpo, derived: {{x: '{RANK}'}}",
        r": .* these have none: \['x'\].*Component\(name, low",
    ),
    (TARGETS, "{targets: {len: 0.9}}, variant: sa_mrpo", r"\.targets: 'len' is not among"),
    (TARGETS, "{targets: {length: 1.1}}, variant: sa_mrpo", r"\.targets\.length: .* at most 1"),
    (TARGETS, "{targets: {length: 0}}, variant: sa_mrpo", r"\.targets\.length: .* above 0"),
    (TARGETS, "{targets: 0.9}, variant: sa_mrpo", r"\.targets: expected \{component: target"),
    (TARGETS, "{targets_floor: 0.1}, variant: sa_mrpo", r"\.targets_floor: expected no floor"),
    ("gdpo.variant", "dvoa", r": expected one of .* Did you mean 'dvao'\?$"),
    ("gdpo.variant", "null", ": expected one of"),
    ("gdpo.dara", "{wmax: 2}, variant: dara", r"\.wmax: .* no such .* Did you mean 'w_max'\?$"),
    ("gdpo.dara", "{w_max: 2.0}, variant: gd2po", rf"\.w_max{OTHERS}"),
    ("gdpo.rvpo", "{k: 2.0}", r"\.k: a setting of .* is 'gdpo'"),
    ("gdpo.dara", "3, variant: dara", ": expected a mapping"),
    ("gdpo.gd2po", "{tau: 1.5}, variant: gd2po", r"\.tau: expected .* from 0 to 1, found 1\.5"),
    ("gdpo.dvoa", "{}", ": unknown key.* Did you mean 'dvao'"),
    ("gdpo.gate", "correctness", r": expected \{on: component\}"),
    ("gdpo.gate", "{on: length, wen: 1}", r"\.wen: .* 'when'\?$"),
    ("gdpo.gate", "{on: length, when: solved}", r"\.when: .* of \['constant', 'failed'\]"),
    ("gdpo.gate", "{on: corectness}", r"\.on: 'corectness' is not among .* mean 'correctness'"),
    ("gdpo.schedule", "3", ": expected"),
    ("gdpo.schedule", f"{{lenght: {RAMP}}}", r"\.lenght: 'lenght' is not .* mean 'length'"),
    ("gdpo.schedule", ZERO, ": at step 1 all weights are 0"),
    ("gdpo.schedule", DOWN, ": at step 5 all weights are 0"),
    (OF_LENGTH, "{from: 0.0, to: 1.0, steps: 0}", r"\.steps: expected .* above 0, found 0"),
    (OF_LENGTH, "{from: 0.0, to: 1.0, step: 5}", r"\.step: unknown .* Did you mean 'steps'"),
    (OF_LENGTH, "{from: 0.0, to: .inf, steps: 5}", r"\.to: expected a finite number"),
    (OF_LENGTH, "{from: 0, to: 1, steps: 5, shape: cubic}", r"\.shape: expected linear or cos"),
    (OF_LENGTH, "{steps: [0, 9, 5], weights: [1, 2, 3]}", r"\.steps: expected rising steps"),
    (OF_LENGTH, "{steps: [0, 9], weights: [1, 2, 3]}", r"\.weights: expected 2, one for each"),
    ("gdpo.derived", RANK, r": expected \{component: pkg"),
    ("gdpo.derived", "{x: group_functions:rank}", MODULE),
    ("gdpo.derived", "{x: {of: length}}", MODULE),
    (
        "gdpo.derived",
        f"{{x: {{function: '{RANK}', range: [1, 0]}}}}",
        r"\.x\.range: expected \[low",
    ),
    ("gdpo.derived", f"{{score: '{RANK}'}}", ": 'score' cannot be the name"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_a_bad_setting_is_rejected_with_its_full_key(key, value, message):
    for part in reversed(key.split(".")):
        value = f"{{{part}: {value}}}"
    with pytest.raises(ValueError, match=rf"^algorithm\.{re.escape(key)}{message}"):
        read(value).resolve(DECLARED)


@pytest.mark.parametrize(
    "settings",
    [
        f"gdpo: {{whiten: none, epsilon: 0, metrics: false, conditions: null}}, {KEYS}: [scores]",
        f"gdpo: {{whiten: sequence, epsilon: 1e-12}}, {KEYS}: ['1'], {WEIGHTS}: [-1]",
        f"norm_adv_by_std_in_grpo: true, {KEYS}: [a, b], {WEIGHTS}: [0, 1]",
        f"gdpo: {{}}, {WEIGHTS}: {{length: 2}}",
        f"gdpo: {{}}, {WEIGHTS}: '{{\"length\": 2}}'",
        f"gdpo: {{variant: dara}}, {WEIGHTS}: {NEGATIVE}",
    ],
)
def test_unusual_but_valid_settings_are_accepted(settings):
    read(f"{{{settings}}}").resolve(DECLARED)


def test_a_schedule_of_a_component_that_has_a_weight_is_rejected():
    settings = f"{{{WEIGHTS}: {NEGATIVE}, gdpo: {{schedule: {{length: {RAMP}}}}}}}"
    with pytest.raises(ValueError, match=r"schedule\.length: .* gives it -0\.5\. Remove"):
        read(settings).resolve(DECLARED)


def test_targets_are_set_by_name():
    found = read("gdpo: {variant: sa_mrpo, sa_mrpo: {targets: {length: 0.9}}}").resolve(DECLARED)
    assert found.settings_at(1).variant.settings["targets"] == [None, 0.9]


def test_a_condition_on_a_penalty_raises_a_warning(caplog):
    conditions = {"length": {"on": "format", "at_least": 1}}
    config = GdpoConfig.from_algorithm({"gdpo": {"conditions": conditions}})
    config.resolve([FORMAT, Component("length", -1, 1)])
    assert caplog.text == ""
    config.resolve([FORMAT, Component("length", -1, 0)])
    assert "algorithm.gdpo.conditions.length: 'length' is never above 0" in caplog.text
