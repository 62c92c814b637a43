"""The program of an answer, read: any text, on the clock. recipes/code/cases.jsonl has verdicts."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear import assert_linear
from test_sandbox import PIECES

from gdpo_verl.rewards import code_text
from gdpo_verl.rewards.code import find_code


@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_read(text):
    for strict in (True, False):
        assert isinstance(find_code(text, "f", strict=strict), str)


def test_integers_of_any_size_are_read():
    for digits in (3999, 4000, 4001, 12_345):
        assert code_text._integer("9" * digits) == 10**digits - 1
        assert code_text._integer("-1" + "0" * digits) == -(10**digits)
        assert code_text._integer("-" + "9" * digits) == 1 - 10**digits


WORST = {
    "fences": lambda n: "```\n" * (n // 4),
    "other languages": lambda n: "".join(f"```x{i}\n```\n" for i in range(n // 14)),
    "backticks": lambda n: "`" * n,
    "indented": lambda n: "```python\n" + "  x\n" * (n // 4),
    "one line": lambda n: "```python " + "a" * n,
    "label before a backtick": lambda n: "```" + "a" * n + "`",
    "blanks before a backtick": lambda n: "```" + " " * n + "`",
    "blank lines": lambda n: "```python\n" + " \n" * (n // 2),
    "spaces in a block": lambda n: "```python\n" + " " * n + "x",
    "spans": lambda n: "`<think>` " * (n // 10),
    "half a span": lambda n: "`<think>" * (n // 8),
    "closing fences behind code": lambda n: "```python\n" + "x``` y" * (n // 6),
    "many backticks in a block": lambda n: "```python\nx" + "`" * n + "y",
    "closing tags": lambda n: "```python\n" + "</answer> " * (n // 10) + "y",
    "opened thoughts in blocks": lambda n: "<think>\n```x\n</think>\n" * (n // 22),
    "longer and longer fences": lambda n: "".join(
        "`" * i + "\n" for i in range(3, int((2 * n) ** 0.5))
    ),
    "indented text": lambda n: " " * (n // 2) + "a" * (n // 2) + "```x`",
    "a long number": lambda n: "1" * n + "```x`",
    "labels of dots": lambda n: "```" + "." * (n // 2) + "/" * (n // 2),
    "lines of tags": lambda n: "<answer> ```python\nx\n```</answer>\n" * (n // 34),
    **{
        f"many {part!r}": lambda n, part=part: f"```python\n{part * (n // len(part))}\n```"
        for part in (
            *("def f\n", "def f(", "def f()\n", "def f(a):\n", "def f(a): ...\n", "def f(a) -> "),
            *("def f(a):\n    pass\n", "def f(a):\n'''", "f = f(1)\n", "# x\n", "pass;", "\n"),
        )
    },
    "definitions of nothing": lambda n: "```python\n" + "def" + " " * (n // 2) + "def " * (n // 8),
}


@pytest.mark.parametrize("make", WORST.values(), ids=WORST)
def test_a_megabyte_is_read_in_linear_time(make):
    assert_linear(lambda text: find_code(text, "f"), make)
