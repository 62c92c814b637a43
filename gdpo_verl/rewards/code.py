"""Rewards for programming tasks: the share of tests passed, the length, and freedom from errors.

Use them where a program can be tested.
Assumes: each row has tests; the machine has a sandbox, or a service runs the programs.

These are the rewards of the coding task of GDPO's paper (https://arxiv.org/abs/2601.05242). The
program in a response runs in a sandbox, and is never trusted. The expected output of a test does
not enter the sandbox. The output of the program is compared here, as plain data.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.code_same import same_lines, same_text, same_value
from gdpo_verl.rewards.code_text import (
    PUBLISHED_IMPORTS,
    PUBLISHED_SETUP,
    Tests,
    find_code,
    parse_ground_truth,
)
from gdpo_verl.rewards.length import length_reward
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth, with_score
from gdpo_verl.sandbox import Limits, Sandbox, Status, best_protection, core_slot
from gdpo_verl.sandbox.child import encode
from gdpo_verl.sandbox.fusion import FusionSandbox, check_service

__all__ = ["ParseError", "Tests", "compute_score", "find_code", "parse_ground_truth"]


TestVerdict = tuple[bool, Status]
Solver = Sandbox | FusionSandbox
"""A sandbox that runs the program of a response, on this machine or as a service."""


@declares(Component("pass", 0, 1), Component("length", 0, 1), Component("bug_free", 0, 1))
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | dict[str, Any],
    extra_info: dict[str, Any] | None = None,
    *,
    strict: bool = True,
    limit: float = 4000,
    timeout: float = Limits.timeout,
    deadline: float = Limits.deadline,
    memory_limit_mb: float = Limits.memory_limit_mb,
    site_packages: str | None = None,
    allow_unprotected: bool = False,
    sandbox_fusion_url: str | None = None,
    concurrent_semaphore: AbstractContextManager[Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """Compute the three rewards of one response, with the signature of verl's reward functions.

    Args:
      data_source: ignored, as are `kwargs`.
      solution_str: the response. `find_code` says which part of it is the program.
      ground_truth: the tests; see `parse_ground_truth`.
      extra_info: contains `response_length` in tokens. The manager `gdpo_components` adds it.
      strict: False to parse, run and compare as leniently as verl's `prime_code`.
      limit: the largest number of tokens of a response that earns the length reward.
      timeout: the CPU time for each test, in seconds. The limit of real time is twice as long.
      deadline: the time for all tests of a response, in seconds.
      memory_limit_mb: the memory of the program, in MiB.
      site_packages: a directory with packages that programs may import.
      allow_unprotected: whether to run programs even if the machine offers no protection.
      sandbox_fusion_url: the address of a service that runs the programs instead of this machine.
      concurrent_semaphore: a semaphore that is held during a request to the service.

    Returns:
      A dict with pass (the share of tests passed), length (0 or 1), bug_free (1 if no test had an
      error), score (their sum) and parse_error (the `ParseError` of the first test with an error).
      The keys are the same for every text. All rewards are 0 if the tests cannot be parsed.

    Raises:
      ValueError: `response_length` is missing, or a setting is out of range.
      Unprotected: nothing protects this machine from the programs.
      SandboxError: the sandbox does not work.
    """
    limits = Limits(timeout=timeout, deadline=deadline, memory_limit_mb=memory_limit_mb)
    rewards = {"pass": 0.0, "length": length_reward(extra_info, limit), "bug_free": 0.0}
    if sandbox_fusion_url:
        check_service(sandbox_fusion_url)
    try:
        tests = parse_ground_truth(ground_truth)
    except ValueError as error:
        warn_of_ground_truth("code", error)
        return with_score(dict.fromkeys(rewards, 0.0), ParseError.GROUND_TRUTH)
    runs_here = not sandbox_fusion_url or tests.kind == "assert"
    protection: Any = None
    # This comes before the program is read. Then a machine without protection is rejected before
    # the first rollout, when the function is called with an empty response.
    if runs_here:
        protection = best_protection(
            allow_unprotected=allow_unprotected, site_packages=site_packages
        )
    code = find_code(solution_str, tests.name, strict=strict)
    if not code.strip():
        return with_score(rewards, ParseError.NO_CODE)
    if not strict:
        tests = _as_published(tests)
    with ExitStack() as stack:
        if runs_here:
            stack.enter_context(core_slot())
        if sandbox_fusion_url:
            solver: Solver = FusionSandbox(sandbox_fusion_url, limits, concurrent_semaphore)
        else:
            imports = () if strict else PUBLISHED_IMPORTS
            solver = stack.enter_context(Sandbox(protection, limits, imports))
        # The tests are code of the data set. They run on this machine, apart from the response.
        checker = stack.enter_context(Sandbox(protection, limits))
        verdicts = list(_judge(tests, code, solver, checker, strict))
    # If a test with an error passed, it expected the exception.
    errors = [status for passed, status in verdicts if not passed and status is not Status.OK]
    rewards["pass"] = sum(passed for passed, _ in verdicts) / len(verdicts)
    rewards["bug_free"] = float(not errors)
    return with_score(rewards, ParseError[errors[0].name] if errors else ParseError.NONE)


# ------------------------------------------------------------------ scoring


def _as_published(tests: Tests) -> Tests:
    """Prepare a row as verl does: use the first ten tests, and import common modules first."""
    inputs, outputs = tests.inputs[:10], tests.outputs[:10]
    if tests.kind == "call":
        inputs = [[*map(_number_keys, call[:1]), *call[1:]] for call in inputs]
    return replace(tests, inputs=inputs, outputs=outputs, setup=f"{PUBLISHED_SETUP}\n{tests.setup}")


def _number_keys(value: Any) -> Any:
    """Convert the keys of a dict to integers if all of them are integers in JSON's text keys."""
    try:
        return {int(key): item for key, item in value.items()}
    except (AttributeError, ValueError):
        return value


def _judge(
    tests: Tests, code: str, solver: Solver, checker: Sandbox, strict: bool
) -> Iterator[TestVerdict]:
    """Run the tests, and yield for each one whether it passed, and the status of the program."""
    if tests.kind == "assert":
        for test in tests.inputs:
            yield _run_assert(tests, test, code, solver, checker)
        return
    for test_input, expected in zip(tests.inputs, tests.outputs, strict=True):
        if tests.kind == "call":
            yield _run_call(tests, test_input, expected, code, solver)
            continue
        outcome = solver.run(code, test_input, setup=tests.setup)
        same = same_text if strict else same_lines
        yield outcome.status is Status.OK and same(outcome.text, expected), outcome.status


def _run_call(
    tests: Tests, arguments: list[Any], expected: Any, code: str, solver: Solver
) -> TestVerdict:
    """Run a test that calls a function with arguments."""
    # The program is loaded again for each test, so that tests share no state.
    outcome = solver.load(tests.setup, code, tests.name)
    if outcome.status is Status.OK:
        outcome = solver.call(json.dumps(encode([arguments, {}])))
    if outcome.status is not Status.OK:
        return False, outcome.status
    try:
        return same_value(outcome.text[1:], expected), Status.OK
    except (ValueError, TypeError, LookupError, RecursionError):
        return False, Status.NOT_PLAIN


def _run_assert(
    tests: Tests, test: str, code: str, solver: Solver, checker: Sandbox
) -> TestVerdict:
    """Run a test in one sandbox, which calls the program of the response in another sandbox."""
    outcome = solver.load(tests.setup, code, tests.name)
    if outcome.status is not Status.OK:
        return False, outcome.status
    message = checker.check(tests.setup, test, tests.name).text
    worst = Status.OK
    while message.startswith("C"):
        outcome = solver.call(message[1:])
        worst = outcome.status if worst is Status.OK else worst
        if not outcome.text.startswith(("V", "E")):
            return False, outcome.status  # the program has ended and cannot be called again
        message = checker.call(outcome.text).text
    return message == "P", worst
