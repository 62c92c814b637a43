"""Programs and functions in a sandbox: what runs, and how each end is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_sandbox import FOUND, HOLDS, LIMITS, SHORT, still_works
from test_sandbox import sandbox as sandbox

from gdpo_verl.sandbox import Sandbox, Status
from gdpo_verl.sandbox.child import decode, encode

OVERFLOWS = """
import sys
sys.setrecursionlimit(10**9)
class A:
    def __getattr__(self, n): return getattr(self, n + "a")
A().a
"""


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("1 / 0", Status.EXCEPTION, id="raises"),
        pytest.param("def f(:", Status.SYNTAX, id="does not compile"),
        pytest.param("\0", Status.SYNTAX, id="NUL"),
        pytest.param("'\ud800'", Status.SYNTAX, id="a lone surrogate"),
        pytest.param("(" * 100_000, Status.SYNTAX, id="nested without end"),
        pytest.param("x = bytearray(1 << 30)", Status.MEMORY, id="a memory bomb"),
        pytest.param("while True: print('a' * 9999)", Status.OUTPUT, id="endless output"),
        pytest.param("while True: pass", Status.TIMEOUT, id="an infinite loop"),
        pytest.param("import time; time.sleep(99)", Status.TIMEOUT, id="sleeps"),
        pytest.param("def f(): f()\nf()", Status.EXCEPTION, id="recurses without end"),
        pytest.param(OVERFLOWS, Status.EXCEPTION, id="overflows the stack"),
        pytest.param("import ctypes; ctypes.string_at(0)", Status.EXCEPTION, id="segfaults"),
    ],
)
def test_how_a_program_ended_is_told_and_the_next_one_is_not_touched(sandbox, code, status):
    sandbox.limits = SHORT if status is Status.TIMEOUT else LIMITS
    assert sandbox.run(code).status is status
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
        pytest.param([10**5000, -(16**60_000), {1 << 2000: 1 << 1999}], id="large integers"),
    ],
    ids=repr,
)
def test_plain_data_survives_the_channel(value):
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("def g(): pass", Status.NO_FUNCTION, id="another name"),
        pytest.param("f = 3", Status.NO_FUNCTION, id="not a function"),
        pytest.param("import sys; sys.exit(0)", Status.EXCEPTION, id="leaves while loading"),
        pytest.param("def f(:", Status.SYNTAX, id="does not compile"),
        pytest.param("while True: pass", Status.TIMEOUT, id="never loads"),
        pytest.param("def f(): import os; os._exit(0)", Status.EXCEPTION, id="leaves"),
        pytest.param("def f(): raise ValueError", Status.EXCEPTION, id="raises"),
        pytest.param("def f(): return object()", Status.NOT_PLAIN, id="an object"),
        pytest.param("def f(): x = []; x.append(x); return x", Status.NOT_PLAIN, id="a cycle"),
        pytest.param("def f(): return 'a' * (1 << 22)", Status.OUTPUT, id="too much"),
        pytest.param("def f(): return any(iter(int, 1))", Status.TIMEOUT, id="never"),
        pytest.param("def f(): return bytearray(1 << 30)", Status.MEMORY, id="too much memory"),
    ],
)
def test_a_function_that_gives_no_value_says_why(sandbox, code, status):
    sandbox.limits = replace(LIMITS, timeout=3) if status is Status.TIMEOUT else LIMITS
    outcome = sandbox.load("def f(): return 1", code, "f")
    if outcome.status is Status.OK:
        outcome = sandbox.call('[[], {"dict": []}]')
    assert outcome.status is status
    sandbox.limits = LIMITS
    assert still_works(sandbox)
