"""The four rewards alike: components, any text, bad ground truths, settings, the length."""

import importlib
import itertools
import json
import math

import pytest
import test_sandbox as sandboxes
import test_tool_call as tool_calls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sandbox import HOLDS
from verdicts import cases_of

from gdpo_verl.rewards import declared_components, parse_error
from gdpo_verl.rewards.parse_error import ParseError

RANGES = {
    "gsm8k": {"correctness": (0, 1), "integer": (0, 1), "format": (0, 1)},
    "math_length": {"correctness": (0, 1), "length": (0, 1)},
    "tool_call": {"format": (0, 1), "correctness": (-3, 3)},
    "code": {"pass": (0, 1), "length": (0, 1), "bug_free": (0, 1)},
}
GRADED = {("tool_call", "correctness"), ("code", "pass")}  # not only the lowest or the highest
# An answer that is right, and its ground truth.
RIGHT = {
    "gsm8k": ("<think>6 times 7</think>\n<answer>42</answer>", "42"),
    "math_length": (r"So the answer is $\boxed{3}$.", "3"),
    "tool_call": (tool_calls.ANSWER, tool_calls.ASKED),
    "code": (sandboxes.answer(sandboxes.SCRIPT), sandboxes.SCRIPTS),
}
SETTINGS = {"code": sandboxes.PATIENT | sandboxes.runs_none}
RUN = [pytest.param(name, marks=HOLDS if name == "code" else ()) for name in RANGES]


def module(name):
    return importlib.import_module(f"gdpo_verl.rewards.{name}")


def judged(name, answer, truth, tokens=1, **changed):
    """A verdict that has the declared keys, in range."""
    options = {"extra_info": {"response_length": tokens}} | SETTINGS.get(name, {}) | changed
    result = module(name).compute_score("mine", answer, truth, **options)
    assert list(result) == ["score", *RANGES[name], "parse_error"]
    assert result["score"] == sum(result[component] for component in RANGES[name])
    for component, (low, high) in RANGES[name].items():
        assert result[component] in (low, high) or (name, component) in GRADED
        assert math.isfinite(result[component])
        assert low <= result[component] <= high
    ParseError(result["parse_error"])
    return result


@pytest.mark.parametrize("name", RANGES)
def test_it_declares_its_components_and_their_ranges(name):
    declared = declared_components(module(name).compute_score)
    assert {c.name: (c.low, c.high) for c in declared} == RANGES[name]


# ---------------------------------------------------------------- any text

ODD = ["[" * 2000, "9" * 5000, "\0", "\ud800", "²", "\u2028", "\n"]


def near(texts):
    """Texts of which the beginning is one's and the end another's, and any text."""
    cut = st.tuples(st.sampled_from(texts), st.floats(0, 1))
    start = cut.map(lambda part: part[0][: int(part[1] * len(part[0]))])
    end = cut.map(lambda part: part[0][int(part[1] * len(part[0])) :])
    between = st.text(max_size=5) | st.sampled_from(ODD)
    return st.tuples(start, between, end).map("".join) | st.text(st.characters())


EXAMPLES = {"gsm8k": 1500, "math_length": 100, "tool_call": 700, "code": 60}
IMPATIENT = {"math_length": {"deadline": 2.0}, "code": {"timeout": 2, "deadline": 9}}


@pytest.mark.parametrize("name", RUN)
def test_any_text_gives_the_declared_keys_in_range(name):
    cases = cases_of(name)
    answers = [case["answer"] for case in cases]
    truths = [case["truth"] for case in cases if isinstance(case["truth"], str)]

    @given(near(answers), st.sampled_from(truths) | near(truths))
    @settings(max_examples=EXAMPLES[name], deadline=None, suppress_health_check=list(HealthCheck))
    def judge(text, truth):
        for strict in (True, False):
            options = {"strict": strict} | IMPATIENT.get(name, {})
            for answer in (text, RIGHT[name][0]):
                result = judged(name, answer, truth, **options)
                can_be_judged = result["parse_error"] != ParseError.GROUND_TRUTH
                assert result.get("length", can_be_judged) == can_be_judged

    judge()


@given(st.lists(tool_calls.JSON, min_size=1, max_size=3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_json_in_a_call_gives_the_declared_keys_in_range(values, strict):
    calls = (json.dumps({"name": "f", "parameters": value}) for value in values)
    answer = tool_calls.calling(*calls)
    for truth in (tool_calls.ASKED, answer):
        for text in (answer, tool_calls.calling(json.dumps(values))):
            judged("tool_call", text, truth, strict=strict)


@pytest.mark.parametrize("depth", [100, 300, 400, 450, 490, 900, 980, 990])
def test_values_nested_to_the_limit_are_counted_and_never_raise(depth):
    line = f'{{"name": "f", "parameters": {{"a": {"[" * depth}{"]" * depth}}}}}'
    for strict in (True, False):
        judged("tool_call", tool_calls.calling(line), tool_calls.block(line), strict=strict)


# ---------------------------------------------------------------- bad ground truths

DEEP = []
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
    with pytest.raises(ValueError, match=r"^ground_truth: "):
        module(name).parse_ground_truth(truth)
    monkeypatch.setattr(parse_error, "_warned", set())
    lowest = {component: low for component, (low, _) in RANGES[name].items()}
    lowest |= {"score": sum(lowest.values()), "parse_error": ParseError.GROUND_TRUTH}
    answer, asked = RIGHT[name]
    answers = [answer, answer.replace(asked, str(truth)[:100])]
    # math-verify reads the ground truth together with a box.
    for text in answers if name == "math_length" else ["", *answers]:
        assert judged(name, text, truth) == lowest
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{name}: a row gets the lowest rewards" in caplog.text


# ---------------------------------------------------------------- settings, and the length


@pytest.mark.parametrize("name", ["math_length", "code"])
def test_the_limit_of_the_length_can_be_set(name):
    for tokens, length in ((100, 1), (101, 0)):
        assert judged(name, "", RIGHT[name][1], tokens, limit=100)["length"] == length


@pytest.mark.parametrize("extra_info", [None, {}, {"response_length": None}], ids=str)
@pytest.mark.parametrize("name", ["math_length", "code"])
def test_without_the_response_length_the_error_names_the_manager(name, extra_info):
    with pytest.raises(ValueError, match=r"reward_manager\.name=gdpo_components"):
        judged(name, *RIGHT[name], extra_info=extra_info)


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
    with pytest.raises(ValueError, match=f"^{key}: "):
        judged(name, *RIGHT[name], **{key: value})
