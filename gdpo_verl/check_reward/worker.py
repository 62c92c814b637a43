"""Score answers in a child process, for a reward may hang or crash.

A regular expression, for instance, hangs in a way that no thread and no signal handler can stop.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gdpo_verl.check_reward.answers import CheckedAnswer
from gdpo_verl.check_reward.tokens import load_tokenizer
from gdpo_verl.plugin.reward import (
    LIBRARIES,
    declared_reward,
    prompt_text,
    raised,
    score_row,
    single_row_batch,
    unnamed_arguments,
)
from gdpo_verl.rewards.components import Component
from gdpo_verl.sandbox import protection

# Seconds for the imports of a user's module.
LOAD_SECONDS = 300.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RewardResult:
    """The reward's result for one answer.

    Attributes:
      score: the manager's `reward_score`.
      info: its `reward_extra_info`.
      seconds: the time in the manager, its decoding included; None where there was no end.
      first: the process's first answer, whose time holds the reward's own late imports.
      not_round_tripped: the tokenizer decodes another text than the answer's.
      error: why there is no score, else None.
      sandboxes: what protected the programs that the reward ran by then.
    """

    score: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    first: bool = False
    not_round_tripped: bool = False
    error: str | None = None
    sandboxes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """The components that the configured reward declares, and the first answers' results.

    Attributes:
      again: the results of the answers when they were scored once more, by their place.
      unnamed: complaints of `reward_kwargs` that the function does not name.
    """

    declared: tuple[Component, ...]
    results: Sequence[RewardResult]
    again: Mapping[int, RewardResult] = field(default_factory=dict)
    unnamed: Sequence[str] = ()


def score_twice(
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[CheckedAnswer],
    timeout: float,
) -> Scored:
    """Score the answers, and once more in another order and process, where nothing is remembered.

    An answer that takes more than `timeout` seconds or crashes is the last.

    Args:
      rows: the columns of each row that an answer refers to.

    Raises:
      ValueError: the reward function or the manager cannot be loaded.
    """
    scored = _score(config, rows, answers, timeout)
    places = [place for place, result in enumerate(scored.results) if result.error is None]
    if not places or any(result.seconds is None for result in scored.results):
        return scored
    random.Random(0).shuffle(places)
    again = _score(config, rows, [answers[place] for place in places], timeout)
    return replace(scored, again=dict(zip(places, again.results, strict=False)))


def _score(
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[CheckedAnswer],
    timeout: float,
) -> Scored:
    import torch

    # A fork cannot use a GPU that this process has used, as for answers of a model.
    context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_initialized() else "fork")
    ours, theirs = context.Pipe(duplex=False)
    results: list[RewardResult] = []
    with tempfile.NamedTemporaryFile() as trace:
        process = context.Process(
            target=_serve, args=(theirs, trace.name, config, rows, answers, timeout)
        )
        process.start()
        theirs.close()
        try:
            loaded = _receive(process, ours)
            if isinstance(loaded, str):
                raise ValueError(loaded)
            while loaded is not None and len(results) < len(answers):
                result = _receive(process, ours)
                if result is None:
                    break
                results.append(result)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what the reward has started
            process.kill()
            process.join()
            ours.close()
        dump = Path(trace.name).read_text(encoding="utf-8", errors="replace")
    if loaded is None:
        raise ValueError(f"reward: loading it {_end(process.exitcode, dump, LOAD_SECONDS)}")
    if len(results) < len(answers):
        results.append(RewardResult(error=_end(process.exitcode, dump, timeout)))
    return Scored(loaded.declared, results, unnamed=loaded.unnamed)


def _receive(process: Any, connection: Connection) -> Any:
    """The process's next message; None when it has ended."""
    # What a reward forks keeps the pipe open, so that its end alone tells nothing.
    while not connection.poll(0.2):
        if not process.is_alive() and not connection.poll():
            return None
    try:
        return connection.recv()
    except EOFError:
        process.join(5)
        return None


def _end(status: int, dump: str, timeout: float) -> str:
    """Describe the process's end, with the first of the user's lines in faulthandler's dump."""
    # A crash is the current thread's, which may not be the first. The latest call comes first:
    # behind this file's come those of the command.
    _, _, current = dump.partition("Current thread")
    called, _, _ = (current.partition("\n\n")[0] or dump).partition(f'File "{__file__}"')
    frames = re.findall(r'File "(.+)", line (\d+) in', called)
    own = [f" ({file}:{line})" for file, line in frames if not file.startswith(LIBRARIES)]
    place = own[0] if own else ""
    if dump.startswith("Timeout"):
        return f"did not end within {timeout:g} s{place}"
    if status < 0:
        return f"ended its process with signal {-status}, {signal.strsignal(-status)}{place}"
    return f"ended its process with status {status}{place}"


def _serve(
    connection: Connection,
    trace: str,
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[CheckedAnswer],
    timeout: float,
) -> None:
    """Send the declaration, then a `RewardResult` for each answer; or a text that says why not."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end when the command is killed
    os.dup2(2, 1)  # what a reward prints is no part of the report
    sys.path.insert(0, os.getcwd())  # as under ``python -m verl.trainer.main_ppo``
    # A fork's own: the threads of a loop that the command has used do not live here.
    asyncio.set_event_loop(asyncio.new_event_loop())
    # Where a reward hangs or crashes is written to this file, whatever holds the interpreter.
    with open(trace, "w") as file:
        faulthandler.disable()  # enabled already, it would not take the signals again
        faulthandler.enable(file)
        faulthandler.dump_traceback_later(LOAD_SECONDS, exit=True, file=file)
        try:
            from verl.trainer.ppo.reward import load_reward_manager

            loaded = Scored(declared_reward(config), [], unnamed=unnamed_arguments(config))
            tokenizer = load_tokenizer(config.actor_rollout_ref.model)
            manager = load_reward_manager(config, tokenizer)
        except Exception as error:
            text = str(error) if isinstance(error, ValueError) else f"reward: it {raised(error)}"
            connection.send(text)
            return
        connection.send(loaded)
        for number, answer in enumerate(answers):
            # A library that was loaded since may have taken the signal: tvm_ffi, vLLM's, does.
            faulthandler.disable()
            faulthandler.enable(file)
            faulthandler.dump_traceback_later(timeout, exit=True, file=file)
            result = _result(config, tokenizer, manager, rows[answer.row], answer)
            faulthandler.cancel_dump_traceback_later()
            result = replace(result, first=number == 0, sandboxes=tuple(sorted(protection.used)))
            try:
                connection.send(result)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                text = f"returned what cannot be sent to the trainer's process: {error}"
                connection.send(replace(result, score=None, info={}, error=text))


def _result(
    config: Any, tokenizer: Any, manager: Any, row: Mapping[str, Any], answer: CheckedAnswer
) -> RewardResult:
    def ids_of(text: str) -> list[int]:
        # A file of answers may hold half of a surrogate pair, which no tokenizer takes.
        whole = text.encode(errors="replace").decode()
        return list(tokenizer.encode(whole, add_special_tokens=False))

    end = tokenizer.eos_token_id or 0
    prompt = ids_of(prompt_text(config, tokenizer, row)) or [end]
    response = list(answer.token_ids or [*ids_of(answer.text), end])
    data = single_row_batch(prompt, response, row)
    altered = tokenizer.decode(response, skip_special_tokens=True) != answer.text
    started = time.perf_counter()
    result = RewardResult(not_round_tripped=altered)
    try:
        score, info = score_row(manager, data)
        result = replace(result, score=score, info=info)
    except ValueError as error:
        result = replace(result, error=str(error))
    return replace(result, seconds=time.perf_counter() - started)
