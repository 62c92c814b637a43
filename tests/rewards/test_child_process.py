"""A child process asked by lines of JSON: when it gives no answer, and its end.

Deadlines, long lines and children that do not read: test_deadline.py and test_session.py.
"""

import contextlib
import time

import pytest
from waiting import is_alive, wait_for

from gdpo_verl.sandbox.child_process import ChildProcess


@contextlib.contextmanager
def child(program):
    process = ChildProcess(["sh", "-c", program])
    try:
        yield process
    finally:
        process.end()


ENDS = ["true", "read x; echo no JSON", "read x; kill -9 $$", "read x; echo 1234"]


@pytest.mark.parametrize("program", ENDS)
def test_a_process_that_gives_no_json_or_too_much_has_ended_as_far_as_anyone_can_tell(program):
    with child(program) as process, pytest.raises(EOFError):
        process.ask("x" * 300_000, time.monotonic() + 600, most=4)


def test_what_it_started_ends_with_it():
    with child("sleep 600 & read x; echo $!; wait") as process:
        started = process.ask(None, time.monotonic() + 600)
        assert is_alive(started)
    wait_for(lambda: not is_alive(started))
