"""A directory with rewards, good and broken, and `gdpo-verl check-reward` in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdpo_verl.cli import main
from gdpo_verl.tasks.rows import make_row

REWARDS = """
import asyncio, ctypes, os, random, re, signal, subprocess, threading, time
from gdpo_verl.rewards import Component, declares
from helpers import score_of

# As tvm_ffi does, vLLM's, so that faulthandler has it no more.
signal.signal(signal.SIGSEGV, signal.SIG_DFL)

@declares(Component("right", 0, 1), Component("short", 0, 1))
def good(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return score_of(solution_str, ground_truth)

@declares(Component("right", 0, 1), Component("short", 0, 1))
async def good_async(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    await asyncio.sleep(0.001)
    return score_of(solution_str, ground_truth)

def undeclared(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return score_of(solution_str, ground_truth)

def changed(change):
    @declares("right", "short")
    def reward(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
        return change(score_of(solution_str, ground_truth), solution_str)
    return reward

def on_empty(act):
    return changed(lambda result, answer: result if answer else act())

def one(right):
    return {"score": right, "right": right, "short": 0.0}

def tires(result, answer, seen=[]):
    seen.append(answer)
    return result if seen.count("") < 4 else os._exit(7)

def prints_and_leaves(result, answer):
    os.write(1, b"a reward that prints")
    threading.Thread(target=time.sleep, args=(1000,)).start()
    subprocess.Popen(["sleep", "1000"])
    return result

raises = on_empty(lambda: 1 / 0)
holds_the_interpreter = on_empty(lambda: re.match("(a*)*b", "a" * 100))
exits = on_empty(lambda: os._exit(0))
crashes = on_empty(lambda: ctypes.string_at(0))
prints = changed(prints_and_leaves)
by_chance = changed(lambda result, answer: one(random.random()))
by_length = changed(lambda result, answer: one(len(answer) / 256))
not_twice = changed(tires)
inverted = changed(lambda result, answer: one(1 - result["right"]))
detailed = changed(lambda result, answer: result | {"detail": {"tags": 2}})
scoreless = changed(lambda result, answer: {key: result[key] for key in ("right", "short")})
locked = changed(lambda result, answer: result | {"lock": threading.Lock()})
wrapped = changed(lambda result, answer: asyncio.sleep(0, result))
half_a_pair = changed(lambda result, answer: result | {"text": chr(0xD800)})

@declares(Component("format", 0, 1), Component("right", 0, 1))
def thoughtful(data_source, solution_str, ground_truth, extra_info=None, *, strict=True, **kwargs):
    form = float(solution_str.startswith("<think>") and "</think>" in solution_str)
    right = float(f"<answer>{ground_truth}</answer>" in solution_str)
    return {"score": form + right, "format": form, "right": right}

@declares("right", "short")
def by_source(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if data_source == "raises":
        raise LookupError("no judge")
    result = score_of(solution_str, ground_truth)
    return result["right"] if data_source == "number" else result

@declares("tokens", "mentions")
def measures(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    tokens = extra_info["response_length"]
    return {"tokens": tokens, "mentions": float(ground_truth in solution_str)}
"""
HELPERS = """
def score_of(answer, truth):
    right, short = float(answer == truth), float(len(answer) < 4)
    return {"score": right + short, "right": right, "short": short}
"""
MANAGER = """
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

class Doubling(NaiveRewardManager):
    components = ("right", "twice")

    async def run_single(self, data):
        result = await super().run_single(data)
        right = result["reward_score"]
        info = {"right": right, "twice": 2 * right}
        return {"reward_score": 3 * right, "reward_extra_info": info}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with rewards.py, its helpers.py, managers.py and data.parquet of three rows."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "managers.py").write_text(MANAGER)
    write_data(tmp_path / "data.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_data(
    path: Path,
    *,
    drop: str | None = None,
    truths: Sequence[Any] = ("22", "44", "66"),
    sources: Sequence[str] = ("sums", "sums", "sums"),
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for number, truth, source in zip((11, 22, 33), truths, sources, strict=True):
        asked = [{"role": "user", "content": f"what is {number} + {number}?"}]
        row = make_row(source, asked, truth, ability="math", extra_info={"index": number})
        row.pop(drop, None)
        rows.append(row)
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_answers(directory: Path, *texts: str, row: int = 0) -> None:
    """Write answers to one row into answers.jsonl."""
    lines = [json.dumps({"index": row, "answer": text}) for text in texts]
    (directory / "answers.jsonl").write_text("\n".join(lines))


@pytest.fixture
def check(
    work: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Run the command; returns its status, what it printed, and its JSON."""

    def run(function: str | None, *options: str) -> tuple[int, str, dict[str, Any]]:
        named = ["--function", f"rewards.py:{function}"] if function else []
        data = [] if "--data" in options else ["--data", "data.parquet"]
        # A busy machine is no slow reward. Of an option that is given twice the last counts.
        patient = ("--step-seconds", "1e6", "--timeout", "600")
        options = (*patient, "--json", "report.json", *options)
        status = main(["check-reward", *named, *data, *options])
        report = Path("report.json")
        printed = capfd.readouterr()  # of the worker, too
        shown = printed.out + "\n".join(
            line for line in printed.err.splitlines() if line.startswith("gdpo-verl: ")
        )
        return status, shown, json.loads(report.read_text()) if report.exists() else {}

    return run


def scores(report: Mapping[str, Any]) -> dict[str, list[float | None]]:
    kinds: dict[str, list[float | None]] = {}
    for answer in report["answers"]:
        kinds.setdefault(answer["kind"], []).append(answer["score"])
    return kinds
