"""The comparison of what a program gave with what its test asks for."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sandbox import HOLDS, verdict

from gdpo_verl.rewards.code_same import same_lines, same_text, same_value
from gdpo_verl.sandbox.child import encode


@pytest.mark.parametrize(
    ("printed", "expected", "strict", "published"),
    [
        pytest.param("a  b \n\n", "a b\n", 1, 0, id="white space"),
        pytest.param("a\nb", "a b", 0, 0, id="lines are lines"),
        pytest.param("a\n\nb", "a\nb", 0, 1, id="an empty line between"),
        pytest.param("1_0.5", "10.5", 0, 1, id="digits grouped as in Python"),
        pytest.param("3.0", "3", 0, 1, id="an integer is asked for"),
        pytest.param("1000001", "1000000", 0, 0, id="integers are exact"),
        # 1e-6 of 1000000.0 is 1.
        pytest.param("1000001.0", "1000000.00", 1, 1, id="1e-6 of a large decimal"),
        pytest.param("1000001.1", "1000000.0", 0, 1, id="more than 1e-6 of a large decimal"),
        # 1e-6 of 0.0004 is 4e-10, less than the floor of 1e-9.
        pytest.param("0.0004000009", "0.0004", 1, 1, id="the floor of 1e-9"),
        pytest.param("0.0004000011", "0.0004", 0, 1, id="above the floor"),
        pytest.param("5e-17", "0.0", 1, 1, id="nearly zero"),
        pytest.param("0.0", "0.0000004", 0, 0, id="zero is not every small number"),
        pytest.param("99999.99", "1e5", 1, 1, id="an exponent makes a decimal"),
        pytest.param("1000000000.5", "1000000000", 0, 1, id="a decimal for an integer"),
        pytest.param("inf", "1.0e999", 1, 1, id="infinity is infinity"),
        pytest.param("nan", "nan", 1, 1, id="not a number is asked for"),
    ],
)
def test_what_counts_as_the_same_output(printed, expected, strict, published):
    assert same_text(printed, expected) == strict
    assert same_lines(printed, expected) == published


@pytest.mark.parametrize(
    ("value", "expected", "passed"),
    [
        pytest.param((1, (2, 3)), [1, [2, 3]], 1, id="tuples are lists"),
        pytest.param(5, [5], 1, id="a wrapped value"),
        pytest.param({1: "a", None: 2}, {"1": "a", "null": 2}, 1, id="keys are texts"),
        pytest.param("5", 5, 0, id="a text is no number"),
        pytest.param([10**5000], [10**5000], 1, id="the same integer of many digits"),
        pytest.param(-(10**5000), 10**5000, 0, id="an integer of many digits has a sign"),
        pytest.param({10**700: 1}, {str(10**700): 1}, 1, id="an integer of many digits as key"),
        pytest.param(1000000.9, 1e6, 1, id="1e-6 of a large decimal"),
        pytest.param(1000001.1, 1e6, 0, id="more than 1e-6 of a large decimal"),
        pytest.param(1000000000.0, 1000000000, 1, id="a decimal that is the integer"),
        pytest.param(1000000500.0, 1000000000, 0, id="a decimal near the integer"),
        pytest.param([1.0000001], [1], 0, id="a decimal near an integer in a list"),
        pytest.param([1.0000001], [1.0], 1, id="a decimal near a decimal in a list"),
        pytest.param({1: 2, "1": 2}, {"1": 2}, 0, id="two keys that JSON writes alike"),
        pytest.param([[]] * 9, [[]], 0, id="more than was asked for"),
        pytest.param([7], [[7]], 1, id="a list of one stands for what it holds"),
        pytest.param(3, math.inf, 0, id="infinity is not every number"),
        pytest.param(10**400, math.inf, 0, id="infinity is no integer"),
        pytest.param(math.nan, math.nan, 1, id="not a number is asked for"),
        pytest.param(0.0, math.nan, 0, id="a number where none is asked for"),
    ],
)
def test_what_counts_as_the_same_value(value, expected, passed):
    assert same_value(json.dumps(encode(value)), expected) == passed


# Runs each pair of an output and what is expected through verl's own comparison. It loads one file
# of verl, and not verl, and keeps the file from taking functions of `os` away.
VERLS = """
import contextlib, importlib.util, json, sys
spec = importlib.util.find_spec("verl")
path = spec.submodule_search_locations[0] + "/utils/reward_score/prime_code/testing_util.py"
spec = importlib.util.spec_from_file_location("testing_util", path)
verl = importlib.util.module_from_spec(spec)
spec.loader.exec_module(verl)
verl.reliability_guard = lambda: None
found = []
for tests, code in json.load(sys.stdin):
    with contextlib.redirect_stdout(sys.stderr):
        found.append(verl.run_test(tests, code)[0] == [True])
print(json.dumps(found))
"""


def verls(rows):
    text = json.dumps(rows)
    ran = subprocess.run(
        [sys.executable, "-c", VERLS], input=text, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def test_lenient_outputs_are_the_same_where_verl_says_so():
    draw = random.Random(0)
    words = ["3", "3.0", "0.5", "0.50", "03", "-3", "-3.00001", "-3.1", "1e5", "100000", "nan"]
    words += ["inf", "-inf", "1_0", "10.0", "1000001", "1000000", "0.00000001", "0", "0.0", "True"]
    words += ["a", "a b", "b a", "a  b", "1 2", "1 2.0", "", "", *" \t\r\x0b\x1c\u0663\u00b2\u00b2"]
    pairs = [(a, b) for a in words for b in words]
    for _ in range(200):
        lines = draw.choices(words, k=draw.randrange(5))
        other = [draw.choice(words) if draw.random() < 0.1 else line for line in lines]
        for changed in (lines, other):
            if draw.random() < 0.5:
                changed.insert(draw.randrange(len(changed) + 1), draw.choice(["", " ", "\t", "\r"]))
        pairs.append(("\n".join(lines), draw.choice(["\n", " ", "", "\r\n"]).join(other)))
    rows = [({"inputs": [""], "outputs": [b]}, f"print({a!r}, end='')") for a, b in pairs]
    expected = verls(rows)
    assert 200 < sum(expected) < len(expected) - 200
    differ = [p for p, verl in zip(pairs, expected, strict=True) if same_lines(*p) != verl]
    assert differ == []


# A value, what is expected, verl's verdict and the one of strict=False.
VALUED = {
    "a key that is a number": ("{1: 5}", '{"1": 5}', 1, 1),
    "a key that is the text of a number": ("{'1': 5}", '{"1": 5}', 0, 1),
    "a list of dicts": ("[{1: 5}, {2: 6}]", '[{"1": 5}, {"2": 6}]', 0, 1),
    "the first of a list of dicts": ("[{1: 5}]", '[{"1": 5}, {"2": 6}]', 1, 0),
    "the first of a list": ("5", "[5, 6]", 1, 0),
    "tuples in a list": ("[(1, 2)]", "[[1, 2]]", 0, 1),
    "wrapped tuples in a list": ("[(1, 2)]", "[[[1, 2]]]", 1, 1),
    "a decimal nearly equal": ("0.1 + 0.2", "0.3", 0, 1),
    "a decimal for an integer": ("3.0", "3", 1, 1),
    "an integer of many digits": ("10**4299", "1" + "0" * 4299, 1, 1),
    "none": ("None", "null", 1, 1),
    "a set": ("{1}", "[1]", 0, 0),
    "a fraction": ("__import__('fractions').Fraction(1, 2)", "0.5", 0, 0),
}


@HOLDS
def test_lenient_values_are_the_same_as_verls_but_for_those_of_the_documentation():
    rows = [({"fn_name": "f", "inputs": ["1"], "outputs": [expected]}, f"def f(x): return {value}")
            for value, expected, _, _ in VALUED.values()]  # fmt: skip
    assert dict(zip(VALUED, verls(rows), strict=True)) == {k: bool(v[2]) for k, v in VALUED.items()}
    ours = [verdict(code, tests, strict=False)[0] for tests, code in rows]
    assert dict(zip(VALUED, ours, strict=True)) == {k: v[3] for k, v in VALUED.items()}


KEYED = [  # a program, its arguments, verl's verdict and the one of strict=True
    ("def f(d): return d[1]", '{"1": 5}', 1, 0),
    ("def f(d): return d['1']", '{"1": 5}', 0, 1),
    ("def f(d): return d['a']", '{"a": 5, "1": 6}', 1, 1),
    ("def f(d, k): return d[k]", '{"1": 5}\n1', 0, 0),  # verl drops the other arguments
    ("def f(k, d): return d['1']", '1\n{"1": 5}', 1, 1),
]


@HOLDS
def test_a_dict_as_first_argument_has_verls_keys():
    rows = [({"fn_name": "f", "inputs": [x], "outputs": ["5"]}, code) for code, x, _, _ in KEYED]
    assert verls(rows) == [bool(row[2]) for row in KEYED]
    for (truth, code), (_, _, published, strict) in zip(rows, KEYED, strict=True):
        assert verdict(code, truth)[0] == strict
        assert verdict(code, truth, strict=False)[0] == (published or "d, k" in code)


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
