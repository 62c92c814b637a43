"""The table of tasks, whose rows `gdpo-verl prepare` writes."""

from __future__ import annotations

import importlib
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True)
class Task:
    """A task: the module that makes its rows, and their source."""

    module: str  # in `gdpo_verl.lab.tasks`; has ``prepare(out_dir, …)``
    max_prompt_length: int  # the recipe's, in tokens
    # Where rows come from: the hub, ``--from`` alone, here, or either of the last two.
    source: Literal["hub", "given", "own", "any"] = "hub"
    trained: bool = True  # false for what is only asked: one split, all of it test
    shots: bool = False  # it takes worked examples as earlier turns


DATASETS = {
    "toolbox": Task("toolbox", 64, source="own"),
    "tool-turns": Task("tool_turns", 64, source="own"),
    "bfcl": Task("bfcl", 2048, source="own"),
    "bfcl-v3": Task("bfcl_v3", 31744, source="any", trained=False),
    "reasoning-gym": Task("reasoning_gym", 512, source="own", shots=True),
    "short-sums": Task("reasoning_gym", 512, source="own", shots=True),
    "gsm-symbolic": Task("reasoning_gym", 512, source="own", shots=True),
    "instructions": Task("instructions", 512, source="any"),
    "rlla": Task("rlla", 2048, source="given"),
    "gsm8k": Task("gsm8k", 512, shots=True),
    "deepscaler": Task("deepscaler", 1024),
    "eurus2-code": Task("eurus2_code", 1024),
    **dict.fromkeys(
        ("aime24", "aime25", "amc", "math500", "minerva", "olympiad"),
        Task("math_sets", 1024, trained=False),
    ),
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
    shots: int = 0,
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
      shots: worked examples that stand as earlier turns before each question.
    """
    task = DATASETS[name]
    options: dict[str, Any] = {"seed": seed}
    if name.replace("-", "_") != task.module:  # one of several data sets of its module
        options["name"] = name
    if task.source != "own":
        options["source"] = source
    elif source is not None or validation is not None:
        refused = "--from" if source is not None else "--validation"
        raise ValueError(f"{refused}: {name} makes its own rows and takes none")
    if validation is not None:
        if not task.trained:
            raise ValueError(f"--validation: nothing is held out of {name}, which is all test")
        options["validation"] = validation
    if task.shots:
        options["shots"] = shots
    elif shots:
        raise ValueError(f"--shots: expected 0, found {shots}: {name} has no worked examples")
    if model is not None:
        from gdpo_verl.lab.tasks.rows import PromptLength

        most = task.max_prompt_length if max_prompt_length is None else max_prompt_length
        options["length"] = PromptLength(model, most)
    elif max_prompt_length is not None:
        raise ValueError(
            "--max-prompt-length: counts tokens; give --model too, the model to be trained"
        )
    return dict(load_module(task.module).prepare(out_dir, **options))


def prepare_command_of(path: str | Path) -> str | None:
    """The command that writes the file at ``path``, told by its folder's name.

    >>> prepare_command_of("data/gsm8k/train.parquet")
    'gdpo-verl prepare gsm8k'
    >>> prepare_command_of("/scratch/rlla/train.parquet")
    'gdpo-verl prepare rlla --from FOLDER --out /scratch/rlla'
    >>> prepare_command_of("data/mine/train.parquet")
    """
    folder = Path(path).parent
    task = DATASETS.get(folder.name)
    if task is None:
        return None
    command = f"gdpo-verl prepare {folder.name}"
    if task.source == "given":
        command += " --from FOLDER"
    if folder != Path("data", folder.name):
        command += f" --out {shlex.quote(str(folder.expanduser()))}"
    return command


def provenance_notes(provenance: Mapping[str, Any], *, most: int = 5) -> list[str]:
    """Describe the rejected rows, the first of them with file and row."""
    rows = provenance.get("rejected")
    if not rows:
        return []
    kinds = Counter(row["kind"] for row in rows)
    detail = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    lines = [f"{len(rows)} rows rejected ({detail}):"]
    lines += [f"  {row['file']} row {row['row']}: {row['reason']}" for row in rows[:most]]
    if len(rows) > most:
        lines.append(f"  and {len(rows) - most} more, which provenance.json lists")
    return lines


def load_module(name: str) -> Any:
    """Import a module of this package, when it is wanted: each needs other packages."""
    return importlib.import_module(f"gdpo_verl.lab.tasks.{name}")
