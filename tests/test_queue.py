"""Reading a trainer's queue: rows in their order, no collection. On a real queue: test_seam.py."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gdpo_verl.plugin import queue


@pytest.fixture(params=[True, False], ids=["on", "off"])
def collector(request: pytest.FixtureRequest) -> Iterator[bool]:
    """The collector as it is before the call."""
    before = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if before else gc.disable)()


READ: list[Callable[[], Any]] = [
    lambda: queue.reward_infos(["a_0_0"], "train"),
    lambda: queue.columns(["a_0_0"], "train", ["format"]),
]


@pytest.mark.parametrize("read", READ, ids=["reward_infos", "columns"])
@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_the_collector_rests_while_rows_are_read_and_is_then_as_it_was(
    collector: bool, read: Callable[[], Any], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fetch(*_: Any) -> dict[str, list[Any]]:
        seen.append(gc.isenabled())
        if fails:
            raise ValueError("keys or partition were not found!")
        return {"extra_fields": [{"reward_extra_info": {"format": 1.0}}], "format": [1.0]}

    monkeypatch.setattr(queue, "fetch", fetch)
    for _ in range(2):
        if fails:
            with pytest.raises(ValueError, match="not found"):
                read()
        else:
            assert read() == [{"format": 1.0}]
        assert gc.isenabled() == collector
    assert seen == [False, False]


def test_rows_are_in_the_order_of_the_keys_that_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = ["b_1_0", "a_0_0", "c_0_0", "a_1_0"]

    def kv_batch_get(*, keys: Any, partition_id: str, select_fields: Any) -> dict[str, list[Any]]:
        assert partition_id == "train"
        infos = [{"reward_extra_info": {"format": key}} for key in keys]
        columns = {"extra_fields": infos, "format": list(keys), "uid": list(keys)}
        return {name: columns[name] for name in select_fields}

    monkeypatch.setattr(queue.tq, "kv_batch_get", kv_batch_get)
    expected = [{"format": key} for key in keys]
    assert queue.reward_infos(keys, "train") == expected
    assert queue.columns(keys, "train", ["format"]) == expected
