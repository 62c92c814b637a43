"""Deaths of processes, recognised by the messages of Ray and torch."""

from textwrap import indent

import pytest

from gdpo_verl.lab.run.log import describe_log
from gdpo_verl.plugin.watch import deaths

# Ray 2.60 prints this into the log of a driver.
DEATH = """\
ray.exceptions.ActorDiedError: The actor died unexpectedly.
\tclass_name: {actor}
\tactor_id: ad84d1a2603f80ec1b82e42001000000
\tpid: {pid}
\t{name}namespace: b3a916d4-7afa-4027-9be0-a48ca6b631e5
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit \
detail: Worker unexpectedly exits.
"""
DEATH_OF_THE_TRAINER = DEATH.format(actor="TaskRunnerV1", pid=30000, name="")
# The line with colours and the name of the process that prints it.
DEATH_OF_A_REWARD_WORKER = indent(
    DEATH.format(actor="RewardLoopWorker", pid=30228, name="name: reward_loop_worker_0\n\t"),
    "\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m ",
)


def test_the_first_death_in_a_log_is_named_and_later_ones_are_not():
    killed = "on 192.0.2.2), its process was killed or crashed"
    assert describe_log(DEATH_OF_THE_TRAINER + DEATH_OF_A_REWARD_WORKER) == (
        f"a reward worker died: reward_loop_worker_0 (pid 30228 {killed}"
    )
    assert describe_log(DEATH_OF_THE_TRAINER) == (
        f"the trainer's process died: TaskRunnerV1 (pid 30000 {killed}"
    )


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("The actor died because its node has died. Node Id: 7f.", "its Ray node died"),
        (
            "exit type: NODE_OUT_OF_MEMORY, low on memory",
            "Ray ended it, its node ran out of memory",
        ),
        # This process was supposed to end.
        ("The actor is dead because it was killed by `ray.kill`.", None),
        ("its worker process has died. Worker exit type: INTENDED_SYSTEM_EXIT", None),
    ],
)
def test_the_cause_of_a_death_comes_from_ray(cause, words):
    block = f"\tclass_name: WorkerDict\n\tactor_id: ad\n\tip: 10.0.0.3\n{cause}"
    worker = "a training worker (FSDP or Megatron) died: WorkerDict on 10.0.0.3"
    said = words and f"{worker}, {words}"
    assert deaths.describe_actor_death(block) == said
    assert describe_log(f"{block}\nValueError: algorithm.gdpo.whiten: wrong\n") == said


def test_the_trainers_message_about_a_death_takes_precedence_over_rays():
    said = "a vLLM engine died: EngineCore_DP0 (killed by SIGKILL) of vllm_server_1_0"
    for line in (f"gdpo-verl: {said}", f"\x1b[36m(TaskRunnerV1 pid=3)\x1b[0m RuntimeError: {said}"):
        assert describe_log(f"{DEATH_OF_THE_TRAINER}{line}\nmore\n") == said


def test_a_worker_that_ray_ended_for_lack_of_memory_counts_as_a_death():
    log = (
        "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on "
        "memory. Memory on the node (IP: 192.0.2.2, ID: 1277) was 21.54GB used / 23.54GB limit"
    )
    assert describe_log(log) == (
        "a worker died: Ray ended it, because its node 192.0.2.2 ran low on memory (21.54GB used / "
        "23.54GB limit)"
    )
    assert deaths.describe_memory_death(log.partition(": ")[2]) == describe_log(log)
    assert describe_log("torch.OutOfMemoryError: CUDA out of memory. Tried to") is None
