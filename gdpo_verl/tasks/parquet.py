"""Write a data set: parquet in verl's columns, with its provenance beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import gdpo_verl
from gdpo_verl.files import replacing, sha256

PROVENANCE = "provenance.json"

_BATCH = 1000  # rows at once: an Arrow array of text ends at 2 GiB


def row(
    data_source: str,
    prompt: list[dict[str, str]],
    ground_truth: str,
    *,
    ability: str,
    extra_info: Mapping[str, Any],
) -> dict[str, Any]:
    """One row in verl's columns. ``extra_info`` needs ``index`` and ``split``."""
    return {
        "data_source": data_source,
        "prompt": prompt,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": dict(extra_info),
    }


def write(
    out_dir: Path,
    splits: Mapping[str, Sequence[Mapping[str, Any]]],
    provenance: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``<split>.parquet`` for each split, then ``provenance.json``.

    Every file is complete under a temporary name before any gets its own, so
    an interrupted run leaves no half file; the temporary ones of a killed run
    are removed by the next. The provenance comes last and holds
    each file's SHA-256: where it is present and agrees, the set is whole. The
    same rows give the same bytes.

    Returns:
      the provenance as written: ``provenance`` with the package version, and
      rows and SHA-256 of each file.

    Raises:
      ValueError: a split has no rows.
    """
    for split, rows in splits.items():
        if not rows:
            raise ValueError(f"split {split!r} has no rows; ask for at least one")
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    files: dict[str, dict[str, Any]] = {}
    with ExitStack() as pending:
        # Entered first, it gets its name last: a folder with a provenance is whole.
        record = pending.enter_context(replacing(out_dir / PROVENANCE))
        for split, rows in splits.items():
            path = pending.enter_context(replacing(out_dir / f"{split}.parquet"))
            _write_rows(rows, path)
            files[f"{split}.parquet"] = {"rows": len(rows), "sha256": sha256(path)}
        version = getattr(gdpo_verl, "__version__", "unknown")
        written = {**provenance, "gdpo_verl": version, "files": files}
        text = json.dumps(written, indent=2, ensure_ascii=False) + "\n"
        record.write_text(text, encoding="utf-8")
    return written


def _write_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    batches = [rows[start : start + _BATCH] for start in range(0, len(rows), _BATCH)]
    # A column that is empty in one batch may be text in the next.
    schema = pa.unify_schemas(
        [pa.Table.from_pylist(list(batch)).schema for batch in batches],
        promote_options="permissive",
    )
    with pq.ParquetWriter(path, schema) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_pylist(list(batch), schema=schema))
