"""Ten kills and a stop at random times in one job, which ends as if there had been none.

Whoever starts the nodes of a cluster starts one again that is lost; here the test does.
"""

import contextlib
import json
import os
import random
import re
import signal
import time
from functools import partial

import pytest
from processes import session
from test_cluster import running_cluster
from test_faults import Victim, prompts, steps_of, undisturbed
from waiting import HANGS, wait_for

SEED = int(os.environ.get("CHAOS_SEED", time.time_ns() % 10**6))
FAULTS = 11
HANG_MINUTES = 10  # several times a start, also on a busy machine
# By what ps shows of them; vLLM's engine and its worker are no actors of Ray's.
NODE = "raylet/raylet .+ --node_ip_address=127.0.0.2 "
PARTS = (
    NODE,
    "verl.trainer.main_ppo",
    "ray::TaskRunner",
    "ray::WorkerDict",
    "ray::AgentLoopWorker",
    "ray::RewardLoopWorker",
    "ray::vLLMHttpServer",
    "VLLM::EngineCore",
    "VLLM::Worker",
)
MAY_STOP = ("ray::WorkerDict", "ray::AgentLoopWorker", "VLLM::EngineCore", "VLLM::Worker")


class OnTwoNodes(Victim):
    """A job on a cluster, which retries."""

    def __init__(self, run, toolbox, policy, cluster):
        super().__init__(run, toolbox, policy)
        self.cluster = cluster

    def start(self, *options):
        steps = f"trainer.total_training_steps={self.steps}"
        self.launcher = self.cluster.submit(self.run, *self.overrides, steps, *options)


def starts_of(run):
    """The steps that each start logged, in their order."""
    earlier = sorted(run.glob("metrics.*.jsonl"), key=lambda path: int(path.suffixes[0][1:]))
    found = []
    for file in [*earlier, *run.glob("metrics.jsonl")]:
        records = map(json.loads, file.read_text().splitlines())
        found.append([record["step"] for record in records if "timing_s/step" in record["data"]])
    return found


def has_stepped(victim):
    """The start that runs has logged a step; each start sets aside what others logged."""
    return bool(steps_of(victim.run)) or not victim.running()


def there(victim):
    """The processes of each part that is there at this moment."""
    members = [*session(victim.leader), *victim.cluster.members()]
    found = {}
    for part in PARTS:
        for pid, args in members:
            if re.search(part, args):
                found.setdefault(part, []).append(pid)
    return found


def is_over(victim, leader, ended, *, early):
    """The start that was struck has ended with all its processes, or does without one.

    A start that has not come to a node, which is early, waits until the node is there again.
    """
    if early and steps_of(victim.run):
        return True
    left = {pid for pid, _ in victim.cluster.members()}
    return not left & ended and not session(leader)


@pytest.fixture
def victim(toolbox, policy, tmp_path, turn_of_clusters):
    with running_cluster() as cluster:
        cluster.add(2)
        victim = OnTwoNodes(tmp_path / "run", toolbox, policy, cluster)
        yield victim
        if victim.running():
            victim.launcher.send_signal(signal.SIGINT)  # the client stops the job
            victim.launcher.wait(HANGS)


@pytest.mark.real
@pytest.mark.slow
def test_training_survives_ten_kills_and_a_stop(victim, policy):
    chance = random.Random(SEED)
    print(f"CHAOS_SEED={SEED}")
    victim.steps = 60  # more than all starts can make before their faults
    options = ["--retries", "20", "--hang-after", str(HANG_MINUTES)]
    stop_at, faults, jobs, said = chance.randrange(FAULTS), 0, 0, ""

    def running_driver():
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
            jobs += 1
            assert jobs <= 2 * FAULTS, said  # else none of them comes as far as to a fault
            victim.start(*options)
        wait_for(lambda: running_driver() or not victim.running(), every=1.0)
        leader = victim.leader
        # One in three in the middle of the start; the others when it has made a step.
        if chance.random() > 1 / 3:
            wait_for(partial(has_stepped, victim), every=1.0)
        time.sleep(chance.uniform(0, 10))
        sign = signal.SIGSTOP if faults == stop_at else signal.SIGKILL
        parts = there(victim)
        choice = [part for part in parts if sign == signal.SIGKILL or part in MAY_STOP]
        if not victim.running() or not choice:  # it ended of the fault before, or has just begun
            continue
        part = chance.choice(choice)
        pid = chance.choice(parts[part])
        early = not steps_of(victim.run)
        faults += 1
        print(f"{faults}: {sign.name} to {part}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign)
        struck = time.monotonic()
        if part == NODE:
            victim.cluster.add(2)
        ended = {pid}.union(*(pids for part, pids in parts.items() if part != NODE))
        wait_for(partial(is_over, victim, leader, ended, early=early), every=1.0)
        # Noticed, and all of it ended.
        assert time.monotonic() - struck < 60 * HANG_MINUTES + 600
    if not victim.running():
        said += victim.end()
        victim.start(*options)
    said += victim.end()
    print(said)
    assert faults == FAULTS
    assert victim.launcher.returncode == 0, said

    # verl dumps a step after it saved it: killed in between, that step alone may have no dump.
    resumed = [0, *map(int, re.findall(r"resumes from step (\d+)\n", said))]
    expected = undisturbed(victim.run, policy, victim.steps)
    for step, wanted in expected.items():
        dump = victim.run / "rollouts" / f"{step}.jsonl"
        if step in resumed and not (dump.exists() and dump.read_text().count("\n") == 32):
            continue
        assert prompts(victim.run, step) == wanted
    # Each start resumes after a complete checkpoint, and no step is left out within it.
    for steps in starts_of(victim.run):
        if steps:
            assert steps[0] - 1 in resumed, (steps, resumed)
            assert steps == list(range(steps[0], steps[-1] + 1))
