"""Ten kills and a stop at random times in one training, which ends as if there had been none."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest
from test_faults import Victim, prompts, session, undisturbed, victim
from waiting import wait_for

__all__ = ["victim"]  # the fixture

SEED = int(os.environ.get("CHAOS_SEED", time.time_ns() % 10**6))
FAULTS = 11
HANG_MINUTES = 10  # several times a start, also on a busy machine
# By what ps shows of them; vLLM's engine and its worker are no actors of Ray's.
PARTS = (
    *("verl.trainer.main_ppo", "raylet/raylet", "ray::TaskRunner", "ray::WorkerDict"),
    *("ray::AgentLoopWorker", "ray::RewardLoopWorker", "ray::vLLMHttpServer"),
    *("VLLM::EngineCore", "VLLM::Worker"),
)
MAY_STOP = ("ray::WorkerDict", "ray::AgentLoopWorker", "VLLM::EngineCore", "VLLM::Worker")


def starts_of(run: Path) -> list[list[int]]:
    """The steps that each start logged, in their order."""
    earlier = sorted(run.glob("metrics.*.jsonl"), key=lambda path: int(path.suffixes[0][1:]))
    files = [*earlier, *run.glob("metrics.jsonl")]
    logged = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [
        [record["step"] for record in records if "timing_s/step" in record["data"]]
        for records in logged
    ]


def starts_with_a_step(run: Path) -> int:
    return sum(bool(steps) for steps in starts_of(run))


def has_advanced(victim: Victim, before: int) -> bool:
    return starts_with_a_step(victim.run) > before or not victim.running()


def is_over(victim: Victim, leader: int) -> bool:
    return not victim.running() or not session(leader)


def there(victim: Victim) -> dict[str, list[int]]:
    """The processes of each part that is there at this moment."""
    members = session(victim.leader)
    found = {part: [pid for pid, args in members if part in args] for part in PARTS}
    return {part: pids for part, pids in found.items() if pids}


@pytest.mark.real
@pytest.mark.slow
def test_training_survives_ten_kills_and_a_stop(victim: Victim, policy: Path) -> None:
    chance = random.Random(SEED)
    print(f"CHAOS_SEED={SEED}")
    victim.steps = 60  # more than so many starts can make before their faults
    options = ["--retries", "20", "--hang-after", str(HANG_MINUTES), "trainer.save_freq=2"]
    stop_at, faults, said = chance.randrange(FAULTS), 0, ""

    def running_driver() -> bool:
        if not victim.running():
            return False
        try:
            victim.leader = victim.driver()
        except ValueError:  # between two starts
            return False
        return True

    while faults < FAULTS and not (victim.run / "done").exists():
        if not victim.running():
            if victim.launcher:
                said += victim.end()
            victim.start(*options)
        wait_for(lambda: running_driver() or not victim.running())
        leader, before = victim.leader, starts_with_a_step(victim.run)
        # One in three in the middle of the start; a step of its own has been made for the others.
        if chance.random() > 1 / 3:
            wait_for(partial(has_advanced, victim, before))
        time.sleep(chance.uniform(0, 10))
        sign = signal.SIGSTOP if faults == stop_at else signal.SIGKILL
        parts = there(victim)
        choice = [part for part in parts if sign == signal.SIGKILL or part in MAY_STOP]
        if not victim.running() or not choice:  # it ended of the fault before, or has just begun
            continue
        part = chance.choice(choice)
        faults += 1
        print(f"{faults}: {sign.name} to {part}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(parts[part][0], sign)
        struck = time.monotonic()
        wait_for(partial(is_over, victim, leader))
        assert time.monotonic() - struck < 60 * HANG_MINUTES + 600  # noticed, and all of it ended
    if not victim.running():
        said += victim.end()
        victim.start(*options)
    said += victim.end()
    print(said)
    assert faults == FAULTS
    assert victim.launcher.returncode == 0, said

    # verl dumps a step after it saved it: killed in between, that step alone may have no dump.
    resumed = [0, *map(int, re.findall(r"goes on from step (\d+)\n", said))]
    expected = undisturbed(victim.run, policy, victim.steps)
    for step, wanted in expected.items():
        dump = victim.run / "rollouts" / f"{step}.jsonl"
        if step in resumed and not (dump.exists() and dump.read_text().count("\n") == 32):
            continue
        assert prompts(victim.run, step) == wanted
    # Each start goes on behind a whole checkpoint, and no step is left out within it.
    for steps in starts_of(victim.run):
        if steps:
            assert steps[0] - 1 in resumed, (steps, resumed)
            assert steps == list(range(steps[0], steps[-1] + 1))
