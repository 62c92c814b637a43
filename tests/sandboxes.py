"""A sandbox for each protection that this machine can give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import pytest

from gdpo_verl.sandbox import Limits, Sandbox, best_protection
from gdpo_verl.sandbox import protection as protections
from gdpo_verl.sandbox.probe import probe


def working_protections(site_packages: str | None = None) -> Iterator[protections.Protection]:
    """Every protection that holds here, best first."""
    for candidate in protections.candidates(site_packages):
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
