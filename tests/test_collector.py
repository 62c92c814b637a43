"""Python's collector rests while somebody asks for it, and is as it was afterwards."""

import gc
import threading

import pytest

from gdpo_verl.rewards import tool_call
from gdpo_verl.rewards.collector import collector_paused


@pytest.fixture(params=[True, False], ids=["enabled", "disabled"])
def enabled(request):
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


def test_it_rests_inside_and_is_as_it_was_outside(enabled):
    with collector_paused():
        assert not gc.isenabled()
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_an_error_inside_restores_it(enabled):
    with pytest.raises(ValueError, match="inside"), collector_paused():
        raise ValueError("inside")
    assert gc.isenabled() == enabled


def test_it_rests_until_the_last_thread_has_left(enabled):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with collector_paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with collector_paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join(10)
    assert gc.isenabled() == enabled


@pytest.mark.parametrize(("size", "rests"), [(tool_call.LARGE - 1, False), (tool_call.LARGE, True)])
def test_it_rests_for_large_answers_only(size, rests, enabled, monkeypatch):
    seen = []

    def judge(text, ground_truth):
        seen.append(gc.isenabled())
        return 0.0, -3.0, tool_call.ParseError.NO_CALL

    monkeypatch.setattr(tool_call, "_judge_strictly", judge)
    tool_call.compute_score("", "x" * size, "")
    assert seen == [enabled and not rests]
    assert gc.isenabled() == enabled
