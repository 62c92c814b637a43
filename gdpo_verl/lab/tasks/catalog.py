"""The data sets that `gdpo-verl prepare` writes, found in the folders of the recipes."""

from __future__ import annotations

import importlib
import pkgutil
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gdpo_verl import recipes

_NOTED = 5  # rejected rows that are described


@dataclass(frozen=True)
class DataSet:
    """A data set: the module that makes its rows, and their source."""

    module: str  # has ``prepare(out_dir, …)``
    max_prompt_length: int  # the recipe's, in tokens
    # Where rows come from: the hub, ``--from`` alone, here, or either of the last two.
    source: Literal["hub", "given", "own", "any"] = "hub"
    trained: bool = True  # false for what is only asked: one split, all of it test
    shots: bool = False  # it takes worked examples as earlier turns
    graded: bool = False  # its rows have rubrics, whose negative weights have two meanings
    several: bool = False  # its module makes several, and gets the name


@cache
def data_sets() -> Mapping[str, DataSet]:
    """Every data set by its name, as the folders of the recipes declare them."""
    by_name: dict[str, DataSet] = {}
    for folder in pkgutil.iter_modules(recipes.__path__, f"{recipes.__name__}."):
        by_name |= importlib.import_module(folder.name).DATA_SETS
    return by_name


def prepare(
    name: str,
    out_dir: Path,
    *,
    source: str | None = None,
    seed: int = 0,
    validation: int | None = None,
    model: str | None = None,
    max_prompt_length: int | None = None,
    shots: int = 0,
    negative: str | None = None,
) -> dict[str, Any]:
    """Write the data set ``name`` to ``out_dir`` and return its provenance.

    Args:
      name: one of `data_sets`.
      out_dir: gets train.parquet and validation.parquet, of a benchmark test.parquet, and
        provenance.json.
      source: a file, a folder or a hub id; by default where it is published.
      seed: decides what is drawn or held out.
      validation: rows held out where the source has no such split.
      model: whose tokenizer counts the prompts; unchecked without it.
      max_prompt_length: tokens that fit; by default the recipe's.
      shots: worked examples that stand as earlier turns before each question.
      negative: what a criterion with a negative weight says, of a data set with rubrics.
    """
    data_set = data_sets()[name]
    options: dict[str, Any] = {"seed": seed}
    if data_set.several:
        options["name"] = name
    if data_set.source != "own":
        options["source"] = source
    elif source is not None or validation is not None:
        option = "--from" if source is not None else "--validation"
        raise ValueError(f"{option}: {name} makes its own rows and takes none")
    if validation is not None:
        if not data_set.trained:
            raise ValueError(f"--validation: {name} is a benchmark, of which nothing is held out")
        options["validation"] = validation
    if data_set.shots:
        options["shots"] = shots
    elif shots:
        raise ValueError(f"--shots: expected 0, found {shots}: {name} has no worked examples")
    if data_set.graded:
        options["negative"] = negative
    elif negative is not None:
        raise ValueError(f"--negative: {name} has no rubrics, found {negative!r}")
    if model is not None:
        from gdpo_verl.lab.tasks.rows import PromptLength

        most = data_set.max_prompt_length if max_prompt_length is None else max_prompt_length
        options["length"] = PromptLength(model, most)
    elif max_prompt_length is not None:
        raise ValueError(
            "--max-prompt-length: this option counts tokens. Give --model, the model to be trained"
        )
    module = importlib.import_module(data_set.module)
    return dict(module.prepare(out_dir, **options))


def prepare_command_of(path: str | Path) -> str | None:
    """The command that writes the file at ``path``, recognised by its folder's name.

    >>> prepare_command_of("data/gsm8k/train.parquet")
    'gdpo-verl prepare gsm8k'
    >>> prepare_command_of("/scratch/rlla/train.parquet")
    'gdpo-verl prepare rlla --from FOLDER --out /scratch/rlla'
    >>> prepare_command_of("data/mine/train.parquet")
    """
    folder = Path(path).parent
    data_set = data_sets().get(folder.name)
    if data_set is None:
        return None
    command = f"gdpo-verl prepare {folder.name}"
    if data_set.source == "given":
        command += " --from FOLDER"
    if folder != Path("data", folder.name):
        command += f" --out {shlex.quote(str(folder.expanduser()))}"
    return command


def provenance_notes(provenance: Mapping[str, Any]) -> list[str]:
    """Describe the rejected rows, the first of them with file and row."""
    rows = provenance.get("rejected")
    lines: list[str] = []
    negative = provenance.get("negative")
    if negative:
        counts = ", ".join(f"{count} as {kind}" for kind, count in negative["criteria"].items())
        lines.append(
            f"criteria with a negative weight (--negative {negative['setting']}): taken "
            f"{counts or 'none'}; 'failure' is bad when met, 'avoided' got a positive weight"
        )
    if not rows:
        return lines
    kinds = provenance["counts"]["rejected"]
    detail = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    lines.append(f"{len(rows)} rows rejected ({detail}):")
    lines += [f"  {row['file']} row {row['row']}: {row['reason']}" for row in rows[:_NOTED]]
    if len(rows) > _NOTED:
        lines.append(f"  and {len(rows) - _NOTED} more, which provenance.json lists")
    return lines
