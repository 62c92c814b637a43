"""A sandbox for each protection that this machine can give, and programs to judge in one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gdpo_verl.rewards.code import ParseError, compute_score
from gdpo_verl.sandbox import Limits, Sandbox, best_protection
from gdpo_verl.sandbox import protection as protections
from gdpo_verl.sandbox.probe import probe


def working_protections(site_packages: str | None = None) -> Iterator[protections.Protection]:
    """Every protection that holds here, best first."""
    for candidate in protections.candidates(site_packages).values():
        with contextlib.suppress(OSError, RuntimeError):
            found = candidate()
            probe(found)
            yield found


FOUND = list(working_protections())
HOLDS = pytest.mark.skipif(
    not FOUND, reason="neither bubblewrap nor Landlock works here: apt install bubblewrap"
)
# A busy machine is no slow program: only what never ends has a short limit.
LIMITS = Limits(timeout=60, deadline=600, memory_mb=256, output_mb=1, processes=16)
SHORT = replace(LIMITS, timeout=1)


@pytest.fixture(params=[pytest.param(found, id=found.name) for found in FOUND] or [None])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if request.param is None:
        pytest.skip("neither bubblewrap nor Landlock works here: apt install bubblewrap")
    with Sandbox(request.param, LIMITS) as made:
        yield made


def attempts(*actions: str, imports: str = "os") -> str:
    """A program that tries each action and prints what came of it."""
    body = "\n".join(
        f"try: print('done', {action})\nexcept BaseException as e: print(type(e).__name__)"
        for action in actions
    )
    return f"import {imports}\n{body}\n"


def still_works(sandbox: Sandbox) -> bool:
    return sandbox.run("print(6 * 7)").text == "42\n"


@pytest.fixture
def nothing_protects(monkeypatch):
    def broken(*arguments, **keywords):
        raise RuntimeError("not on this machine")

    monkeypatch.setattr(protections, "_bubblewrap", broken)
    monkeypatch.setattr(protections, "_landlock", broken)
    best_protection.cache_clear()
    yield
    best_protection.cache_clear()


# ------------------------------------------------ programs, and the code rewards' verdicts on them

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


PATIENT = {"timeout": LIMITS.timeout, "deadline": LIMITS.deadline}


def verdict(code, ground_truth, **settings):
    extra_info, settings = {"response_length": 9}, PATIENT | settings
    result = compute_score("mine", answer(code), ground_truth, extra_info, **settings)
    return result["pass"], result["bug_free"], ParseError(result["parse_error"])


PIECES = ["```python\n", "```\n", "```", "<think>", "</think>", "\n", "  ", "\0", "\ud800", "def f"]
