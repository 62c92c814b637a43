"""Write files from which rows are prepared, and read rows that `gdpo-verl prepare` has written."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = ["data_source", "prompt", "ability", "reward_model", "extra_info"]


def write(path, rows):
    """Write rows in the format of the name's ending, or write a text."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, str):
        path.write_text(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def written(out_dir, split):
    table = pq.read_table(out_dir / f"{split}.parquet")
    assert table.column_names == COLUMNS
    return list(table.to_pylist())


def truths(out_dir, split):
    return [row["reward_model"]["ground_truth"] for row in written(out_dir, split)]


def rejected(provenance):
    return [(row["row"], row["kind"]) for row in provenance["rejected"]]
