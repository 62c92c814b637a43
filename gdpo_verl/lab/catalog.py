"""The data sets of `gdpo-verl prepare` and the tasks of `gdpo-verl make-policy`.

This module imports the folders of all recipes. Therefore no module that a recipe imports may import
this module.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gdpo_verl.lab.tasks.data_set import DataSet
from gdpo_verl.recipes import (
    code,
    gsm8k,
    instructions,
    math_length,
    tool_call,
    tool_turns,
    toolbox,
)

if TYPE_CHECKING:
    from gdpo_verl.lab.policy.task import PolicyTask

DATA_SETS: Mapping[str, DataSet] = {
    **code.DATA_SETS,
    **gsm8k.DATA_SETS,
    **instructions.DATA_SETS,
    **math_length.DATA_SETS,
    **tool_call.DATA_SETS,
    **tool_turns.DATA_SETS,
    **toolbox.DATA_SETS,
}

POLICY_TASKS = ("toolbox", "tool-turns", "reasoning-gym", "bfcl")
"""The names of `policy_tasks`, which are repeated here because its imports take seconds."""

_NOTED = 5  # the number of rejected rows that are described


def policy_tasks() -> dict[str, PolicyTask]:
    """Return the tasks for which `make-policy` trains a policy, by their names."""
    from gdpo_verl.recipes.gsm8k import policy as reasoning_gym
    from gdpo_verl.recipes.tool_call import policy as bfcl
    from gdpo_verl.recipes.tool_turns import policy as tool_turns
    from gdpo_verl.recipes.toolbox import policy as toolbox

    tasks = (toolbox.TASK, tool_turns.TASK, reasoning_gym.TASK, bfcl.TASK)
    return {task.name: task for task in tasks}


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
      name: one of `DATA_SETS`.
      out_dir: the folder for train.parquet and validation.parquet, for a benchmark test.parquet,
        and for provenance.json.
      source: a file, a folder or a hub id; by default the place where the data set is published.
      seed: determines the rows that are drawn or held out.
      validation: the number of rows to hold out if the source has no validation split.
      model: a model whose tokenizer counts the tokens of the prompts; None does not count them.
      max_prompt_length: the largest number of tokens of a prompt; by default the recipe's.
      shots: the number of worked examples in front of each question, as earlier turns.
      negative: the meaning of criteria with a negative weight, for a data set with rubrics.

    Raises:
      ValueError: an option does not apply to this data set, or its rows cannot be used.
    """
    data_set = DATA_SETS[name]
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
    return dict(data_set.module().prepare(out_dir, **options))


def prepare_command_of(path: str | Path) -> str | None:
    """Return the command that writes the file at ``path``, judging by the name of its folder.

    >>> prepare_command_of("data/gsm8k/train.parquet")
    'gdpo-verl prepare gsm8k'
    >>> prepare_command_of("/scratch/rlla/train.parquet")
    'gdpo-verl prepare rlla --from FOLDER --out /scratch/rlla'
    >>> prepare_command_of("data/mine/train.parquet")
    """
    folder = Path(path).parent
    data_set = DATA_SETS.get(folder.name)
    if data_set is None:
        return None
    command = f"gdpo-verl prepare {folder.name}"
    if data_set.source == "given":
        command += " --from FOLDER"
    if folder != Path("data", folder.name):
        command += f" --out {shlex.quote(str(folder.expanduser()))}"
    return command


def provenance_notes(provenance: Mapping[str, Any]) -> list[str]:
    """Describe the rejected rows of a data set, the first of them with file and row."""
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
