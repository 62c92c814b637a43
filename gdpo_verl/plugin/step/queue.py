"""Read and write rows of verl's TransferQueue."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import transfer_queue as tq
from tensordict import NonTensorData, TensorDict


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep Python's cyclic garbage collector from running.

    Each value in the queue consists of several objects. Each time some of them are created, the
    collector visits all objects of the trainer. With 65,536 rows this happens almost 10,000 times
    in an advantage step, and takes three tenths of its time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def fetch(keys: Sequence[str], partition_id: str, fields: Sequence[str]) -> Any:
    """Read fields of these rows as a TensorDict, in the order of the keys."""
    return tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=list(fields))


@collector_paused()
def reward_infos(keys: Sequence[str], partition_id: str) -> list[dict[str, Any]]:
    """Read the dict that the reward function returned for each row; {} if it returned a number."""
    rows = _values(fetch(keys, partition_id, ["extra_fields"])["extra_fields"])
    return [row.get("reward_extra_info") or {} for row in rows]


def response_masks(keys: Sequence[str], partition_id: str) -> list[torch.Tensor]:
    """Read the response mask of each row. A mask has the length of its response."""
    return list(fetch(keys, partition_id, ["response_mask"])["response_mask"].unbind())


def put_response_tokens(
    keys: Sequence[str], partition_id: str, name: str, table: torch.Tensor, lengths: Sequence[int]
) -> None:
    """Write a padded table of shape (B, T) as a field, with each row cut to its response length."""
    rows = [row[:length] for row, length in zip(table, lengths, strict=True)]
    nested = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    fields = TensorDict({name: nested}, batch_size=len(rows))
    tq.kv_batch_put(keys=keys, partition_id=partition_id, fields=fields)


@collector_paused()
def columns(keys: Sequence[str], partition_id: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Read fields as one dict for each row; fields that do not exist are left out."""
    # `uid` always exists. It is read because the other fields may all be missing.
    fields = fetch(keys, partition_id, ["uid", *names])
    existing = [name for name in names if name in fields.keys()]  # noqa: SIM118  a TensorDict
    present = {name: _values(fields[name]) for name in existing}
    infos = []
    for row in range(len(keys)):
        infos.append({name: values[row] for name, values in present.items()})
    return infos


def _values(column: Any) -> list[Any]:
    """Return a column as a list of plain values, one for each row."""
    rows = column.tolist() if hasattr(column, "tolist") else list(column)
    return [row.data if isinstance(row, NonTensorData) else row for row in rows]
