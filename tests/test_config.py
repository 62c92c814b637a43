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


KEYS = "gdpo_reward_keys"
WEIGHTS = "gdpo_reward_weights"


def under_gdpo(**settings: Any) -> dict[str, Any]:
    return {"gdpo": settings}


@pytest.mark.parametrize(
    ("valid", "invalid", "message"),
    [
        pytest.param(
            under_gdpo(whiten="none"),
            under_gdpo(whitn="none"),
            r"gdpo\.whitn: unknown key; known are .* Did you mean 'whiten'\?$",
            id="unknown key",
        ),
        pytest.param(
            under_gdpo(epsilon=1.0),
            under_gdpo(zzz=1.0),
            r"gdpo\.zzz: unknown key; known are \['variant', 'whiten', .* names of variants.$",
            id="unlike any key",
        ),
        pytest.param({"gdpo": {}}, {"gdpo": "token"}, r"gdpo: expected a mapping", id="no mapping"),
        pytest.param(
            {"gdpo": None}, {"gdpo": False}, r"gdpo: expected a mapping", id="switched off"
        ),
        pytest.param(
            under_gdpo(whiten="sequence"),
            under_gdpo(whiten="batch"),
            r"gdpo\.whiten: expected one of \['token', 'sequence', 'none'\], found 'batch'",
            id="whiten",
        ),
        pytest.param(
            under_gdpo(whiten="none"),
            under_gdpo(whiten=None),
            r"gdpo\.whiten: .* found None",
            id="whiten null",
        ),
        pytest.param(under_gdpo(epsilon=0), under_gdpo(epsilon=-1e-6), r"gdpo\.epsilon: ", id="ε"),
        pytest.param(
            under_gdpo(epsilon=1), under_gdpo(epsilon="1e-6"), r"gdpo\.epsilon: ", id="ε text"
        ),
        pytest.param(
            under_gdpo(epsilon=1e-12), under_gdpo(epsilon=math.nan), r"gdpo\.epsilon: ", id="ε nan"
        ),
        pytest.param(
            under_gdpo(epsilon=1.0), under_gdpo(epsilon=True), r"gdpo\.epsilon: ", id="ε bool"
        ),
        pytest.param(
            under_gdpo(metrics=False),
            under_gdpo(metrics="false"),
            r"gdpo\.metrics: expected true or false, found 'false'",
            id="metrics",
        ),
        pytest.param(
            {"norm_adv_by_std_in_grpo": True},
            {"norm_adv_by_std_in_grpo": 1},
            r"norm_adv_by_std_in_grpo: expected true or false, found 1",
            id="scale",
        ),
        pytest.param(
            under_gdpo(conditions={}),
            under_gdpo(conditions=["length"]),
            r"gdpo\.conditions: expected a mapping",
            id="conditions",
        ),
        pytest.param(
            under_gdpo(conditions=None),
            under_gdpo(conditions=False),
            r"gdpo\.conditions: expected a mapping, found False",
            id="conditions switched off",
        ),
        pytest.param({KEYS: ["a"]}, {KEYS: "a"}, rf"{KEYS}: expected a list", id="key as text"),
        pytest.param({KEYS: ["a"]}, {KEYS: []}, rf"{KEYS}: expected a list", id="no keys"),
        pytest.param({KEYS: ["1"]}, {KEYS: [1]}, rf"{KEYS}: expected distinct", id="key a number"),
        pytest.param(
            {KEYS: ["a", "b"]}, {KEYS: ["a", "a"]}, rf"{KEYS}: expected distinct", id="key twice"
        ),
        pytest.param(
            {KEYS: ["a", "scores"]}, {KEYS: ["a", "score"]}, rf"{KEYS}: .*'score'", id="the sum"
        ),
        pytest.param(
            {KEYS: ["a", "b"], WEIGHTS: [1, 2]},
            {KEYS: ["a", "b"], WEIGHTS: [1, 2, 3]},
            rf"{WEIGHTS}: expected 2 weights, .*algorithm\.{KEYS} \['a', 'b'\], found 3",
            id="too many weights",
        ),
        pytest.param(
            {KEYS: ["a", "b"], WEIGHTS: {"b": 2}},
            {KEYS: ["a", "b"], WEIGHTS: [2]},
            rf"{WEIGHTS}: expected 2 weights",
            id="too few weights",
        ),
        pytest.param(
            {WEIGHTS: {"a": 2}},
            {WEIGHTS: [2]},
            rf"{WEIGHTS}: a list of weights needs algorithm\.{KEYS}",
            id="a list without keys",
        ),
        pytest.param(
            {KEYS: ["a"], WEIGHTS: [2]},
            {KEYS: ["a"], WEIGHTS: 2},
            rf"{WEIGHTS}: expected a list or",
            id="one number",
        ),
        pytest.param(
            {KEYS: ["a"], WEIGHTS: None},
            {KEYS: ["a"], WEIGHTS: "2"},
            rf"{WEIGHTS}: expected a list or",
            id="text",
        ),
        pytest.param(
            {KEYS: ["a", "b"], WEIGHTS: [1, -1]},
            {KEYS: ["a", "b"], WEIGHTS: [1, math.inf]},
            rf"{WEIGHTS}: expected finite numbers, found inf for 'b'",
            id="infinite",
        ),
        pytest.param(
            {WEIGHTS: {"a": 1}},
            {WEIGHTS: {"a": math.nan}},
            rf"{WEIGHTS}: expected finite numbers, found nan for 'a'",
            id="nan",
        ),
        pytest.param(
            {WEIGHTS: {"a": 1}},
            {WEIGHTS: {"a": 10**400}},
            rf"{WEIGHTS}: expected finite numbers, found 1000",
            id="too large",
        ),
        pytest.param(
            {WEIGHTS: {"a": 1}},
            {WEIGHTS: {"a": None}},
            rf"{WEIGHTS}: expected finite numbers, found None for 'a'",
            id="null",
        ),
        pytest.param(
            {KEYS: ["a", "b"], WEIGHTS: [0, 1]},
            {KEYS: ["a", "b"], WEIGHTS: [0, 0.0]},
            rf"{WEIGHTS}: all are zero",
            id="all zero",
        ),
    ],
)
@pytest.mark.parametrize("kind", [dict, OmegaConf.create], ids=["dict", "omegaconf"])
def test_a_bad_setting_is_refused_with_its_full_key(
    kind: Callable[[Any], Mapping[str, Any]],
    valid: dict[str, Any],
    invalid: dict[str, Any],
    message: str,
) -> None:
    GdpoConfig.from_algorithm(kind(valid))
    with pytest.raises(ValueError, match=rf"^algorithm\.{message}"):
        GdpoConfig.from_algorithm(kind(invalid))


@pytest.mark.parametrize(
    ("word", "expected"),
    [("corectness", " Did you mean 'correctness'?"), ("zzz", ""), (7, "")],
    ids=["close", "far", "a number"],
)
def test_only_a_close_name_is_suggested(word: Any, expected: str) -> None:
    assert did_you_mean(word, ["format", "correctness"]) == expected


def test_the_declared_components_are_the_default() -> None:
    objective = GdpoConfig().resolve([FORMAT, CORRECTNESS, LENGTH])
    assert objective.keys == ("format", "correctness", "length")
    assert objective.weights == (1.0, 1.0, 1.0)
    assert objective.optional == {"length"}


def test_only_declared_components_enter_whatever_else_is_returned() -> None:
    returned = ["score", "parse_error", "correctness", "format"]
    assert GdpoConfig().resolve([FORMAT, CORRECTNESS], returned).keys == ("format", "correctness")


def test_named_components_give_the_order_and_their_weights_follow_it() -> None:
    config = GdpoConfig.from_algorithm({KEYS: ["correctness", "format"], WEIGHTS: [2, 0.5]})
    objective = config.resolve([FORMAT, LENGTH, CORRECTNESS])
    assert objective.keys == ("correctness", "format")
    assert objective.weights == (2.0, 0.5)


def test_the_largest_weight_is_taken() -> None:
    config = GdpoConfig.from_algorithm({KEYS: ["a"], WEIGHTS: [-1e300]})
    assert config.resolve([]).weights == (-1e300,)


def test_named_components_need_no_declaration() -> None:
    config = GdpoConfig.from_algorithm({KEYS: ["a", "b"]})
    assert config.resolve([]).keys == ("a", "b")
    assert config.resolve([], ["score", "b", "a"]).keys == ("a", "b")


def test_an_optional_component_need_not_be_returned() -> None:
    returned = ["score", "format", "correctness"]
    objective = GdpoConfig().resolve([FORMAT, CORRECTNESS, LENGTH], returned)
    assert objective.keys == ("format", "correctness", "length")


def test_neither_declared_nor_named_is_refused_with_what_was_returned() -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.{KEYS}: the reward declares no comp"):
        GdpoConfig().resolve([])
    with pytest.raises(ValueError, match=r"although it returns \['score', 'format'\]"):
        GdpoConfig().resolve([], ["score", "format"])


@pytest.mark.parametrize(
    ("algorithm", "declared", "returned", "message"),
    [
        pytest.param(
            {KEYS: ["formt"]},
            [],
            ["score", "format"],
            rf"{KEYS}: 'formt' is not among the reward components \['format'\]\. .* Did you mean",
            id="named, not returned",
        ),
        pytest.param(
            {},
            [FORMAT, CORRECTNESS],
            ["score", "format"],
            rf"{KEYS}: 'correctness' is not among the reward components \['format'\]",
            id="declared, not returned",
        ),
        pytest.param(
            {WEIGHTS: {"formt": 2}},
            [FORMAT, CORRECTNESS],
            None,
            rf"{WEIGHTS}\.formt: not among .*\. Did you mean 'format'\?",
            id="weight of an unknown component",
        ),
        pytest.param(
            {WEIGHTS: {"format": 0, "correctness": 0}},
            [FORMAT, CORRECTNESS],
            None,
            rf"{WEIGHTS}: all are zero",
            id="all declared components weigh zero",
        ),
        pytest.param(
            under_gdpo(conditions={"format": {"on": "length", "at_least": 1}}),
            [FORMAT, CORRECTNESS],
            None,
            r"gdpo\.conditions\.format: 'length' is not among the reward components",
            id="condition on an unknown component",
        ),
    ],
)
@pytest.mark.parametrize("kind", [dict, OmegaConf.create], ids=["dict", "omegaconf"])
def test_what_the_reward_does_not_have_is_refused(
    kind: Callable[[Any], Mapping[str, Any]],
    algorithm: dict[str, Any],
    declared: list[Component],
    returned: list[str] | None,
    message: str,
) -> None:
    config = GdpoConfig.from_algorithm(kind(algorithm))
    with pytest.raises(ValueError, match=rf"^algorithm\.{message}"):
        config.resolve(declared, returned)


def test_a_declaration_is_read_from_a_function_or_a_class() -> None:
    @declares(FORMAT, "correctness")
    def compute_score() -> None: ...

    class Manager:
        components = ("format", LENGTH)

    assert declared_components(compute_score) == (FORMAT, Component("correctness"))
    assert declared_components(Manager) == (Component("format"), LENGTH)
    assert declared_components(print) == ()


def test_one_name_declares_one_component() -> None:
    class Manager:
        components = "format"

    assert declared_components(Manager) == (Component("format"),)


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
