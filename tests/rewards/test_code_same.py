"""The comparison of what a program gave with what its test asks for."""

import itertools
import json
import random
import sys

from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run
from test_tool_call import JSON
from verdicts import cases_of

from gdpo_verl.rewards.code import find_code
from gdpo_verl.rewards.code_same import same_lines, same_text, same_value
from gdpo_verl.sandbox.child import encode

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
    ran = run(sys.executable, "-c", VERLS, input=json.dumps(rows))
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout)


def test_lenient_outputs_are_the_same_where_verl_says_so():
    draw = random.Random(0)
    words = ["3", "3.0", "0.5", "0.50", "03", "-3", "-3.00001", "-3.1", "1e5", "100000", "nan"]
    words += ["inf", "-inf", "1_0", "10.0", "1000001", "1000000", "0.00000001", "0", "0.0", "True"]
    words += ["a", "a b", "b a", "a  b", "1 2", "1 2.0", "", "", *" \t\r\x0b\x1c\u0663\u00b2\u00b2"]
    pairs = [(a, b) for a in words for b in words]
    ends = ["", " ", "\n", "\r\n", "\n\n", " \n", "\n ", "\r"]
    for word in ("1", "a b"):
        texts = [f"{word}{end}2{last}" for end, last in itertools.product(ends, ends)]
        pairs += draw.sample(list(itertools.product(texts, texts)), 400)
    rows = [({"inputs": [""], "outputs": [b]}, f"print({a!r}, end='')") for a, b in pairs]
    expected = verls(rows)
    assert 200 < sum(expected) < len(expected) - 200
    differ = [p for p, verl in zip(pairs, expected, strict=True) if same_lines(*p) != verl]
    assert differ == []


def test_verl_judges_the_cases_of_programs_as_they_say():
    cases = [case for case in cases_of("code") if "verl" in case]
    rows = [(json.loads(case["truth"]), find_code(case["answer"])) for case in cases]
    assert verls(rows) == [case["verl"]["pass"] == 1 for case in cases]


NUMBERS = st.sampled_from(["nan", "inf", "-1e999", "1e5", ".", "0.5", "9" * 400, "1_0", "\ud800"])


@given(
    st.lists(NUMBERS | st.text(max_size=5)).map(" ".join),
    st.lists(NUMBERS | st.text(max_size=5)).map(" ".join),
)
@settings(max_examples=1000, deadline=None)
def test_any_output_is_compared_and_is_the_same_as_itself(found, expected):
    assert same_text(found, expected) in (True, False)
    assert same_text(found, found)


@given(JSON, JSON)
@settings(max_examples=1000, deadline=None)
def test_any_value_is_compared_and_is_the_same_as_itself(found, expected):
    assert same_value(json.dumps(encode(found)), expected) in (True, False)
    assert same_value(json.dumps(encode(found)), found)
