"""The four rewards alike: components, malformed ground truths, settings, the length, any text."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import test_sandbox as sandboxes
import test_tool_call as tool_calls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sandbox import HOLDS

from gdpo_verl.plugin.reward_function import in_configuration
from gdpo_verl.rewards import code, declared_components, gsm8k, math_length, parse_error, tool_call
from gdpo_verl.rewards.parse_error import ParseError


@dataclass(frozen=True)
class Reward:
    """A reward, and texts that it reads."""

    module: ModuleType
    components: dict[str, tuple[float, float]]
    wrap: Callable[[str], str]
    right: str  # what `wrap` makes a right answer of
    truths: list[str]
    pieces: list[str]
    examples: int
    settings: dict[str, Any] = field(default_factory=dict)
    graded: str = ""  # the component that is not only 0 or 1

    def __call__(self, answer: str, truth: object, tokens: int = 1, **changed: Any) -> dict:
        given = {"extra_info": {"response_length": tokens}} | self.settings | changed
        result = self.module.compute_score("mine", answer, truth, **given)
        assert list(result) == ["score", *self.components, "parse_error"]
        values = {name: result[name] for name in self.components}
        assert result["score"] == sum(values.values())
        for name, (low, high) in self.components.items():
            assert values[name] in (0, 1) or name == self.graded
            assert math.isfinite(values[name])
            assert low <= values[name] <= high
        ParseError(result["parse_error"])
        return result


LONG = [tool_calls.ASKED, tool_calls.ONE, "<|im_end|>", "[" * 2000, "9" * 5000, "\0", "\\"]
REWARDS = {
    "gsm8k": Reward(
        gsm8k,
        {"correctness": (0, 1), "integer": (0, 1), "format": (0, 1)},
        lambda text: f"<think>6 times 7</think>\n<answer>{text}</answer>",
        right="42",
        truths=["42"],
        pieces=["<think>", "</think>", "<answer>", "</answer>", "\n", *"42-,#²", ".0", "####"],
        examples=1500,
    ),
    "math_length": Reward(
        math_length,
        {"correctness": (0, 1), "length": (0, 1)},
        lambda text: f"So the answer is $\\boxed{{{text}}}$.",
        right="3",
        truths=["3"],
        pieces=[r"\boxed{", r"\frac", r"\}", r"\text{", *"}{3x\\^=,$é"],
        examples=450,
    ),
    "tool_call": Reward(
        tool_call,
        {"format": (0, 1), "correctness": (-3, 3)},
        tool_calls.calling,
        right=tool_calls.ONE,
        truths=[*tool_calls.OWN_ROWS, tool_calls.block("not json"), "", "<response>"],
        pieces=tool_calls.SNIPPETS + tool_calls.OWN_ROWS + LONG,
        examples=700,
        graded="correctness",
    ),
    "code": Reward(
        code,
        {"pass": (0, 1), "length": (0, 1), "bug_free": (0, 1)},
        sandboxes.answer,
        right=sandboxes.SCRIPT,
        truths=[sandboxes.SCRIPTS],
        pieces=sandboxes.PIECES,
        examples=60,
        settings=sandboxes.PATIENT | sandboxes.runs_none,
        graded="pass",
    ),
}
RUN = [pytest.param(name, marks=HOLDS if name == "code" else ()) for name in REWARDS]


@pytest.mark.parametrize("name", REWARDS)
def test_it_declares_its_components_and_their_ranges(name):
    declared = declared_components(REWARDS[name].module.compute_score)
    assert {c.name: (c.low, c.high) for c in declared} == REWARDS[name].components


@pytest.mark.parametrize("name", RUN)
def test_any_text_gives_the_declared_keys_in_range(name):
    reward = REWARDS[name]
    near = st.lists(st.sampled_from(reward.pieces) | st.text(max_size=5), max_size=12)

    @given(st.text(st.characters()) | near.map("".join), st.sampled_from(reward.truths) | st.text())
    @settings(max_examples=reward.examples, deadline=None, suppress_health_check=list(HealthCheck))
    def judge(text, truth):
        right = reward.wrap(reward.right)
        for strict in (True, False):
            given = {"strict": strict} | ({"deadline": 2.0} if name == "math_length" else {})
            for answer, asked in ((text, truth), (reward.wrap(text), truth), (right, text)):
                result = reward(answer, asked, **given)
                can_be_judged = result["parse_error"] != ParseError.GROUND_TRUTH
                assert result.get("length", can_be_judged) == can_be_judged

    judge()


@given(st.integers(-(10**12), 10**12), st.integers(0, 5))
def test_every_spelling_of_an_integer_is_right_and_an_integer(number, zeros):
    gsm8k_reward = REWARDS["gsm8k"]
    for spelling in (f"{number}", f"{number:,}", f"{number:+}", f"{number}.{'0' * zeros}"):
        answer = gsm8k_reward.wrap(spelling)
        assert gsm8k_reward(answer, f"#### {number}")["score"] == 3
        other = gsm8k_reward(answer, f"{number + 1}")
        assert (other["correctness"], other["integer"], other["format"]) == (0, 1, 1)


@given(st.lists(tool_calls.JSON, min_size=1, max_size=3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_json_in_a_call_gives_the_declared_keys_in_range(values, strict):
    calls = (json.dumps({"name": "f", "parameters": value}) for value in values)
    answer = tool_calls.calling(*calls)
    for truth in (tool_calls.ASKED, answer):
        for text in (answer, tool_calls.calling(json.dumps(values))):
            REWARDS["tool_call"](text, truth, strict=strict)


@pytest.mark.parametrize("depth", [100, 300, 400, 450, 490, 900, 980, 990])
def test_values_nested_to_the_limit_are_counted_and_never_raise(depth):
    line = f'{{"name": "f", "parameters": {{"a": {"[" * depth}{"]" * depth}}}}}'
    for strict in (True, False):
        REWARDS["tool_call"](tool_calls.calling(line), tool_calls.block(line), strict=strict)


# ---------------------------------------------------------------- bad ground truths

DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]
# Beside those of the recipes' cases, ones that take much to read.
BAD = [
    ("gsm8k", "forty-two"),
    ("math_length", "@#"),
    ("math_length", "9" * 10_001),
    ("tool_call", tool_calls.block("not json")),
    ("code", "{}"),
    ("code", "[" * 100_000),
    ("code", {"inputs": [DEEP], "outputs": ["1"]}),
    ("code", {"fn_name": "f", "inputs": ["[" * 700 + "]" * 700], "outputs": ["1"]}),
    ("code", {"fn_name": "f", "inputs": [DEEP], "outputs": [1]}),
    ("code", {"fn_name": "f", "inputs": [[1]], "outputs": [DEEP]}),
    ("code", {"entry_point": "f", "test": "-" * 100_000 + "1"}),
]


@pytest.mark.parametrize(("name", "truth"), BAD, ids=lambda each: str(each)[:20])
def test_a_bad_ground_truth_is_refused_and_in_training_counted_and_said_once(
    name, truth, caplog, monkeypatch
):
    reward = REWARDS[name]
    with pytest.raises(ValueError, match=r"^ground_truth: "):
        reward.module.parse_ground_truth(truth)
    monkeypatch.setattr(parse_error, "_warned", set())
    lowest = {component: low for component, (low, _) in reward.components.items()}
    lowest |= {"score": sum(lowest.values()), "parse_error": ParseError.GROUND_TRUTH}
    answers = [reward.wrap(text) for text in (reward.right, str(truth)[:100].replace("{", ""))]
    # math-verify reads the ground truth together with a box.
    for answer in answers if name == "math_length" else ["", *answers]:
        assert reward(answer, truth) == lowest
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{name}: a row gets the minimum" in caplog.text


# ---------------------------------------------------------------- settings, and the length


@pytest.mark.parametrize("name", ["math_length", "code"])
def test_the_limit_of_the_length_can_be_set(name):
    reward = REWARDS[name]
    found = [reward("", reward.truths[0], tokens, limit=100)["length"] for tokens in (100, 101)]
    assert found == [1, 0]


@pytest.mark.parametrize("extra_info", [None, {}, {"response_length": None}], ids=str)
@pytest.mark.parametrize("name", ["math_length", "code"])
def test_without_the_response_length_the_error_names_the_manager(name, extra_info):
    with pytest.raises(ValueError, match="reward manager gdpo_components"):
        REWARDS[name]("", REWARDS[name].truths[0], extra_info=extra_info)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *itertools.product(
            ["math_length"], ["limit", "deadline"], [0, -1, None, "4000", True, math.nan]
        ),
        ("math_length", "deadline", math.inf),
        *itertools.product(["code"], ["limit", "timeout", "deadline", "memory_limit_mb"], [0]),
    ],
)
def test_a_setting_out_of_range_is_refused_by_its_key(name, key, value):
    with pytest.raises(ValueError, match=f"^{key}: ") as refused:
        REWARDS[name]("", REWARDS[name].truths[0], **{key: value})
    where = f"reward.custom_reward_function.reward_kwargs.{key}: "
    assert in_configuration(refused.value).startswith(where)
