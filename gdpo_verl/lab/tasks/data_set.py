"""The declaration of a data set that the folder of a recipe can prepare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal


@dataclass(frozen=True)
class DataSet:
    """A data set: the module that writes it, and the options of this module.

    Attributes:
      module: a function that imports the module, whose ``prepare(out_dir, …)`` writes the rows. The
        import is delayed, because packages that one data set needs may be missing when another data
        set is prepared.
      max_prompt_length: the recipe's longest prompt, in tokens.
      source: the origin of the rows. "hub": ``--from``, by default the hub; "given": only
        ``--from``; "own": the module makes the rows; "any": ``--from``, by default the module's
        own rows.
      trained: False for a benchmark, which has only a test split.
      shots: True if worked examples can be put in front of each question.
      several: True if the module writes several data sets, and needs the name as an argument.
      graded: True if the rows have rubrics, whose negative weights have two possible meanings.
    """

    module: Callable[[], ModuleType]
    max_prompt_length: int
    source: Literal["hub", "given", "own", "any"] = "hub"
    trained: bool = True
    shots: bool = False
    several: bool = False
    graded: bool = False
