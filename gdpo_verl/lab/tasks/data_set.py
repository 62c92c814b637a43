"""How the folder of a recipe declares the data sets that it can prepare."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class DataSet:
    """A data set: the function that writes it, and the options that the function takes.

    Attributes:
      prepare: called with the directory and the options; returns the provenance. It imports the
        module of the rows itself, because the packages of one data set may be absent where
        another one is prepared.
      max_prompt_length: the recipe's, in tokens.
      source: where rows come from: the hub, ``--from`` alone, here, or either of the last two.
      trained: false for a benchmark, which has one split.
      shots: whether worked examples can be put in front of each question.
      graded: whether rows have rubrics, whose negative weights have two meanings.
    """

    prepare: Callable[..., dict[str, Any]]
    max_prompt_length: int
    source: Literal["hub", "given", "own", "any"] = "hub"
    trained: bool = True
    shots: bool = False
    graded: bool = False
