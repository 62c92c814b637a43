"""Stored answers scored anew by a reward function in a child process, for it may hang or crash."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from gdpo_verl.config.components import Component
from gdpo_verl.lab.rundir.source import TokenCounter
from gdpo_verl.rewards.thought import opened_thought
from gdpo_verl.sandbox.child_process import ChildProcess

SECONDS = 60.0
_LOAD_SECONDS = 300.0
# The columns of each argument of a reward function but the answer.
_COLUMNS = {
    "data_source": ("data_source",),
    "ground_truth": ("ground_truth", "gts"),
    "extra_info": ("extra_info",),
}


class StoredAnswerScorer:
    """A reward function, called as verl's managers call it, with the arguments that a row holds.

    Args:
      function: FILE:NAME or pkg://package.module:NAME, name `compute_score` when left out.

    Raises:
      ValueError: it cannot be loaded.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        self._child = ChildProcess([sys.executable, "-m", "gdpo_verl.lab.replay.worker", function])
        loaded = self._ask({}, f"--function {function}: loading", _LOAD_SECONDS)
        self.components = tuple(Component(**each) for each in loaded)

    def __call__(self, row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """Return what the reward function returns; ValueError names file and line."""
        arguments = {
            name: row[column]
            for name, columns in _COLUMNS.items()
            for column in columns
            if row.get(column) is not None
        }
        # Our manager puts the thought that the prompt opened in front of the answer.
        opening = opened_thought(str(row.get("input", "")))
        arguments["solution_str"] = opening + str(row["output"])
        result: dict[str, Any] = self._ask(arguments, f"{where}: {self.function}", SECONDS)
        return result

    def _ask(self, question: Any, where: str, seconds: float) -> Any:
        try:
            reply = self._child.ask(question, time.monotonic() + seconds)
        except TimeoutError:
            raise ValueError(f"{where} did not end within {seconds:g} s") from None
        except EOFError:
            raise ValueError(f"{where} ended its process") from None
        if "error" in reply:
            raise ValueError(f"{where} {reply['error']}")
        return reply["found"]

    def close(self) -> None:
        """End the process."""
        self._child.end()


def token_counter(model: str) -> TokenCounter:
    """Return a function that counts a response's tokens with a model's tokenizer."""
    from gdpo_verl.lab.tasks.rows import tokenizer_of

    tokenizer = tokenizer_of(model, "--tokenizer")
    # The dump holds no end token, which the training run counted.
    return lambda text: 1 + len(tokenizer.encode(text, add_special_tokens=False))
