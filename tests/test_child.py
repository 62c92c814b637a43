"""Programs and functions in a sandbox: what runs, and how each end is told."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from sandboxes import FOUND, HOLDS, LIMITS, SHORT, still_works
from sandboxes import sandbox as sandbox

from gdpo_verl.sandbox import Sandbox, Status
from gdpo_verl.sandbox.child import decode, encode


def test_a_program_reads_its_input_and_its_output_comes_back(sandbox):
    outcome = sandbox.run("print(sum(map(int, input().split())))", "1 2 3\n")
    assert (outcome.status, outcome.text) == (Status.OK, "6\n")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("raise SystemExit", Status.OK, id="leaves with success"),
        pytest.param("import sys; sys.exit(3)", Status.EXCEPTION, id="leaves with failure"),
        pytest.param("1 / 0", Status.EXCEPTION, id="raises"),
        pytest.param("def f(:", Status.SYNTAX, id="does not compile"),
        pytest.param("\0", Status.SYNTAX, id="NUL"),
        pytest.param("'\ud800'", Status.SYNTAX, id="a lone surrogate"),
        pytest.param("(" * 100_000, Status.SYNTAX, id="nested without end"),
        pytest.param("x = bytearray(1 << 30)", Status.MEMORY, id="a memory bomb"),
        pytest.param("x = []\nwhile True: x.append('a' * 999999)", Status.MEMORY, id="grows"),
        pytest.param("while True: print('a' * 9999)", Status.OUTPUT, id="endless output"),
        pytest.param("while True: pass", Status.TIMEOUT, id="an infinite loop"),
        pytest.param("import time; time.sleep(99)", Status.TIMEOUT, id="sleeps"),
        pytest.param("def f(): f()\nf()", Status.EXCEPTION, id="recurses without end"),
        pytest.param(
            "import sys; sys.setrecursionlimit(10**9)\nclass A:\n"
            " def __getattr__(self, n): return getattr(self, n + 'a')\nA().a",
            Status.EXCEPTION,
            id="overflows the stack",
        ),
        pytest.param("import os; os.abort()", Status.EXCEPTION, id="aborts"),
        pytest.param("import ctypes; ctypes.string_at(0)", Status.EXCEPTION, id="segfaults"),
    ],
)
def test_how_a_program_ended_is_told_and_the_next_one_is_not_touched(sandbox, code, status):
    sandbox.limits = SHORT if status is Status.TIMEOUT else LIMITS
    assert sandbox.run(code).status is status
    sandbox.limits = LIMITS
    assert still_works(sandbox)


def test_threads_decimals_asyncio_and_exit_handlers_work(sandbox):
    threads = sandbox.protection.own_user or os.geteuid() != 0
    code = (
        "import asyncio, atexit, decimal, sys, dataclasses\n"
        "@dataclasses.dataclass\nclass P:\n    x: int = 1\n"
        "async def main(): await asyncio.sleep(0.01); return P().x\n"
        "print(asyncio.run(main()), decimal.Decimal(1))\n"
        "atexit.register(sys.stdout.write, 'bye')\n"
        "rest = open(1, 'w', closefd=False); rest.write('.')\n"
    )
    assert sandbox.run(code).text == "1 1\nbye."
    if threads and sandbox.protection.name != "landlock":
        code = "import threading\nthreading.Thread(target=print, args=('t',)).start()"
        assert sandbox.run(code).text == "t\n"


HABITS = {
    "exit": "print(6 * 7)\nexit()",
    "quit": "print(6 * 7)\nquit(0)",
    "a null device": "import os\nwith open(os.devnull, 'w') as f: f.write('x')\n"
    "assert open(os.devnull).read() == ''\nprint(6 * 7)",
    "a larger stack": "import resource as r\nr.setrlimit(r.RLIMIT_STACK, (1 << 28, -1))\n"
    "r.setrlimit(r.RLIMIT_STACK, (-1, -1))\nprint(6 * 7)",
}


@pytest.mark.parametrize("code", HABITS.values(), ids=HABITS)
def test_what_people_write_runs(sandbox, code):
    outcome = sandbox.run(code)
    assert (outcome.status, outcome.text) == (Status.OK, "42\n")


def test_a_thread_with_a_stack_of_its_own_recurses_deeply(sandbox):
    if not sandbox.protection.own_user and os.geteuid() == 0:
        pytest.skip("root's threads cannot be counted here, so there are none")
    code = (
        "import functools, sys, threading\n"
        "sys.setrecursionlimit(10**6); threading.stack_size(1 << 27)\n"
        "@functools.cache\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(20000))); t.start(); t.join()"
    )
    assert sandbox.run(code).text == "20000\n"


def test_setup_runs_first_in_the_same_module(sandbox):
    setup = "from math import *\ndef f(): return 1"
    code = "from __future__ import annotations\nprint(floor(2.5) + f(), __name__)"
    assert sandbox.run(code, setup=setup).text == "3 __main__\n"


@HOLDS
def test_modules_are_loaded_once_for_all_programs():
    with Sandbox(FOUND[0], LIMITS, imports=["fractions"]) as sandbox:
        assert sandbox.run("import sys; print('fractions' in sys.modules)").text == "True\n"
    with Sandbox(FOUND[0], LIMITS) as sandbox:
        assert sandbox.run("import sys; print('fractions' in sys.modules)").text == "False\n"


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
    ],
)
def test_a_program_without_the_function_is_refused(sandbox, code, status):
    sandbox.limits = SHORT if status is Status.TIMEOUT else LIMITS
    assert sandbox.load("def f(): return 1", code, "f").status is status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param("import os; os._exit(0)", Status.EXCEPTION, id="leaves"),
        pytest.param("raise ValueError", Status.EXCEPTION, id="raises"),
        pytest.param("return object()", Status.NOT_PLAIN, id="an object"),
        pytest.param("return (x for x in [])", Status.NOT_PLAIN, id="a generator"),
        pytest.param("x = []; x.append(x); return x", Status.NOT_PLAIN, id="a cycle"),
        pytest.param("return 'a' * (1 << 22)", Status.OUTPUT, id="too much"),
        pytest.param("return any(iter(int, 1))", Status.TIMEOUT, id="never"),
        pytest.param("return bytearray(1 << 30)", Status.MEMORY, id="too much memory"),
    ],
)
def test_a_call_that_gives_no_value_says_why(sandbox, body, status):
    sandbox.limits = replace(LIMITS, timeout=5) if status is Status.TIMEOUT else LIMITS
    assert sandbox.load("", f"def f(): {body}", "f").status is Status.OK
    assert sandbox.call('[[], {"dict": []}]').status is status
    sandbox.limits = LIMITS
    assert still_works(sandbox)
