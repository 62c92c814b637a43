"""The settings: what is read, what is refused by its full name, what a reward must return."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from omegaconf import OmegaConf

from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards.components import Component
from gdpo_verl.text import did_you_mean

FORMAT = Component("format", 0, 1)
CORRECTNESS = Component("correctness", -3, 3)
LENGTH = Component("length", 0, 1, optional=True)

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
        OmegaConf.create({"gdpo": {}}),
    ],
    ids=["empty", "null", "omegaconf null", "omegaconf empty"],
)
def test_what_is_not_given_has_the_documented_default(algorithm: Mapping[str, Any]) -> None:
    found = GdpoConfig.from_algorithm(algorithm)
    assert found == GdpoConfig(None, None, True, None, 1e-6, {}, True, "gdpo", {}, None, {})


@pytest.mark.parametrize("key", ["on", "'on'"], ids=["unquoted", "quoted"])
def test_conditions_are_read_from_yaml(key: str) -> None:
    # YAML 1.1 takes an unquoted on for true.
    text = f"gdpo: {{conditions: {{length: {{{key}: correctness, at_least: 1.0}}}}}}"
    config = GdpoConfig.from_algorithm(OmegaConf.create(text))
    assert config.conditions == {"length": {"on": "correctness", "at_least": 1.0}}


def test_interpolations_are_resolved() -> None:
    algorithm = OmegaConf.create({"keys": ["a", "b"], "gdpo_reward_keys": "${keys}"})
    assert GdpoConfig.from_algorithm(algorithm).reward_keys == ("a", "b")


@pytest.mark.parametrize("keys", [None, ["format", "correctness"]], ids=["declared", "named"])
@pytest.mark.parametrize("weight", [0.5, 0, 0.0, -1.0], ids=str)
def test_a_weight_by_name_needs_no_keys_and_may_switch_off_or_turn_round(
    keys: list[str] | None, weight: float
) -> None:
    algorithm = {"gdpo_reward_keys": keys, "gdpo_reward_weights": {"format": weight}}
    objective = GdpoConfig.from_algorithm(algorithm).resolve([FORMAT, CORRECTNESS])
    assert (objective.keys, objective.weights) == (("format", "correctness"), (weight, 1.0))


KEYS, WEIGHTS = "gdpo_reward_keys", "gdpo_reward_weights"


def read(text: str) -> GdpoConfig:
    """The settings of an `algorithm` section as a recipe writes it."""
    return GdpoConfig.from_algorithm(OmegaConf.create(text))


def setting(key: str, value: str) -> str:
    """The YAML that sets one key, whose sections are divided by dots."""
    for part in reversed(key.split(".")):
        value = f"{{{part}: {value}}}"
    return value


# A key that is none, and what was meant.
NEAREST = {
    "gdpo_reward_weight": "gdpo_reward_weights",
    "gdpo_weights": "gdpo_reward_weights",
    "gdpo_whiten": "gdpo.whiten",
    "gdpo_conditions": "gdpo.conditions",
    "gdpo_gate": "gdpo.gate",
}
# A key, what it may be, what it may not be, and how the message goes on behind the key.
UNKNOWN = r"\.zzz: unknown key; known are \['variant', 'whiten', .* names of variants.$"
INVALID = [
    ("gdpo", "{epsilon: 1.0}", "{zzz: 1.0}", UNKNOWN),
    ("gdpo", "{}", "token", ": expected a mapping"),
    ("gdpo", "null", "false", ": expected a mapping"),
    ("gdpo.whiten", "sequence", "batch", r": .* of \['token', 'sequence', 'none'\], found 'batch'"),
    ("gdpo.whiten", "none", "null", ": .* found None"),
    ("gdpo.epsilon", "0", "-1e-6", ": expected a number >= 0, found -1e-06"),
    ("gdpo.epsilon", "1", "'1e-6'", ": "),
    ("gdpo.epsilon", "1e-12", ".nan", ": "),
    ("gdpo.epsilon", "1.0", "true", ": "),
    ("gdpo.metrics", "false", "'false'", ": expected true or false, found 'false'"),
    ("norm_adv_by_std_in_grpo", "true", "1", ": expected true or false, found 1"),
    ("gdpo.conditions", "{}", "[length]", ": expected a mapping"),
    ("gdpo.conditions", "null", "false", ": expected a mapping, found False"),
    (KEYS, "[a]", "a", ": expected a list"),
    (KEYS, "[a]", "[]", ": expected a list"),
    (KEYS, "['1']", "[1]", ": expected distinct"),
    (KEYS, "[a, b]", "[a, a]", ": expected distinct"),
    (KEYS, "[a, scores]", "[a, score]", ": .*'score'"),
    (WEIGHTS, "{a: 2}", "[2]", rf": a list of weights needs algorithm\.{KEYS}"),
    (WEIGHTS, "null", "'2'", ": expected a list or"),
    (WEIGHTS, "{a: 1}", "{a: .nan}", ": expected finite numbers, found nan for 'a'"),
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
    ("keys", "valid", "invalid", "message"),
    [
        ("[a, b]", "[1, 2]", "[1, 2, 3]", rf"2 weights, .*{KEYS} \['a', 'b'\], found 3"),
        ("[a, b]", "{b: 2}", "[2]", "expected 2 weights"),
        ("[a]", "[2]", "2", "expected a list or"),
        ("[a, b]", "[1, -1]", "[1, .inf]", "expected finite numbers, found inf for 'b'"),
        ("[a, b]", "[0, 1]", "[0, 0.0]", "all are zero"),
    ],
)
def test_weights_are_held_against_the_keys(
    keys: str, valid: str, invalid: str, message: str
) -> None:
    read(f"{{{KEYS}: {keys}, {WEIGHTS}: {valid}}}")
    with pytest.raises(ValueError, match=rf"^algorithm\.{WEIGHTS}: .*{message}"):
        read(f"{{{KEYS}: {keys}, {WEIGHTS}: {invalid}}}")


def test_a_plain_mapping_is_refused_as_the_yaml_is() -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.{WEIGHTS}: expected finite .* for 'a'"):
        GdpoConfig.from_algorithm({WEIGHTS: {"a": math.nan}})


@pytest.mark.parametrize(
    ("word", "expected"),
    [("corectness", " Did you mean 'correctness'?"), ("zzz", ""), (7, "")],
    ids=["close", "far", "a number"],
)
def test_only_a_close_name_is_suggested(word: Any, expected: str) -> None:
    assert did_you_mean(word, ["format", "correctness"]) == expected


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


BOTH = [FORMAT, CORRECTNESS]


@pytest.mark.parametrize(
    ("key", "value", "declared", "returned", "message"),
    [
        (
            KEYS,
            "[formt]",
            [],
            ["score", "format"],
            r": 'formt' is .* \['format'\]\. .* Did you mean",
        ),
        (KEYS, "null", BOTH, ["score", "format"], r": 'correctness' is not among .* \['format'\]"),
        (WEIGHTS, "{formt: 2}", BOTH, None, r"\.formt: not among .*\. Did you mean 'format'\?"),
        (WEIGHTS, "{format: 0, correctness: 0}", BOTH, None, ": all are zero"),
        (
            "gdpo.conditions",
            "{format: {on: length, at_least: 1}}",
            BOTH,
            None,
            r"\.format: 'length' is not among the reward components",
        ),
    ],
    ids=["not returned", "declared", "weight", "all weigh zero", "condition"],
)
def test_what_the_reward_does_not_have_is_refused(
    key: str, value: str, declared: list[Component], returned: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.{re.escape(key)}{message}"):
        read(setting(key, value)).resolve(declared, returned)
