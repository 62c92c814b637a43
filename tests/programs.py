"""Programs, their tests, and the code rewards' verdicts on them."""

from __future__ import annotations

import json

from sandboxes import FOUND

from gdpo_verl.rewards.code import ParseError, compute_score

KEYS = {"score", "pass", "length", "bug_free", "parse_error"}
# For what never runs a program, so that it is tested without a sandbox too.
runs_none = {"allow_unprotected": not FOUND}
SCRIPTS = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})
CALLS = json.dumps({"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]})
ASSERTS = json.dumps(
    {
        "prompt": "from typing import List\n\ndef total(xs: List[int]) -> int:\n    '''Sum.'''\n",
        "entry_point": "total",
        "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n"
        "    assert candidate([]) == 0\n",
    }
)
SCRIPT = "a, b = map(int, input().split())\nprint(a + b)"
CALL = "def add(a, b): return a + b"
TOTAL = "def total(xs: List[int]): return sum(xs)"


def answer(code):
    return f"So:\n```python\n{code}\n```\nThat is it."


# A busy machine is no slow program: only what never ends is given a short limit.
PATIENT = {"timeout": 60, "deadline": 600}


def verdict(code, ground_truth, **settings):
    extra_info, settings = {"response_length": 9}, PATIENT | settings
    result = compute_score("mine", answer(code), ground_truth, extra_info, **settings)
    assert set(result) == KEYS
    assert result["score"] == result["pass"] + result["length"] + result["bug_free"]
    return result["pass"], result["bug_free"], ParseError(result["parse_error"])


PIECES = ["```python\n", "```\n", "```", "<think>", "</think>", "\n", "  ", "\0", "\ud800", "def f"]
