"""The comparison of what a program gave with what its test asks for."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import runs_code, verdict

from gdpo_verl.rewards.code_same import same_text, same_value
from gdpo_verl.sandbox.child import encode


@runs_code
@pytest.mark.parametrize(
    ("printed", "expected", "strict", "published"),
    [
        pytest.param("a b\n", "a b", 1, 1, id="newline at the end"),
        pytest.param("a  b \n\n", "a b\n", 1, 0, id="white space"),
        pytest.param(" a \nb ", "a\nb", 1, 1, id="white space around a line"),
        pytest.param("a\nb", "a b", 0, 0, id="lines are lines"),
        pytest.param("0.3333333", "0.33333331", 1, 0, id="decimals nearly equal"),
        pytest.param("0.334", "0.33333331", 0, 0, id="decimals not equal"),
        pytest.param("3.0", "3", 0, 0, id="an integer is asked for"),
        pytest.param("1000001", "1000000", 0, 0, id="integers are exact"),
        pytest.param("nan", "1.5", 0, 0, id="not a number"),
        # 1e-6 of 1000000.0 is 1.
        pytest.param("1000001.0", "1000000.0", 1, 0, id="1e-6 of a large decimal"),
        pytest.param("1000001.1", "1000000.0", 0, 0, id="more than 1e-6 of a large decimal"),
        # 1e-6 of 0.0004 is 4e-10, less than the floor of 1e-9.
        pytest.param("0.0004000009", "0.0004", 1, 0, id="the floor of 1e-9"),
        pytest.param("0.0004000011", "0.0004", 0, 0, id="above the floor"),
        pytest.param("5e-17", "0.0", 1, 0, id="nearly zero"),
        pytest.param("0.0", "0.0000004", 0, 0, id="zero is not every small number"),
        pytest.param("99999.99", "1e5", 1, 0, id="an exponent makes a decimal"),
        pytest.param("99999.8", "1e5", 0, 0, id="an exponent, too far"),
        pytest.param("1000000000.5", "1000000000", 0, 0, id="a decimal for an integer"),
        pytest.param("5.0", "1.0e999", 0, 0, id="infinity is not every number"),
        pytest.param("inf", "1.0e999", 1, 0, id="infinity is infinity"),
        pytest.param("-inf", "1.0e999", 0, 0, id="infinity has a sign"),
        pytest.param("inf", "1.5", 0, 0, id="infinity is no number"),
        pytest.param("nan", "nan", 1, 1, id="not a number is asked for"),
        pytest.param("1.5", "nan", 0, 0, id="a number where none is asked for"),
    ],
)
def test_what_counts_as_the_same_output(printed, expected, strict, published):
    truth = {"inputs": [""], "outputs": [expected]}
    code = f"print({printed!r}, end='')"
    assert verdict(code, truth)[0] == strict
    assert verdict(code, truth, strict=False)[0] == published


@runs_code
@pytest.mark.parametrize(
    ("value", "expected", "passed"),
    [
        pytest.param("(1, (2, 3))", [1, [2, 3]], 1, id="tuples are lists"),
        pytest.param("5", [5], 1, id="a wrapped value"),
        pytest.param("[5]", 5, 0, id="a wrapped answer"),
        pytest.param("{1: 'a', None: 2}", {"1": "a", "null": 2}, 1, id="keys are texts"),
        pytest.param("0.1 + 0.2", 0.3, 1, id="decimals"),
        pytest.param("True", True, 1, id="booleans"),
        pytest.param("'5'", 5, 0, id="a text is no number"),
        pytest.param("10 ** 400", 1.5, 0, id="a number beyond every float"),
        pytest.param("float('nan')", 1.5, 0, id="not a number"),
        pytest.param("10 ** 5000", 1, 0, id="a number of too many digits"),
        pytest.param("1000000.9", 1e6, 1, id="1e-6 of a large decimal"),
        pytest.param("1000001.1", 1e6, 0, id="more than 1e-6 of a large decimal"),
        pytest.param("1000000", 1e6, 1, id="an integer for a decimal"),
        pytest.param("1000000000.0", 1000000000, 1, id="a decimal that is the integer"),
        pytest.param("1000000500.0", 1000000000, 0, id="a decimal near the integer"),
        pytest.param("[1.0000001]", [1], 0, id="a decimal near an integer in a list"),
        pytest.param("[1.0000001]", [1.0], 1, id="a decimal near a decimal in a list"),
        pytest.param("5e-17", 0.0, 1, id="nearly zero"),
        pytest.param("0.0", 4e-7, 0, id="zero is not every small number"),
        pytest.param("float('inf')", math.inf, 1, id="infinity"),
        pytest.param("{1: 2, '1': 2}", {"1": 2}, 0, id="two keys that JSON writes alike"),
        pytest.param("[[]] * 9", [[]], 0, id="more than was asked for"),
        pytest.param("[7]", [[7]], 1, id="a list of one stands for what it holds"),
        pytest.param("3", math.inf, 0, id="infinity is not every number"),
        pytest.param("10 ** 400", math.inf, 0, id="infinity is no integer"),
        pytest.param("float('-inf')", math.inf, 0, id="infinity has a sign"),
        pytest.param("float('inf')", 1e308, 0, id="infinity is no large number"),
        pytest.param("float('nan')", math.nan, 1, id="not a number is asked for"),
        pytest.param("0.0", math.nan, 0, id="a number where none is asked for"),
        pytest.param("10 ** 400", math.nan, 0, id="an integer where no number is asked for"),
    ],
)
def test_what_counts_as_the_same_value(value, expected, passed):
    truth = {"fn_name": "f", "inputs": [[]], "outputs": [expected]}
    assert verdict(f"def f(): return {value}", truth)[0] == passed


@runs_code
def test_an_infinity_in_a_json_text_is_met_by_itself_alone():
    truth = {"fn_name": "f", "inputs": ["1"], "outputs": ["Infinity"]}
    assert verdict("def f(x): return 3", truth) == (0, 1, 0)
    assert verdict("def f(x): return float('inf')", truth) == (1, 1, 0)


NUMBERS = st.sampled_from(["nan", "inf", "-1e999", "1e5", ".", "0.5", "9" * 400, "1_0", "\ud800"])


@given(
    st.lists(NUMBERS | st.text(max_size=5)).map(" ".join),
    st.lists(NUMBERS | st.text(max_size=5)).map(" ".join),
)
@settings(max_examples=1000, deadline=None)
def test_any_output_is_compared_and_is_the_same_as_itself(found, expected):
    assert same_text(found, expected) in (True, False)
    assert same_text(found, found)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(VALUES, VALUES)
@settings(max_examples=1000, deadline=None)
def test_any_value_is_compared_and_is_the_same_as_itself(found, expected):
    assert same_value(json.dumps(encode(found)), expected) in (True, False)
    assert same_value(json.dumps(encode(found)), found)
