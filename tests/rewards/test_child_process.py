"""A child process asked by lines of JSON: every way in which it gives no answer, and its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from waiting import is_alive, wait_for

from gdpo_verl.sandbox.child_process import ChildProcess


@contextlib.contextmanager
def child(*command: str) -> Iterator[ChildProcess]:
    process = ChildProcess(command)
    try:
        yield process
    finally:
        process.end()


def later(seconds: float = 600) -> float:
    return time.monotonic() + seconds


def test_a_line_of_any_length_is_sent_and_read() -> None:
    with child("cat") as process:
        for request in ({"a": [1, "é\n\0"]}, "x" * 300_000, None):
            assert process.ask(request, later(1e12)) == request


@pytest.mark.parametrize("program", ["true", "read x; echo no JSON", "read x; kill -9 $$"])
def test_a_process_that_gives_no_json_has_ended_as_far_as_anyone_can_tell(program: str) -> None:
    with child("sh", "-c", program) as process, pytest.raises(EOFError):
        process.ask("x" * 300_000, later())


def test_an_answer_that_is_too_long_is_none() -> None:
    with child("cat") as process, pytest.raises(EOFError):
        process.ask("1234", later(), most=5)


@pytest.mark.parametrize("request_", ["short", "x" * 300_000], ids=["never answers", "never reads"])
def test_no_answer_within_the_deadline(request_: str) -> None:
    with child("sleep", "600") as process, pytest.raises(TimeoutError):
        process.ask(request_, later(0.1))


def test_what_it_started_ends_with_it() -> None:
    with child("sh", "-c", "sleep 600 & read x; echo $!; wait") as process:
        started = process.ask(None, later())
        assert is_alive(started)
    wait_for(lambda: not is_alive(started))
