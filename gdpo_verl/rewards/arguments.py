"""Wrong settings of a reward function, which its caller knows under another name."""

from __future__ import annotations


class ArgumentError(ValueError):
    """A setting that a reward function was called with is wrong.

    Attributes:
      argument: its name in the function's signature.
    """

    def __init__(self, argument: str, problem: str) -> None:
        super().__init__(argument, problem)  # what pickle makes it from again
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.argument}: {self.problem}"
