"""Stored answers scored anew by a reward function in a child process, for it may hang or crash."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.config.components import Component
from gdpo_verl.lab.rundir.dumps import Row
from gdpo_verl.rewards.thought import opened_thought
from gdpo_verl.sandbox.child_process import ChildProcess

SECONDS = 60.0
_LOAD_SECONDS = 300.0
# The columns of each argument of a reward function but the answer, the first that a row has.
_COLUMNS = {
    "data_source": ("data_source",),
    "ground_truth": ("gts", "ground_truth"),
    "extra_info": ("extra_info",),
}


class StoredAnswerScorer:
    """A reward function, called as verl's managers do with what a row holds of its arguments.

    Args:
      function: FILE:NAME or pkg://package.module:NAME, name `compute_score` when left out.

    Raises:
      ValueError: it cannot be loaded.
    """

    def __init__(self, function: str) -> None:
        self.function = function
        worker = [sys.executable, "-m", "gdpo_verl.lab.replay.worker"]
        self._child = ChildProcess([*worker, function])
        loaded = self._ask({}, f"--function {function}: loading it", _LOAD_SECONDS)
        self.components = tuple(Component(**each) for each in loaded["components"])

    def __call__(self, row: Row, where: str) -> Mapping[str, Any]:
        """The reward's dict, with `score`; ValueError names file and line."""
        arguments: dict[str, Any] = {}
        for name, columns in _COLUMNS.items():
            present = [row[column] for column in columns if row.get(column) is not None]
            arguments |= {name: present[0]} if present else {}
        # Our manager puts the thought that the prompt opened in front of the answer.
        opening = opened_thought(str(row.get("input", "")))
        arguments["solution_str"] = opening + str(row.get("output") or "")
        result: dict[str, Any] = self._ask(arguments, f"{where}: {self.function}", SECONDS)["info"]
        return result

    def _ask(self, question: Any, where: str, seconds: float) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = self._child.ask(question, time.monotonic() + seconds)
        except TimeoutError:
            raise ValueError(f"{where} did not end within {seconds:g} s") from None
        except EOFError:
            raise ValueError(f"{where} ended its process") from None
        if "error" in reply:
            raise ValueError(f"{where} {reply['error']}")
        return reply

    def close(self) -> None:
        """End the process."""
        self._child.end()


def token_counter(model: str) -> Any:
    """Count an answer's tokens with a model's tokenizer."""
    from transformers import AutoTokenizer

    known = str(Path(model)) if Path(model).exists() else model
    tokenizer: Any = AutoTokenizer.from_pretrained(known)
    # The dump holds no end token, which the training counted.
    return lambda row: 1 + len(tokenizer.encode(str(row.get("output")), add_special_tokens=False))
