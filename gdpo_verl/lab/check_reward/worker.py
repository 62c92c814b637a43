"""Score responses in a child process, because a reward may hang or crash.

A regular expression, for instance, hangs in a way that no thread and no signal handler can stop.
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
from typing import Any

import torch
from tqdm import tqdm

from gdpo_verl.config.components import Component
from gdpo_verl.lab.check_reward.answers import CheckedAnswer
from gdpo_verl.lab.check_reward.tokens import load_tokenizer
from gdpo_verl.plugin.checks.reward import (
    prompt_text,
    raised,
    score_row,
    single_row_batch,
)
from gdpo_verl.plugin.checks.reward_function import LIBRARIES, declared_reward, unnamed_arguments
from gdpo_verl.sandbox import protection

# Seconds for the imports of a user's module.
LOAD_SECONDS = 300.0
# A reward that takes longer than this for all responses shows its progress.
PROGRESS_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class RewardResult:
    """The reward's result for one answer.

    Attributes:
      score: the manager's `reward_score`.
      info: its `reward_extra_info`.
      seconds: the time in the manager, its decoding included; None where there was no end.
      not_round_tripped: the tokenizer decodes another text than the answer's.
      error: why there is no score, else None.
      sandboxes: what protected the programs that the reward ran by then.
    """

    score: Any = None
    info: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    not_round_tripped: bool = False
    error: str | None = None
    sandboxes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """The results of the first answers, and what the configured reward declares.

    Attributes:
      again: the results of the responses when they were scored once more, by their place.
      unnamed: complaints of `reward_kwargs` that the function does not name.
      interrupted: the user ended the scoring with Ctrl-C.
    """

    declared: tuple[Component, ...]
    unnamed: Sequence[str]
    results: Sequence[RewardResult]
    again: Mapping[int, RewardResult] = field(default_factory=dict)
    interrupted: bool = False


def score_twice(
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[CheckedAnswer],
    timeout: float,
) -> Scored:
    """Score the responses, and once more in reverse order.

    One that takes more than `timeout` seconds or crashes is the last. Ctrl-C ends the scoring, and
    the results so far are returned.

    Args:
      rows: the columns of each row that a response refers to.

    Raises:
      ValueError: the reward function or the manager cannot be loaded.
    """
    # A fork cannot use a GPU that this process has used, as for answers of a model.
    context: Any = multiprocessing.get_context("spawn" if torch.cuda.is_initialized() else "fork")
    # Files, because a process that a reward forks would keep a pipe open.
    with tempfile.NamedTemporaryFile() as sent, tempfile.NamedTemporaryFile() as trace:
        process = context.Process(
            target=_serve, args=(sent.name, trace.name, config, rows, answers, timeout)
        )
        process.start()
        interrupted = False
        try:
            process.join()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with what the reward has started
            process.kill()
            process.join()
        messages: list[Any] = []
        with suppress(EOFError):
            while True:
                messages.append(pickle.load(sent))
        dump = trace.read().decode(errors="replace")
    if not messages:
        if interrupted:
            raise KeyboardInterrupt
        raise ValueError(f"reward: loading it {_end(process.exitcode, dump, LOAD_SECONDS)}")
    loaded, *results = messages
    if isinstance(loaded, str):
        raise ValueError(loaded)
    places = _finished_backwards(results[: len(answers)])
    # The process ended early, at the response after the last result.
    if len(results) < len(answers) + len(places) and not interrupted:
        results.append(RewardResult(error=_end(process.exitcode, dump, timeout)))
    again = dict(zip(places, results[len(answers) :], strict=False))
    declared, unnamed = loaded
    return Scored(declared, unnamed, results[: len(answers)], again, interrupted)


def _finished_backwards(results: Sequence[RewardResult]) -> list[int]:
    return [place for place, result in enumerate(results) if result.error is None][::-1]


def _end(status: int, dump: str, timeout: float) -> str:
    """Describe the process's end, with the first of the user's lines in faulthandler's dump."""
    # A crash is the current thread's, which may not be the first. The latest call comes first:
    # after the lines of this file come those of the command.
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
    sent: str,
    trace: str,
    config: Any,
    rows: Mapping[Any, Mapping[str, Any]],
    answers: Sequence[CheckedAnswer],
    timeout: float,
) -> None:
    """Write the declaration, then a `RewardResult` for each response; or a text with the error."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # end when the command is killed
    os.dup2(2, 1)  # what a reward prints is no part of the report
    sys.path.insert(0, os.getcwd())  # as under ``python -m verl.trainer.main_ppo``
    # A fork's own: the threads of a loop that the command has used do not live here.
    asyncio.set_event_loop(asyncio.new_event_loop())
    # Where a reward hangs or crashes is written to the trace, whatever holds the interpreter.
    with open(sent, "wb", buffering=0) as results, open(trace, "w") as traces:

        def end_after(seconds: float) -> None:
            # Anew each time, for a library that was loaded since may have taken the signals:
            # tvm_ffi, vLLM's, does. Enabled already, faulthandler would not take them again.
            faulthandler.disable()
            faulthandler.enable(traces)
            faulthandler.dump_traceback_later(seconds, exit=True, file=traces)

        end_after(LOAD_SECONDS)
        try:
            from verl.trainer.ppo.reward import load_reward_manager

            loaded = declared_reward(config), unnamed_arguments(config)
            tokenizer = load_tokenizer(config.actor_rollout_ref.model)
            manager = load_reward_manager(config, tokenizer)
        except Exception as error:
            text = str(error) if isinstance(error, ValueError) else f"reward: it {raised(error)}"
            results.write(pickle.dumps(text))
            os._exit(1)
        results.write(pickle.dumps(loaded))

        progress = _progress(2 * len(answers))

        def try_answer(answer: CheckedAnswer) -> RewardResult:
            end_after(timeout)
            result = _result(config, tokenizer, manager, rows[answer.row], answer)
            faulthandler.cancel_dump_traceback_later()
            try:
                message = pickle.dumps(result)
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                text = f"returned what cannot be sent to the trainer's process: {error}"
                result = replace(result, score=None, info={}, error=text)
                message = pickle.dumps(result)
            results.write(message)
            progress.update()
            return result

        first = [try_answer(answer) for answer in answers]
        for place in _finished_backwards(first):
            try_answer(answers[place])
    os._exit(0)  # threads and processes that the reward has started would keep it waiting


def _progress(total: int) -> Any:
    """Return a bar on standard error, which appears if the calls take long."""
    tqdm.monitor_interval = 0  # no thread in addition to the reward
    return tqdm(
        total=total,
        desc="calls of the reward function (Ctrl-C ends the check with a report)",
        delay=PROGRESS_SECONDS,
        mininterval=PROGRESS_SECONDS,
    )


def _result(
    config: Any, tokenizer: Any, manager: Any, row: Mapping[str, Any], answer: CheckedAnswer
) -> RewardResult:
    def ids_of(text: str) -> list[int]:
        # A file of responses may hold half of a surrogate pair, which no tokenizer takes.
        whole = text.encode(errors="replace").decode()
        return list(tokenizer.encode(whole, add_special_tokens=False))

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
