"""The settings: what is read, what is refused by its full name, what a reward must return."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from omegaconf import OmegaConf

from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards.components import Component, declared_components, declares
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
def test_weights_by_name_need_no_keys(keys: list[str] | None) -> None:
    algorithm = {"gdpo_reward_keys": keys, "gdpo_reward_weights": {"format": 0.5}}
    objective = GdpoConfig.from_algorithm(algorithm).resolve([FORMAT, CORRECTNESS])
    assert dict(zip(objective.keys, objective.weights, strict=True)) == {
        "format": 0.5,
        "correctness": 1.0,
    }


@pytest.mark.parametrize("weight", [0, 0.0, -1.0], ids=str)
def test_one_declared_component_may_be_switched_off_or_turned_round(weight: float) -> None:
    config = GdpoConfig.from_algorithm({"gdpo_reward_weights": {"format": weight}})
    assert config.resolve([FORMAT, CORRECTNESS]).weights == (weight, 1.0)


KEYS, WEIGHTS = "gdpo_reward_keys", "gdpo_reward_weights"


def read(text: str) -> GdpoConfig:
    """The settings of an `algorithm` section as a recipe writes it."""
    return GdpoConfig.from_algorithm(OmegaConf.create(text))


# What is taken, what is not, and the message.
INVALID = [
    (
        "gdpo: {whiten: none}",
        "gdpo: {whitn: none}",
        r"gdpo\.whitn: unknown key; known are .* Did you mean 'whiten'\?$",
    ),
    (
        "gdpo: {epsilon: 1.0}",
        "gdpo: {zzz: 1.0}",
        r"gdpo\.zzz: unknown key; known are \['variant', 'whiten', .* names of variants.$",
    ),
    ("gdpo: {}", "gdpo: token", r"gdpo: expected a mapping"),
    ("gdpo: null", "gdpo: false", r"gdpo: expected a mapping"),
    (
        "gdpo: {whiten: sequence}",
        "gdpo: {whiten: batch}",
        r"gdpo\.whiten: expected one of \['token', 'sequence', 'none'\], found 'batch'",
    ),
    ("gdpo: {whiten: none}", "gdpo: {whiten: null}", r"gdpo\.whiten: .* found None"),
    ("gdpo: {epsilon: 0}", "gdpo: {epsilon: -1e-6}", r"gdpo\.epsilon: "),
    ("gdpo: {epsilon: 1}", "gdpo: {epsilon: '1e-6'}", r"gdpo\.epsilon: "),
    ("gdpo: {epsilon: 1e-12}", "gdpo: {epsilon: .nan}", r"gdpo\.epsilon: "),
    ("gdpo: {epsilon: 1.0}", "gdpo: {epsilon: true}", r"gdpo\.epsilon: "),
    (
        "gdpo: {metrics: false}",
        "gdpo: {metrics: 'false'}",
        r"gdpo\.metrics: expected true or false, found 'false'",
    ),
    (
        "norm_adv_by_std_in_grpo: true",
        "norm_adv_by_std_in_grpo: 1",
        r"norm_adv_by_std_in_grpo: expected true or false, found 1",
    ),
    (
        "gdpo: {conditions: {}}",
        "gdpo: {conditions: [length]}",
        r"gdpo\.conditions: expected a mapping",
    ),
    (
        "gdpo: {conditions: null}",
        "gdpo: {conditions: false}",
        r"gdpo\.conditions: expected a mapping, found False",
    ),
    *[
        (f"{KEYS}: {valid}", f"{KEYS}: {invalid}", f"{KEYS}: {message}")
        for valid, invalid, message in (
            ("[a]", "a", "expected a list"),
            ("[a]", "[]", "expected a list"),
            ("['1']", "[1]", "expected distinct"),
            ("[a, b]", "[a, a]", "expected distinct"),
            ("[a, scores]", "[a, score]", ".*'score'"),
        )
    ],
    *[
        (
            f"{{{KEYS}: {keys}, {WEIGHTS}: {valid}}}",
            f"{{{KEYS}: {keys}, {WEIGHTS}: {invalid}}}",
            f"{WEIGHTS}: {message}",
        )
        for keys, valid, invalid, message in (
            (
                "[a, b]",
                "[1, 2]",
                "[1, 2, 3]",
                rf"expected 2 weights, .*algorithm\.{KEYS} \['a', 'b'\], found 3",
            ),
            ("[a, b]", "{b: 2}", "[2]", "expected 2 weights"),
            ("null", "{a: 2}", "[2]", rf"a list of weights needs algorithm\.{KEYS}"),
            ("[a]", "[2]", "2", "expected a list or"),
            ("[a]", "null", "'2'", "expected a list or"),
            ("[a, b]", "[1, -1]", "[1, .inf]", "expected finite numbers, found inf for 'b'"),
            ("null", "{a: 1}", "{a: .nan}", "expected finite numbers, found nan for 'a'"),
            ("null", "{a: 1}", f"{{a: 1{'0' * 400}}}", "expected finite numbers, found 1000"),
            ("null", "{a: 1}", "{a: null}", "expected finite numbers, found None for 'a'"),
            ("[a, b]", "[0, 1]", "[0, 0.0]", "all are zero"),
        )
    ],
]


@pytest.mark.parametrize(
    ("valid", "invalid", "message"), INVALID, ids=[invalid[:60] for _, invalid, _ in INVALID]
)
def test_a_bad_setting_is_refused_with_its_full_key(valid: str, invalid: str, message: str) -> None:
    read(valid)
    with pytest.raises(ValueError, match=rf"^algorithm\.{message}"):
        read(invalid)


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


@pytest.mark.parametrize(
    ("algorithm", "declared", "returned", "message"),
    [
        (
            f"{KEYS}: [formt]",
            [],
            ["score", "format"],
            rf"{KEYS}: 'formt' is not among the reward components \['format'\]\. .* Did you mean",
        ),
        (
            "",
            [FORMAT, CORRECTNESS],
            ["score", "format"],
            rf"{KEYS}: 'correctness' is not among the reward components \['format'\]",
        ),
        (
            f"{WEIGHTS}: {{formt: 2}}",
            [FORMAT, CORRECTNESS],
            None,
            rf"{WEIGHTS}\.formt: not among .*\. Did you mean 'format'\?",
        ),
        (
            f"{WEIGHTS}: {{format: 0, correctness: 0}}",
            [FORMAT, CORRECTNESS],
            None,
            rf"{WEIGHTS}: all are zero",
        ),
        (
            "gdpo: {conditions: {format: {on: length, at_least: 1}}}",
            [FORMAT, CORRECTNESS],
            None,
            r"gdpo\.conditions\.format: 'length' is not among the reward components",
        ),
    ],
    ids=["not returned", "declared", "weight", "all weigh zero", "condition"],
)
def test_what_the_reward_does_not_have_is_refused(
    algorithm: str, declared: list[Component], returned: list[str] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.{message}"):
        read(algorithm).resolve(declared, returned)


def test_a_declaration_is_read_from_a_function_or_a_class() -> None:
    @declares(FORMAT, "correctness")
    def compute_score() -> None: ...

    class Manager:
        components = ("format", LENGTH)

    class OfOne:
        components = "format"

    assert declared_components(compute_score) == (FORMAT, Component("correctness"))
    assert declared_components(Manager) == (Component("format"), LENGTH)
    assert declared_components(OfOne) == (Component("format"),)
    assert declared_components(print) == ()


@pytest.mark.parametrize(
    "entries",
    [("format", "format"), ("score",), (FORMAT, Component("format")), (1, "format"), (["a"],)],
    ids=["twice", "the sum", "twice as objects", "a number", "a list"],
)
def test_a_bad_declaration_is_refused(entries: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=r"^components: "):
        declares(*entries)(lambda: None)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("gdpo_reward_weight", "gdpo_reward_weights"),
        ("gdpo_weights", "gdpo_reward_weights"),
        ("gdpo_whiten", "gdpo.whiten"),
        ("gdpo_conditions", "gdpo.conditions"),
        ("gdpo_gate", "gdpo.gate"),
    ],
)
def test_an_unknown_flat_key_is_refused_with_the_nearest(key: str, near: str) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.{key}: unknown.*mean '{near}'\?$"):
        GdpoConfig.from_algorithm({key: 1.0})
    GdpoConfig.from_algorithm({key: None})
