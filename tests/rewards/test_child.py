"""Programs and functions in a sandbox: what runs, and how each end is told."""

import pytest
from test_sandbox import FOUND, HOLDS, LIMITS, SHORT, still_works
from test_sandbox import sandbox as sandbox
from verdicts import cases_of

from gdpo_verl.rewards.code import find_code, parse_ground_truth
from gdpo_verl.sandbox import Sandbox, Status
from gdpo_verl.sandbox.child import decode, encode

ENDINGS = [case for case in cases_of("code") if case["why"].startswith("how it ends: ")]


def ending(sandbox, code, name):
    """The end of a program, or of a call of its function."""
    if not name:
        return sandbox.run(code).status
    outcome = sandbox.load("def f(): return 1", code, name)
    if outcome.status is Status.OK:
        outcome = sandbox.call('[[], {"dict": []}]')
    return outcome.status


@pytest.mark.parametrize("case", ENDINGS, ids=lambda case: case["why"])
def test_how_a_program_ended_is_told_and_the_next_one_is_not_touched(sandbox, case):
    name = parse_ground_truth(case["truth"]).name
    found = ending(sandbox, find_code(case["answer"], name), name)
    assert found.name == case["expected"]["parse_error"]
    assert still_works(sandbox)


def test_a_program_that_is_nested_without_end_does_not_compile(sandbox):
    assert ending(sandbox, "(" * 100_000, "") is Status.SYNTAX
    assert still_works(sandbox)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("while True: pass", ""),
        ("import time; time.sleep(99)", ""),
        ("while True: pass", "f"),
        ("def f(): return any(iter(int, 1))", "f"),
    ],
)
def test_a_program_that_never_ends_is_ended(sandbox, code, name):
    sandbox.limits = SHORT
    assert ending(sandbox, code, name) is Status.TIMEOUT
    sandbox.limits = LIMITS
    assert still_works(sandbox)


def test_a_program_may_ask_for_a_larger_stack(sandbox):
    set_stack = "import resource as r\nr.setrlimit(r.RLIMIT_STACK, ({}, -1))\n"
    code = f"{set_stack.format(1 << 28)}{set_stack.format(-1)}print(6 * 7)"
    assert sandbox.run(code).text == "42\n"


def test_setup_runs_first_in_the_same_module(sandbox):
    setup = "from math import *\ndef f(): return 1"
    code = "from __future__ import annotations\nprint(floor(2.5) + f(), __name__)"
    assert sandbox.run(code, setup=setup).text == "3 __main__\n"


@HOLDS
def test_modules_are_loaded_once_for_all_programs():
    for imports in (["fractions"], []):
        with Sandbox(FOUND[0], LIMITS, imports=imports) as sandbox:
            said = sandbox.run("import sys; print('fractions' in sys.modules)").text
        assert said == f"{bool(imports)}\n"


def test_a_function_gets_and_gives_plain_data(sandbox):
    code = "def f(x, n=2): return {(i, x): [x] * n for i in range(2)}"
    assert sandbox.load("", code, "f").status is Status.OK
    outcome = sandbox.call('[["a"], {"dict": [["n", 3]]}]')
    assert outcome.status is Status.OK
    assert '[{"tuple": [1, "a"]}, ["a", "a", "a"]]' in outcome.text


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, -2.5, "a\ud800\0", True],
        {1: {2}, (3, "x"): frozenset({4})},
        (b"\xff", 2j, [[]], {}),
        10**400,
    ],
    ids=repr,
)
def test_plain_data_survives_the_channel(value):
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)
