"""The program of an answer and the tests of a row, read: by hand, on any text, on the clock."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear import assert_linear
from programs import KEYS, PIECES, runs_none

from gdpo_verl.rewards import parse_error
from gdpo_verl.rewards.code import ParseError, compute_score, find_code, parse_ground_truth


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("```python\na\n```", "a\n", id="one block"),
        pytest.param("```py\na\n```\n```Python3\nb\n```", "b\n", id="the last block"),
        pytest.param("```\na\n```\n```\nb\n```", "b\n", id="the last unlabelled block"),
        pytest.param("```python\na\n```\n```\nout\n```", "a\n", id="labelled before unlabelled"),
        pytest.param("```python\na\n```\n```bash\nls\n```", "a\n", id="another language"),
        pytest.param("```python\na\nb", "a\nb", id="cut off"),
        pytest.param("1. This\n   ```python\n   if a:\n     b\n   ```", "if a:\n  b\n",
                     id="in a list"),
        pytest.param("<think>```python\na\n```</think>none", "", id="only a thought"),
        pytest.param("```python\na\n```</think>```python\nb\n```", "b\n", id="right behind it"),
        pytest.param("Say ```python a``` or `b`.", "", id="within a line"),
        pytest.param("hm</think>\n```python\nb\n```", "b\n", id="after the thought"),
        pytest.param("<think>```python\na\n```", "", id="a thought without end"),
        pytest.param("print(1)", "", id="no fence"),
    ],
)  # fmt: skip
def test_the_last_python_block_after_the_thought_counts(text, expected):
    assert find_code(text) == expected


def test_a_block_that_shows_the_functions_use_is_not_the_answer():
    answer = "```python\ndef f(x):\n  return x\n```\nFor example:\n```python\nprint(f(1))\n```"
    assert find_code(answer, "f") == "def f(x):\n  return x\n"
    assert find_code(answer) == "print(f(1))\n"
    assert find_code(answer, "print") == "print(f(1))\n"
    better = f"{answer}\n```python\nclass Solution:\n  def f(self): 0\n```"
    assert find_code(better, "f") == "class Solution:\n  def f(self): 0\n"
    assert find_code("```python\ndef fit(): 0\n```\n```python\nx = 1\n```", "f") == "x = 1\n"


def test_the_published_rule_takes_an_answer_without_a_fence_as_code():
    assert find_code("print(1)", strict=False) == "print(1)"
    assert find_code("<think>```python\na\n```", strict=False) == "\na\n"


DEEP: list = []
for _ in range(900):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    "truth",
    [
        pytest.param("", id="empty"),
        pytest.param("[" * 100_000, id="nested without end"),
        pytest.param("[]", id="a list"),
        pytest.param(None, id="none"),
        pytest.param("{}", id="no tests"),
        pytest.param({"inputs": [], "outputs": []}, id="no test"),
        pytest.param({"inputs": ["1"], "outputs": []}, id="an output is missing"),
        pytest.param({"inputs": [1], "outputs": ["1"]}, id="an input is no text"),
        pytest.param({"inputs": ["1"], "outputs": [None]}, id="an output is no text"),
        pytest.param({"fn_name": "a b", "inputs": [[]], "outputs": [1]}, id="no name"),
        pytest.param({"fn_name": "f", "inputs": ["nan,"], "outputs": ["1"]}, id="no JSON"),
        pytest.param({"fn_name": "f", "inputs": [3], "outputs": [1]}, id="no list"),
        pytest.param(
            {"fn_name": "f", "inputs": ["[" * 700 + "]" * 700], "outputs": ["1"]},
            id="nested too deep",
        ),
        pytest.param({"entry_point": "f"}, id="no test of the function"),
        pytest.param({"fn_name": "f", "inputs": [DEEP], "outputs": [1]}, id="a deep argument"),
        pytest.param({"fn_name": "f", "inputs": [[1]], "outputs": [DEEP]}, id="a deep value"),
        pytest.param({"fn_name": "f", "inputs": [[10**5000]], "outputs": [1]}, id="no number"),
        pytest.param({"inputs": [DEEP], "outputs": ["1"]}, id="a deep input"),
        pytest.param({"entry_point": "f", "test": "-" * 100_000 + "1"}, id="a deep test"),
        pytest.param({"entry_point": "f", "test": []}, id="an empty list of tests"),
        pytest.param({"entry_point": "f", "test": [3]}, id="a test that is no text"),
        pytest.param({"entry_point": "f", "test": "def ("}, id="a test that is no Python"),
        pytest.param({"entry_point": 3, "test": "pass"}, id="an entry point that is no name"),
    ],
)
def test_malformed_tests_are_an_error_in_preparation_and_counted_in_training(
    truth, caplog, monkeypatch
):
    with pytest.raises(ValueError, match="ground_truth"):
        parse_ground_truth(truth)
    monkeypatch.setattr(parse_error, "_warned", set())
    for _ in range(2):
        result = compute_score("mine", "", truth, {"response_length": 1}, **runs_none)
        assert result == dict.fromkeys(KEYS, 0.0) | {"parse_error": ParseError.GROUND_TRUTH}
    assert caplog.text.count("code: a row gets the minimum") == 1


@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_read(text):
    for strict in (True, False):
        assert isinstance(find_code(text, "f", strict=strict), str)


WORST = {
    "fences": lambda n: "```\n" * (n // 4),
    "opening fences": lambda n: "```python\n" * (n // 10),
    "other languages": lambda n: "".join(f"```x{i}\n```\n" for i in range(n // 14)),
    "backticks": lambda n: "`" * n,
    "backticks and blanks": lambda n: "``` " * (n // 4),
    "blanks": lambda n: " " * n,
    "indented": lambda n: "```python\n" + "  x\n" * (n // 4),
    "thoughts": lambda n: "<think>" * (n // 7),
    "ends of thought": lambda n: "</think>" * (n // 8),
    "one line": lambda n: "```python " + "a" * n,
    "label before a backtick": lambda n: "```" + "a" * n + "`",
    "blanks before a backtick": lambda n: "```" + " " * n + "`",
    "labels before backticks": lambda n: ("```" + "a" * 999 + "`\n") * (n // 1004),
    "blank lines": lambda n: "```python\n" + " \n" * (n // 2),
    "surrogates": lambda n: "\ud800\0" * (n // 2),
    "definitions of nothing": lambda n: "```python\n" + "def" + " " * (n // 2) + "def " * (n // 8),
}


@pytest.mark.parametrize("make", WORST.values(), ids=WORST)
def test_a_megabyte_is_read_in_linear_time(make):
    assert_linear(lambda text: find_code(text, "f"), make)
