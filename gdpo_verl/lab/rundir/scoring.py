"""Score stored responses again with a reward function, whose arguments are read from the rows."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gdpo_verl.advantage.variants import load_function
from gdpo_verl.config.components import declared_components
from gdpo_verl.reward_dicts import unnested
from gdpo_verl.rewards.thought import opened_thought

TokenCounter: TypeAlias = Callable[[str], int]
# The columns from which each argument of a reward function is read, except the response.
_COLUMNS = {
    "data_source": ("data_source",),
    "ground_truth": ("ground_truth", "gts"),
    "extra_info": ("extra_info",),
}


class _NotDumpedError(BaseException):
    """The error when a reward function uses a part of the row that was not dumped.

    It is no `Exception`, so that an `except Exception` in the reward function does not catch it.
    """


class _NotDumped:
    """A placeholder for a part of the row that was not dumped.

    Any use of the placeholder is recorded in `used`, and raises `_NotDumpedError`.
    """

    def __init__(self, name: str, used: list[str]) -> None:
        self.__dict__.update(_name=name, _used=used)

    def _use(self, *arguments: Any, **_: Any) -> Any:
        # For the dict `extra_info` the recorded name contains the key.
        key = f"[{arguments[0]!r}]" if arguments and self._name == "extra_info" else ""
        self._used.append(f"{self._name}{key}")
        raise _NotDumpedError

    def __getattr__(self, name: str) -> Any:
        return self._use if name in ("get", "pop", "setdefault") else self._use()

    __getitem__ = __contains__ = __eq__ = __ne__ = __lt__ = __add__ = __radd__ = _use
    __iter__ = __len__ = __str__ = __repr__ = __hash__ = __format__ = __float__ = __int__ = _use

    def __bool__(self) -> bool:
        # A function may write `extra_info or {}`. Its next access then names the missing key.
        return True


class StoredAnswerScorer:
    """Calls a reward function as verl's managers do, with arguments from a stored row.

    Args:
      function: FILE:NAME or pkg://package.module:NAME; NAME is `compute_score` by default.

    Raises:
      ValueError: the function cannot be loaded.
    """

    def __init__(self, function: str) -> None:
        _, colon, name = function.rpartition(":")
        if not colon or not name.isidentifier():
            function = f"{function}:compute_score"
        self.address = function
        sys.path.insert(0, os.getcwd())  # as under ``python -m verl.trainer.main_ppo``
        self._function = load_function(function, "--function")
        self.components = tuple(declared_components(self._function))

    def __call__(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the rewards of a row as a dict.

        Args:
          row: the stored row.
          where: the file and the line of the row, for messages.

        Raises:
          ValueError: the function raised, or needs a part of the row that was not dumped. The
            message names file and line.
        """
        used: list[str] = []
        arguments: dict[str, Any] = {}
        for name, columns in _COLUMNS.items():
            arguments[name] = _NotDumped(name, used)
            for column in columns:
                if row.get(column) is not None:
                    arguments[name] = row[column]
        # A prompt may open the thought. The plug-in's manager puts this tag in front of the
        # response, so that the reward function sees the whole thought.
        opening = opened_thought(str(row.get("input", "")))
        arguments["solution_str"] = opening + str(row["output"])
        result: Any = None
        # Output that the reward function prints must not mix with the command's own output.
        with contextlib.redirect_stdout(sys.stderr):
            try:
                result = self._function(**arguments)
                if inspect.iscoroutine(result):
                    result = asyncio.run(result)
            except _NotDumpedError:
                pass
            except Exception as error:
                if not used:
                    text = f"{type(error).__name__}: {error}"
                    raise ValueError(f"{where}: {self.address} raised {text}") from error
        if used:
            raise ValueError(f"{where}: {self.address} needs {used[0]}, which was not dumped")
        if not isinstance(result, dict):
            result = {"score": result}
        return {key: _plain(value) for key, value in unnested(result).items()}


def _plain(value: Any) -> Any:
    """Convert numbers and arrays of NumPy and PyTorch to Python numbers and lists."""
    return value.tolist() if hasattr(value, "tolist") else value


def token_counter(model: str) -> TokenCounter:
    """Return a function that counts a response's tokens with a model's tokenizer."""
    from gdpo_verl.lab.tasks.rows import tokenizer_of

    tokenizer = tokenizer_of(model, "--tokenizer")
    # The text of a dump lacks the end token, which the training run counted.
    return lambda text: 1 + len(tokenizer.encode(text, add_special_tokens=False))
