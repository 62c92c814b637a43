"""The declaration of the data sets that the folder of a recipe can prepare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal


@dataclass(frozen=True)
class DataSet:
    """A data set: the module that writes it, and the options that the module takes.

    Attributes:
      module: imports the module, whose ``prepare(out_dir, …)`` writes the rows. It is a function,
        because the packages of one data set may be absent where another one is prepared.
      max_prompt_length: the recipe's, in tokens.
      source: where rows come from: the hub, ``--from`` alone, here, or either of the last two.
      trained: false for a benchmark, which has one split.
      shots: whether worked examples can be put in front of each question.
      several: whether the module writes several data sets, and is told the name.
      graded: whether rows have rubrics, whose negative weights have two meanings.
    """

    module: Callable[[], ModuleType]
    max_prompt_length: int
    source: Literal["hub", "given", "own", "any"] = "hub"
    trained: bool = True
    shots: bool = False
    several: bool = False
    graded: bool = False
