"""Score answers in a process of their own, which is ended when one of them does not end.

A reward may hang in a way that no thread and no signal handler can stop, in a regular expression
for instance. The process is forked from a server that has run nothing and, under the command, has
imported verl, so that a new one costs little; it heads a session of its own, so that what it
started ends with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from gdpo_verl.check_reward.answers import Answer
from gdpo_verl.check_reward.tokens import load_tokenizer, prompt_ids, response_ids
from gdpo_verl.plugin.reward import (
    declared_reward,
    raised,
    score_row,
    single_row_batch,
    unnamed_arguments,
)
from gdpo_verl.rewards.components import Component
from gdpo_verl.sandbox import protection

# Imports of a user's module, and of the server before the first process.
LOAD_SECONDS = 300.0
# Answers that may end a process by hanging or by crashing before the rest is left unscored.
MOST_LOST = 5
# Seconds by the clock for each of processor time, for an answer that waits or a busy machine.
PATIENCE = 6


@dataclass(frozen=True)
class Outcome:
    """The reward's result for one answer.

    Attributes:
      score: the manager's `reward_score`.
      info: its `reward_extra_info`.
      seconds: the time in the manager, its decoding included; None where it was ended.
      first: the process's first answer, whose time holds the reward's own late imports.
      altered: the tokenizer's decoding is not the answer's text.
      error: why there is no score, else None.
      sandboxes: what protected the programs that the reward ran by then.
    """

    score: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    first: bool = False
    altered: bool = False
    error: str | None = None
    sandboxes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """The components that the configured reward declares, and the first answers' outcomes.

    Attributes:
      again: the outcomes of the answers when they were scored once more, by their place.
      unnamed: complaints of `reward_kwargs` that the function does not name.
    """

    declared: tuple[Component, ...]
    outcomes: list[Outcome]
    again: Mapping[int, Outcome] = field(default_factory=dict)
    unnamed: Sequence[str] = ()


def score_twice(
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[Answer],
    timeout: float,
) -> Scored:
    """Score the answers, and then those that came back once more, in another order.

    By another process, so that nothing is remembered. Arguments and errors: see `score_all`.
    """
    first = score_all(config, rows, answers, timeout)
    places = [place for place, outcome in enumerate(first.outcomes) if outcome.error is None]
    random.Random(0).shuffle(places)
    if not places:
        return first
    again = score_all(config, rows, [answers[place] for place in places], timeout)
    return replace(first, again=dict(zip(places, again.outcomes, strict=False)))


def score_all(
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[Answer],
    timeout: float,
) -> Scored:
    """Score the answers one after the other with the configured reward and manager.

    After `MOST_LOST` answers that hung or crashed the rest is left out.

    Args:
      config: verl's whole configuration.
      rows: the columns of each row that an answer refers to.
      timeout: seconds of processor time that one answer may take, `PATIENCE` times as many by
        the clock.

    Raises:
      ValueError: the reward function or the manager cannot be loaded.
    """
    rows = {number: _without_tensors(row) for number, row in rows.items()}
    outcomes: list[Outcome] = []
    scored = Scored((), outcomes)
    lost = 0
    while len(outcomes) < len(answers) and lost < MOST_LOST:
        with _process(config, rows, answers[len(outcomes) :]) as (process, connection):
            scored = replace(_loaded(process, connection), outcomes=outcomes)
            while len(outcomes) < len(answers):
                outcome = _receive(process, connection, timeout)
                outcomes.append(outcome)
                if outcome.seconds is None:
                    lost += 1
                    break
    return scored


def _without_tensors(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's columns but for verl's `dummy_tensor`: a tensor takes a file descriptor to send."""
    import torch

    return {key: value for key, value in row.items() if not isinstance(value, torch.Tensor)}


def _loaded(process: BaseProcess, connection: Connection) -> Scored:
    """The process's first message: the declaration without outcomes, or the reason for none.

    Raises:
      ValueError: the reward could not be loaded.
    """
    if not connection.poll(LOAD_SECONDS):
        raise ValueError(f"reward: loading it did not end within {LOAD_SECONDS:.0f} s")
    try:
        message = connection.recv()
    except EOFError:
        raise ValueError(f"reward: loading it {_end_of(process)}") from None
    if isinstance(message, str):
        raise ValueError(message)
    loaded: Scored = message
    return loaded


def _receive(process: BaseProcess, connection: Connection, timeout: float) -> Outcome:
    start, over = _processor_seconds(process), time.monotonic() + PATIENCE * timeout
    left = timeout
    while not connection.poll(max(0.1, left)):
        left = timeout - (_processor_seconds(process) - start)
        if left <= 0 or time.monotonic() >= over:
            return Outcome(
                error=f"did not end within {timeout:g} s of processor time, or {PATIENCE} times "
                "as many by the clock"
            )
    try:
        outcome: Outcome = connection.recv()
    except EOFError:
        return Outcome(error=_end_of(process))
    return outcome


def _processor_seconds(process: BaseProcess) -> float:
    """The processor time of its threads, without that of its children; 0 when it has ended."""
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:  # what it sent, or its end, waits in the pipe
        return 0.0
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end_of(process: BaseProcess) -> str:
    process.join(5)
    return f"ended its process with status {process.exitcode}"


@contextlib.contextmanager
def _process(
    config: Any, rows: Mapping[Any, Mapping[str, Any]], answers: Sequence[Answer]
) -> Iterator[tuple[BaseProcess, Connection]]:
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, Path.cwd(), config, rows, answers))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        ours.close()


def _serve(
    connection: Connection,
    directory: Path,
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[Answer],
) -> None:
    """Send the declaration, then an `Outcome` for each answer; or a text that says why not."""
    os.setsid()
    _end_with_the_command(connection)
    os.dup2(2, 1)  # what a reward prints is no part of the report
    os.chdir(directory)
    sys.path.insert(0, str(directory))  # as under ``python -m verl.trainer.main_ppo``
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
        ids = response_ids(tokenizer, answer)
        altered = tokenizer.decode(ids, skip_special_tokens=True) != answer.text
        row = rows[answer.row]
        data = single_row_batch(prompt_ids(config, tokenizer, row), ids, row)
        started = time.perf_counter()
        outcome = Outcome(first=number == 0, altered=altered)
        try:
            score, info = score_row(manager, data)
            outcome = replace(outcome, score=score, info=info)
        except ValueError as error:
            outcome = replace(outcome, error=str(error))
        seconds = time.perf_counter() - started
        outcome = replace(outcome, seconds=seconds, sandboxes=tuple(sorted(protection.used)))
        try:
            connection.send(outcome)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            text = f"returned what cannot be sent to the trainer's process: {error}"
            connection.send(replace(outcome, score=None, info={}, error=text))


def _end_with_the_command(connection: Connection) -> None:
    """Have a second process end this session when the command was killed.

    Not a thread: an answer that holds the interpreter would stop it.
    """
    command = multiprocessing.parent_process()
    if command is not None and os.fork() == 0:
        connection.close()
        command.join()
        os.killpg(0, signal.SIGKILL)
