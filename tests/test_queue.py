"""Reading a trainer's queue: rows in their order, no collection. On a real queue: test_seam.py."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from gdpo_verl.plugin import queue


@pytest.mark.parametrize("before", [gc.enable, gc.disable])
def test_the_collector_rests_while_rows_are_read_and_is_then_as_it_was(
    before: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def fetch(*_: Any) -> None:
        seen.append(gc.isenabled())
        raise ValueError("keys or partition were not found!")

    monkeypatch.setattr(queue, "fetch", fetch)
    before()
    try:
        for _ in range(2):
            with pytest.raises(ValueError, match="not found"):
                queue.reward_infos(["a_0_0"], "train")
            assert gc.isenabled() == (before is gc.enable)
    finally:
        gc.enable()
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
