"""The child of `scoring`: it loads a reward function, and answers each line with a reward's dict.

python -m gdpo_verl.lab.replay.worker FILE:NAME
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from gdpo_verl.advantage.variants import load_function
from gdpo_verl.config.components import declared_components


class _NotDumpedError(BaseException):
    """A part of the row was not dumped; no reward's `except Exception` takes it for its own."""


class _NotDumped:
    """Stands for a part of the row that was not dumped: any use of it is noted, and raises."""

    def __init__(self, name: str, used: list[str]) -> None:
        self.__dict__.update(_name=name, _used=used)

    def _use(self, *arguments: Any, **_: Any) -> Any:
        # The error for a dict names the key.
        key = f"[{arguments[0]!r}]" if arguments and self._name == "extra_info" else ""
        self._used.append(f"{self._name}{key}")
        raise _NotDumpedError

    def __getattr__(self, name: str) -> Any:
        return self._use if name in ("get", "pop", "setdefault") else self._use()

    __getitem__ = __contains__ = __eq__ = __ne__ = __lt__ = __add__ = __radd__ = _use
    __iter__ = __len__ = __str__ = __repr__ = __hash__ = __format__ = __float__ = __int__ = _use

    def __bool__(self) -> bool:
        return True  # `extra_info or {}` is a question to come, which will have a name


def _load(function: str) -> Callable[..., Any]:
    _, colon, name = function.rpartition(":")
    if not colon or not name.isidentifier():
        function = f"{function}:compute_score"
    loaded: Callable[..., Any] = load_function(function, "--function")
    return loaded


def _score(function: Callable[..., Any], question: dict[str, Any]) -> dict[str, Any]:
    """Return the reward of one response, or why there is none."""
    used: list[str] = []
    result: Any = None
    names = ("data_source", "solution_str", "ground_truth", "extra_info")
    try:
        result = function(**{name: question.get(name, _NotDumped(name, used)) for name in names})
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
    except _NotDumpedError:
        pass
    except Exception as error:
        if not used:
            return {"error": f"raised {type(error).__name__}: {error}"}
    if used:
        return {"error": f"needs {used[0]}, which was not dumped"}
    return {"found": result if isinstance(result, dict) else {"score": result}}


def _plain(value: Any) -> Any:
    """Turn into text what JSON cannot hold, such as numpy's numbers."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _serve(function: str) -> None:
    """Answer the lines of the standard input; what the reward prints goes to standard error."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    sys.stdin.readline()
    try:
        loaded = _load(function)
        reply: Any = {"found": [dataclasses.asdict(each) for each in declared_components(loaded)]}
    except (Exception, SystemExit) as error:
        reply = {"error": f"failed: {error}"}
    print(json.dumps(reply), file=replies)
    for line in sys.stdin:
        reply = _score(loaded, json.loads(line))
        print(json.dumps(reply, default=_plain, skipkeys=True), file=replies)


if __name__ == "__main__":
    _serve(sys.argv[1])
