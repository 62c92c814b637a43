"""Reading rows of verl's TransferQueue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transfer_queue as tq
from tensordict import NonTensorData


def fetch(keys: Sequence[str], partition_id: str, fields: Sequence[str]) -> Any:
    """The fields of these rows as a TensorDict, in the order of the keys."""
    return tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=list(fields))


def values(column: Any) -> list[Any]:
    """A column without tensors, one plain value a row."""
    rows = column.tolist() if hasattr(column, "tolist") else list(column)
    return [row.data if isinstance(row, NonTensorData) else row for row in rows]


def reward_infos(extra_fields: Any) -> list[dict[str, Any]]:
    """The dict that the reward returned for each row, from the column `extra_fields`."""
    return [row.get("reward_extra_info") or {} for row in values(extra_fields)]


def columns(keys: Sequence[str], partition_id: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """The fields of these names, one dict a row; a field that no row has is left out."""
    fields = fetch(keys, partition_id, ["uid", *names])  # of the others perhaps none is there
    present = [name for name in names if name in fields.keys()]  # noqa: SIM118  a TensorDict
    rows = zip(*(values(fields[name]) for name in present), strict=True)
    return [dict(zip(present, row, strict=True)) for row in rows] or [{} for _ in keys]
