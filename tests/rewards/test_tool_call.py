"""The tool-calling rewards by property."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpo_verl.rewards import parse_error, tool_call
from gdpo_verl.rewards.tool_call import ParseError, compute_score, parse_ground_truth

THOUGHT = "<think>Look it up.</think>"
RESPONSE = "<response>It is sunny.</response>"


def call(name="weather", **parameters):
    return json.dumps({"name": name, "parameters": parameters})


def block(*lines):
    return "\n".join(("<tool_call>", *lines, "</tool_call>"))


def calling(*lines):
    return f"{THOUGHT}\n{block(*lines)}"


ONE = call(city="Paris", days=1)
ASKED = block(ONE)
ANSWER = calling(ONE)


def verdict(response, ground_truth=ASKED, strict=True):
    result = compute_score("rlla", response, ground_truth, strict=strict)
    return result["format"], result["correctness"], ParseError(result["parse_error"])


GOOD = (1.0, 3.0, ParseError.NONE)


def bad(code):
    return (0.0, -3.0, code)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def test_a_ground_truth_asks_for_no_more_calls_than_can_be_matched_in_time():
    parse_ground_truth(block(*[ONE] * tool_call.MOST_ASKED))
    with pytest.raises(ValueError, match="expected at most 50 calls, found 51"):
        parse_ground_truth(block(*[ONE] * (tool_call.MOST_ASKED + 1)))


def test_the_published_rules_say_on_which_ground_truth_they_crash(caplog, monkeypatch):
    for ground_truth in (block("not json"), None):
        monkeypatch.setattr(parse_error, "_warned", set())
        verdict(ANSWER, ground_truth, strict=False)
        assert "tool_call: a row gets the lowest rewards" in caplog.text
        caplog.clear()


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=9), st.text() | st.integers(-9, 9)), st.text())
def test_a_well_formed_answer_always_earns_everything(parameters, name):
    line = json.dumps({"name": name, "parameters": parameters}, ensure_ascii=False)
    assert verdict(calling(line), block(line)) == GOOD
