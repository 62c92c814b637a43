"""Deaths of processes, told from Ray's and torch's own words."""

from __future__ import annotations

import pytest

from gdpo_verl import deaths

# As Ray 2.60 prints it in the log of a driver, colours and all.
DEATH_OF_A_REWARD_WORKER = """\
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m ERROR: Error in _run_prompt for uid=49b02be3
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m ray.exceptions.ActorDiedError: The actor died unexpectedly.
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m \tclass_name: RewardLoopWorker
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m \tactor_id: ad84d1a2603f80ec1b82e42001000000
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m \tpid: 30228
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m \tname: reward_loop_worker_0
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m \tnamespace: b3a916d4-7afa-4027-9be0-a48ca6b631e5
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m \tip: 192.0.2.2
\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m The actor is dead because its worker process has died. \
Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits.
"""
DEATH_OF_THE_TRAINER = """\
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: TaskRunnerV1
\tactor_id: bd84d1a2603f80ec1b82e42001000000
\tpid: 30000
\tnamespace: b3a916d4-7afa-4027-9be0-a48ca6b631e5
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR
"""


def test_first_death_in_a_log_is_named_and_what_follows_it_is_not() -> None:
    assert deaths.of_log(DEATH_OF_THE_TRAINER + DEATH_OF_A_REWARD_WORKER) == (
        "a reward worker died: reward_loop_worker_0 (pid 30228 on 192.0.2.2), its process was "
        "killed or crashed"
    )
    assert deaths.of_log(DEATH_OF_THE_TRAINER) == (
        "the trainer's process died: TaskRunnerV1 (pid 30000 on 192.0.2.2), its process was "
        "killed or crashed"
    )


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("The actor died because its node has died. Node Id: 7f.", "its Ray node died"),
        ("The node was terminated unexpectedly: heartbeats", "its Ray node died"),
        ("Worker exit type: NODE_OUT_OF_MEMORY, low on memory", "its node ran out of memory"),
    ],
    ids=["node", "node without heartbeat", "memory"],
)
def test_cause_of_a_death_is_ray_s(cause: str, words: str) -> None:
    said = deaths.of_actor(f"\tclass_name: WorkerDict\n\tactor_id: ad\n\tip: 10.0.0.3\n{cause}")
    assert said is not None
    assert said.startswith("a training worker (FSDP or Megatron) died: WorkerDict on 10.0.0.3, ")
    assert said.endswith(words)


@pytest.mark.parametrize(
    "cause",
    [
        "The actor is dead because it was killed by `ray.kill`.",
        "The actor is dead because all references to the actor were removed.",
        "its worker process has died. Worker exit type: INTENDED_SYSTEM_EXIT",
        "The actor is dead because its owner has died.",
    ],
    ids=["killed by verl", "unused", "intended", "owner"],
)
def test_actor_that_was_to_end_is_not_a_death(cause: str) -> None:
    block = f"\tclass_name: WorkerDict\n\tactor_id: ad\n\tpid: 7\n{cause}"
    assert deaths.of_actor(block) is None
    assert deaths.of_log(f"{block}\nValueError: algorithm.gdpo.whiten: wrong\n") is None


def test_engine_that_ends_with_the_trainer_is_not_what_died() -> None:
    driver = "Error executing job with overrides: []\n"
    engine = "(vLLMHttpServer pid=9) ERROR vllm.v1.engine.exceptions.EngineDeadError: issue\n"
    said = deaths.of_log(driver + engine + DEATH_OF_THE_TRAINER)
    assert said == deaths.of_log(DEATH_OF_THE_TRAINER)
    raised = "ray.exceptions.RayTaskError(EngineDeadError): ray::TaskRunnerV1.run()\n"
    for log in (engine + driver + DEATH_OF_THE_TRAINER, driver + raised):
        assert str(deaths.of_log(log)).startswith("a vLLM engine died")


def test_what_the_trainer_says_of_a_death_comes_before_ray_s_words() -> None:
    said = "a vLLM engine died: EngineCore_DP0 (killed by SIGKILL) of vllm_server_1_0"
    for line in (f"gdpo-verl: {said}", f"\x1b[36m(TaskRunnerV1 pid=3)\x1b[0m RuntimeError: {said}"):
        assert deaths.of_log(f"{DEATH_OF_THE_TRAINER}{line}\nmore\n") == said


CALL = "ray.exceptions.RayTaskError(ActorUnavailableError): ray::TaskRunnerV1.run()"


def test_worker_that_does_not_answer_the_trainer_is_a_death() -> None:
    error = (
        "ray.exceptions.ActorUnavailableError: The actor 28b9 is unavailable: The actor is "
        "temporarily unavailable: RpcError: RPC error: keepalive watchdog timeout rpc_code: 14. "
        "The task may or may not have been executed on the actor."
    )
    said = "a worker or its Ray node does not answer: keepalive watchdog timeout"
    log = f"Traceback (most recent call last):\n{CALL}\n{error}\n"
    assert deaths.of_log(log) == said
    # What a worker prints of a call of its own may be one that verl goes on without.
    printed = "".join(f"\x1b[36m(WorkerDict pid=9)\x1b[0m {line}\n" for line in (CALL, error))
    assert deaths.of_log(f"{printed}ValueError: wrong\n") is None
    assert deaths.of_log(log + DEATH_OF_A_REWARD_WORKER) == deaths.of_log(DEATH_OF_A_REWARD_WORKER)


def test_node_that_dies_while_the_workers_exchange_gradients_is_a_death() -> None:
    broken = (
        "ray.exceptions.RayTaskError(RuntimeError): ray::TaskRunnerV1.run()\n"
        "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer\n"
    )
    raylet = "\x1b[33m(raylet)\x1b[0m Raylet is terminated. Termination is {}. Possible reasons\n"
    assert deaths.of_log(broken + raylet.format("graceful")) is None
    said = "a Ray node died: its raylet was killed or crashed"
    assert deaths.of_log(broken + raylet.format("unexpected")) == said
    # Every driver of the cluster is told of a raylet.
    assert deaths.of_log("ValueError: wrong\n" + raylet.format("unexpected")) is None


def test_trainer_that_the_driver_cannot_reach_is_a_death() -> None:
    error = "ray.exceptions.ActorUnavailableError: The actor 0597 is unavailable: Socket closed"
    said = "the trainer's process or its Ray node died: the driver lost the connection to it"
    of_a_worker = f"\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m {CALL}\n"
    assert deaths.of_log(f"{of_a_worker}Traceback (most recent call last):\n{error}\n") == said
    assert deaths.of_log(f"\x1b[36m(TaskRunnerV1 pid=3)\x1b[0m {error}\n") is None
    known = deaths.of_log(f"{error}\n{DEATH_OF_A_REWARD_WORKER}")
    assert known == deaths.of_log(DEATH_OF_A_REWARD_WORKER)


def test_worker_that_ray_ended_for_memory_is_a_death() -> None:
    log = (
        "ray.exceptions.OutOfMemoryError: 1 worker(s) were killed due to the node running low on "
        "memory. Memory on the node (IP: 192.0.2.2, ID: 1277) was 21.54GB used / 23.54GB limit"
    )
    assert deaths.of_log(log) == (
        "a worker died: Ray ended it, because its node 192.0.2.2 ran low on memory (21.54GB used / "
        "23.54GB limit)"
    )
    assert deaths.of_memory(log.partition(": ")[2]) == deaths.of_log(log)
    assert deaths.of_log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate") is None


def test_signal_that_killed_the_driver_is_named() -> None:
    assert deaths.of_driver(7, -9) == "the driver died: pid 7 was killed by SIGKILL"
    assert deaths.of_driver(7, -11) == "the driver died: pid 7 was killed by SIGSEGV"
    assert deaths.of_driver(7, 1) is None
