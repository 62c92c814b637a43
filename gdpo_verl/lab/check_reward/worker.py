"""Score responses in a child process, because a reward function may hang or crash.

For example, no thread and no signal handler can stop a regular expression that hangs.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import IO, Any

import torch
from tqdm import tqdm

from gdpo_verl.config.components import Component
from gdpo_verl.lab.check_reward.answers import CheckedAnswer, Rows
from gdpo_verl.lab.check_reward.tokens import load_tokenizer
from gdpo_verl.plugin.checks.reward import (
    prompt_text,
    raised,
    score_row,
    single_row_batch,
)
from gdpo_verl.plugin.checks.reward_function import LIBRARIES, declared_reward, unnamed_arguments
from gdpo_verl.sandbox import protection

# The time limit for the imports of a user's module, in seconds.
LOAD_SECONDS = 300.0
# Progress is shown if the scoring of all responses takes longer than this, in seconds.
PROGRESS_SECONDS = 10.0
POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RewardResult:
    """The result of the reward manager for one response.

    Attributes:
      score: the manager's `reward_score`.
      info: the manager's `reward_extra_info`.
      seconds: the time that the manager took, including decoding; None if it did not end.
      not_round_tripped: True if the tokenizer decodes the tokens to another text than the response.
      error: the reason why there is no score; None if there is one.
      sandboxes: the kinds of sandbox in which the reward function has run programs so far.
    """

    score: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    not_round_tripped: bool = False
    error: str | None = None
    sandboxes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """The results of all responses up to the first that hangs or crashes.

    Attributes:
      declared: the components that the reward function declares.
      unnamed: complaints about `reward_kwargs` that are no arguments of the function.
      results: the results in the order of the responses.
      again: the results of the second scoring, by the response's place.
    """

    declared: tuple[Component, ...]
    unnamed: Sequence[str]
    results: Sequence[RewardResult]
    again: Mapping[int, RewardResult] = field(default_factory=dict)


def score_twice(
    config: Any,
    rows: Rows,
    answers: Sequence[CheckedAnswer],
    timeout: float,
) -> Scored:
    """Score the responses, and then score them again in reverse order.

    Scoring ends with the first response that takes more than `timeout` seconds or crashes.

    Args:
      config: the configuration of the run.
      rows: the columns of each row to which a response refers.
      answers: the responses.
      timeout: the time limit for each response, in seconds.

    Raises:
      ValueError: the reward function or the manager cannot be loaded.
    """
    with tempfile.NamedTemporaryFile() as trace:
        worker = _Worker(trace, config, rows, timeout)
        try:
            loaded = worker.receive() or f"reward: loading it {worker.end(LOAD_SECONDS)}"
            if isinstance(loaded, str):
                raise ValueError(loaded)
            first = _score(worker, answers, range(len(answers)))
            finished = [place for place, result in first.items() if result.error is None]
            again = _score(worker, answers, finished[::-1])
        finally:
            worker.stop()
    declared, unnamed = loaded
    return Scored(declared, unnamed, [*first.values()], again)


def _score(
    worker: _Worker, answers: Sequence[CheckedAnswer], places: Sequence[int]
) -> dict[int, RewardResult]:
    """Return the results of the responses at these places, until the worker ends."""
    # Switch off tqdm's monitor thread, which would run in addition to the reward function.
    tqdm.monitor_interval = 0
    results = {}
    for place in tqdm(
        places,
        desc="calls of the reward function",
        delay=PROGRESS_SECONDS,
        mininterval=PROGRESS_SECONDS,
    ):
        if worker.has_ended:
            break
        worker.connection.send(answers[place])
        result = worker.receive() or RewardResult(error=worker.end(worker.timeout))
        results[place] = result
    return results


class _Worker:
    """A child process that loads the reward, and then scores each response that it receives."""

    def __init__(self, trace: IO[bytes], config: Any, rows: Rows, timeout: float) -> None:
        # After this process has used a GPU, for example to sample responses, a fork cannot use it.
        method = "spawn" if torch.cuda.is_initialized() else "fork"
        context: Any = multiprocessing.get_context(method)
        self.timeout = timeout
        self.has_ended = False
        self.trace = trace
        self.connection, self.other_end = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(self.other_end, trace.name, config, rows, timeout)
        )
        self.process.start()

    def receive(self) -> Any:
        """Return the next object that the process sends; None if the process has ended."""
        # The process is polled, because a process forked by the reward may keep the pipe open.
        while self.process.is_alive():
            if self.connection.poll(POLL_SECONDS):
                return self.connection.recv()
        self.has_ended = True
        return None

    def end(self, timeout: float) -> str:
        """Describe how the process ended, with the line of the user's code where it was.

        The line comes from the traceback that faulthandler has written.
        """
        dump = self.trace.read().decode(errors="replace")
        # The current thread has crashed; it may not be the first of the dump. The latest call comes
        # first, so that the user's frames come before the frames of this file.
        _, _, current = dump.partition("Current thread")
        called, _, _ = (current.partition("\n\n")[0] or dump).partition(f'File "{__file__}"')
        frames = re.findall(r'File "(.+)", line (\d+) in', called)
        places = [f" ({file}:{line})" for file, line in frames if not file.startswith(LIBRARIES)]
        place = places[0] if places else ""
        status = self.process.exitcode
        if dump.startswith("Timeout"):
            return f"did not end within {timeout:g} s{place}"
        if status < 0:
            return f"ended its process with signal {-status}, {signal.strsignal(-status)}{place}"
        return f"ended its process with status {status}{place}"

    def stop(self) -> None:
        """End the process, and the processes that the reward has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()


def _serve(
    connection: Any,
    trace: str,
    config: Any,
    rows: Rows,
    timeout: float,
) -> None:
    """Load the reward, and score each response that arrives on the connection.

    The first object that is sent is the reward's declaration, or a text with an error. Then a
    `RewardResult` is sent for each response.
    """
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end when the command is killed
    os.dup2(2, 1)  # output of the reward function must not mix with the report
    sys.path.insert(0, os.getcwd())  # as under ``python -m verl.trainer.main_ppo``
    # A fork needs its own event loop, because the threads of the parent's loop do not exist here.
    asyncio.set_event_loop(asyncio.new_event_loop())
    # faulthandler writes the traceback of a hang or a crash to the trace, even while the
    # interpreter is blocked.
    with open(trace, "w") as traces:

        def end_after(seconds: float) -> None:
            # A library that was loaded in the meantime may have replaced the signal handlers; for
            # example tvm_ffi, which vLLM uses, does so. While it is enabled, faulthandler does not
            # install its handlers again, so it is disabled first.
            faulthandler.disable()
            faulthandler.enable(traces)
            faulthandler.dump_traceback_later(seconds, exit=True, file=traces)

        end_after(LOAD_SECONDS)
        try:
            from verl.trainer.ppo.reward import load_reward_manager

            loaded: Any = declared_reward(config), unnamed_arguments(config)
            tokenizer = load_tokenizer(config.actor_rollout_ref.model)
            manager = load_reward_manager(config, tokenizer)
        except Exception as error:
            loaded = str(error) if isinstance(error, ValueError) else f"reward: it {raised(error)}"
        faulthandler.cancel_dump_traceback_later()
        connection.send(loaded)
        while True:
            answer = connection.recv()
            end_after(timeout)
            result = _result(config, tokenizer, manager, rows[answer.row], answer)
            faulthandler.cancel_dump_traceback_later()
            try:
                connection.send(result)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                text = f"returned what cannot be sent to the trainer's process: {error}"
                connection.send(replace(result, score=None, info={}, error=text))


def _result(
    config: Any, tokenizer: Any, manager: Any, row: Mapping[str, Any], answer: CheckedAnswer
) -> RewardResult:
    def ids_of(text: str) -> list[int]:
        # A file of responses may contain half of a surrogate pair, which no tokenizer accepts.
        valid_text = text.encode(errors="replace").decode()
        return list(tokenizer.encode(valid_text, add_special_tokens=False))

    end = tokenizer.eos_token_id or 0
    prompt = ids_of(prompt_text(config, tokenizer, row)) or [end]
    response = list(answer.token_ids or [*ids_of(answer.text), end])
    data = single_row_batch(prompt, response, row, answer.turns)
    altered = tokenizer.decode(response, skip_special_tokens=True) != answer.text
    started = time.perf_counter()
    try:
        result = RewardResult(*score_row(manager, data))
    except ValueError as error:
        result = RewardResult(error=str(error))
    seconds = time.perf_counter() - started
    used = tuple(sorted(protection.used))
    return replace(result, seconds=seconds, not_round_tripped=altered, sandboxes=used)
