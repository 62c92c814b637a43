"""The tasks by name: the data sets that `prepare` writes, the benchmarks that `evaluate` asks."""

from __future__ import annotations

import importlib
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdpo_verl.tasks.benchmark import Benchmark


@dataclass(frozen=True)
class DataSet:
    """How a data set is prepared.

    Attributes:
      module: has ``prepare(out_dir, …)``.
      max_prompt_length: that of its recipe, in tokens.
      needs_source: whether ``--from`` must be given.
      takes_source: whether it can be.
      benchmark: asked and never trained on: one split, all of it test.
    """

    module: str
    max_prompt_length: int
    needs_source: bool = False
    takes_source: bool = True
    benchmark: bool = False


DATASETS = {
    "toolbox": DataSet("gdpo_verl.tasks.toolbox", 64, takes_source=False),
    "bfcl": DataSet("gdpo_verl.tasks.bfcl", 2048, takes_source=False),
    "reasoning-gym": DataSet("gdpo_verl.tasks.reasoning_gym", 512, takes_source=False),
    "rlla": DataSet("gdpo_verl.tasks.rlla", 2048, needs_source=True),
    "gsm8k": DataSet("gdpo_verl.tasks.gsm8k", 512),
    "deepscaler": DataSet("gdpo_verl.tasks.deepscaler", 1024),
    "eurus2-code": DataSet("gdpo_verl.tasks.eurus2_code", 1024),
    **{
        name: DataSet("gdpo_verl.tasks.math_sets", 1024, benchmark=True)
        for name in ("aime24", "aime25", "amc", "math500", "minerva", "olympiad")
    },
}

BENCHMARKS = {
    "bfcl": "gdpo_verl.tasks.bfcl.benchmark:Bfcl",
    "gsm8k": "gdpo_verl.tasks.gsm8k:Gsm8k",
    "math": "gdpo_verl.tasks.math_sets:Boxed",
    "aime24": "gdpo_verl.tasks.math_sets:Aime24",
    "aime25": "gdpo_verl.tasks.math_sets:Aime25",
    "amc": "gdpo_verl.tasks.math_sets:Amc",
    "math500": "gdpo_verl.tasks.math_sets:Math500",
    "minerva": "gdpo_verl.tasks.math_sets:Minerva",
    "olympiad": "gdpo_verl.tasks.math_sets:Olympiad",
    "code": "gdpo_verl.tasks.eurus2_code:Programs",
    "humaneval": "gdpo_verl.tasks.humaneval:HumanEval",
    "toolbox": "gdpo_verl.tasks.toolbox:Toolbox",
}


def prepare(
    name: str,
    out_dir: Path,
    *,
    source: str | None = None,
    seed: int = 0,
    validation: int | None = None,
    model: str | None = None,
    max_prompt_length: int | None = None,
) -> dict[str, Any]:
    """Write the data set ``name`` to ``out_dir`` and return its provenance.

    Args:
      name: one of `DATASETS`.
      out_dir: gets train.parquet and validation.parquet, of a benchmark test.parquet, and
        provenance.json.
      source: a file, a folder or a hub id; by default where it is published.
      seed: decides what is drawn or held out.
      validation: rows held out where the source has no such split.
      model: whose tokenizer counts the prompts; unchecked without it.
      max_prompt_length: tokens that fit; by default the recipe's.

    Raises:
      ValueError: an option that the data set does not take, or data that cannot be used.
      OSError: the source is not there, or the hub cannot be reached.
    """
    dataset = DATASETS[name]
    options: dict[str, Any] = {"seed": seed}
    given = {"--from": source, "--validation": validation}
    if dataset.benchmark:
        if validation is not None:
            raise ValueError(f"--validation: nothing is held out of {name}, which is all test")
        options |= {"name": name, "source": source}
    elif dataset.takes_source:
        options |= {"source": source, "validation": validation}
    elif refused := [option for option, value in given.items() if value is not None]:
        raise ValueError(f"{' and '.join(refused)}: {name} has rows of its own and takes none")
    if model is not None:
        from gdpo_verl.tasks.rows import PromptLength

        most = dataset.max_prompt_length if max_prompt_length is None else max_prompt_length
        options["length"] = PromptLength.load(model, most)
    elif max_prompt_length is not None:
        raise ValueError(
            "--max-prompt-length: counts tokens; give --model too, the model to be trained"
        )
    return dict(importlib.import_module(dataset.module).prepare(out_dir, **options))


def command_for(path: str | Path) -> str | None:
    """The command that writes the file at ``path``, told by its folder's name.

    >>> command_for("data/gsm8k/train.parquet")
    'gdpo-verl prepare gsm8k'
    >>> command_for("/scratch/rlla/train.parquet")
    'gdpo-verl prepare rlla --from FOLDER --out /scratch/rlla'
    >>> command_for("data/mine/train.parquet")
    """
    folder = Path(path).parent
    dataset = DATASETS.get(folder.name)
    if dataset is None:
        return None
    command = f"gdpo-verl prepare {folder.name}"
    command += " --from FOLDER" if dataset.needs_source else ""
    return (
        command
        if folder == Path("data", folder.name)
        else f"{command} --out {shlex.quote(str(folder.expanduser()))}"
    )


def remarks(provenance: Mapping[str, Any], *, most: int = 5) -> list[str]:
    """What a user must see: the rejected and the doubtful rows, the first with file and row."""
    lines = []
    for what in ("rejected", "doubtful"):
        rows = provenance.get(what) or []
        if not rows:
            continue
        kinds = Counter(row["kind"] for row in rows if "kind" in row)
        detail = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        lines.append(f"{len(rows)} rows {what}{f' ({detail})' if detail else ''}:")
        for row in rows[:most]:
            place = f"row {row['row']}" if "row" in row else row["id"]
            reason = row["reason"] if isinstance(row["reason"], str) else "; ".join(row["reason"])
            lines.append(f"  {row['file']} {place}: {reason}")
        if len(rows) > most:
            lines.append(f"  and {len(rows) - most} more, which provenance.json lists")
    return lines


def open_benchmark(
    name: str, *, allow_unprotected: bool = False, prompt_from: Sequence[str] = ()
) -> Benchmark:
    """The benchmark of this name; see there for the other arguments.

    Raises:
      ValueError: there is none; names a close one.
    """
    if name not in BENCHMARKS:
        from gdpo_verl.config import did_you_mean

        known = list(BENCHMARKS)
        raise ValueError(
            f"benchmark: expected one of {known}, found {name!r}.{did_you_mean(name, known)}"
        )
    module, _, kind = BENCHMARKS[name].partition(":")
    found = getattr(importlib.import_module(module), kind)
    benchmark: Benchmark = found(allow_unprotected=allow_unprotected, prompt_from=prompt_from)
    return benchmark
