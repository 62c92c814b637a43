"""What a training says and does when a part of it is killed, and where it goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import Training, processes_of, run_cli
from omegaconf import OmegaConf

from gdpo_verl.rewards import tool_call
from gdpo_verl.run import checkpoints, deaths, launch
from gdpo_verl.run.checkpoints import CheckpointError, Place

SHARDS = ("model", "optim", "extra_state")

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


def test_what_the_trainer_says_of_a_death_comes_before_ray_s_words() -> None:
    said = "a vLLM engine died: EngineCore_DP0 (killed by SIGKILL) of vllm_server_1_0"
    for line in (f"gdpo-verl: {said}", f"\x1b[36m(TaskRunnerV1 pid=3)\x1b[0m RuntimeError: {said}"):
        assert deaths.of_log(f"{DEATH_OF_THE_TRAINER}{line}\nmore\n") == said


def test_trainer_that_the_driver_cannot_reach_is_a_death() -> None:
    error = "ray.exceptions.ActorUnavailableError: The actor 0597 is unavailable: Socket closed"
    said = "the trainer's process or its Ray node died: the driver lost the connection to it"
    call = "ray.exceptions.RayTaskError(ActorUnavailableError): ray::AgentLoopWorkerTQ.run()"
    of_a_worker = f"\x1b[36m(AgentLoopWorkerTQ pid=9)\x1b[0m {call}\n"
    assert deaths.of_log(f"{of_a_worker}Traceback (most recent call last):\n{error}\n") == said
    assert deaths.of_log(f"Traceback (most recent call last):\n{call}\n{error}\n") is None
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
    assert deaths.of_log("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate") is None


def test_signal_that_killed_the_driver_is_named() -> None:
    assert deaths.of_driver(7, -9) == "the driver died: pid 7 was killed by SIGKILL"
    assert deaths.of_driver(7, -11) == "the driver died: pid 7 was killed by SIGSEGV"
    assert deaths.of_driver(7, 1) is None


DIED = launch.Failure("a reward worker died", died=True)
ERROR = launch.Failure("the training ended with status 1", died=False)


@pytest.mark.parametrize(
    ("failure", "advanced", "stalled", "again"),
    [
        (DIED, True, False, True),
        (DIED, False, False, True),
        (DIED, False, True, False),
        (ERROR, True, True, True),
        (ERROR, False, False, False),
    ],
    ids=["death", "early death", "second early death", "error after steps", "error at the start"],
)
def test_failure_is_retried_while_that_may_get_further(
    failure: launch.Failure, advanced: bool, stalled: bool, again: bool
) -> None:
    assert launch.worth_retrying(failure, advanced=advanced, stalled=stalled) is again


def write_checkpoint(directory: Path, step: int, *, workers: int = 1) -> Path:
    """A whole one, with the names that verl's FSDP engine gives."""
    folder = directory / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    for kind in SHARDS:
        for rank in range(workers):
            name = f"{kind}_world_size_{workers}_rank_{rank}.pt"
            torch.save({"step": torch.arange(100)}, folder / "actor" / name)
    torch.save({"batch": step}, folder / "data.pt")
    (directory / checkpoints.TRACKER).write_text(str(step))
    return folder


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda folder: (folder / "data.pt").unlink(), "data.pt, the place in the data, is"),
        (lambda folder: cut(folder / "data.pt"), "data.pt, the place in the data, is"),
        (
            lambda folder: cut(folder / "actor" / "optim_world_size_2_rank_1.pt"),
            "actor/optim_world_size_2_rank_1.pt is cut short",
        ),
        (
            lambda folder: (folder / "actor" / "extra_state_world_size_2_rank_0.pt").unlink(),
            "actor/extra_state_world_size_2_rank_0.pt is missing",
        ),
        (lambda folder: (folder / "actor").rename(folder / "elsewhere"), "actor has no model"),
    ],
    ids=["no place in the data", "data cut", "shard cut", "shard missing", "weights removed"],
)
def test_checkpoint_cut_short_is_not_resumed_from(
    tmp_path: Path, damage: Callable[[Path], Any], problem: str
) -> None:
    write_checkpoint(tmp_path, 2, workers=2)
    damage(write_checkpoint(tmp_path, 4, workers=2))

    step, said = checkpoints.settle(Place(tmp_path))

    assert step == 2
    assert (tmp_path / checkpoints.TRACKER).read_text() == "2"
    (sentence,) = said
    assert sentence.startswith(f"global_step_4 was cut short and is passed over: {problem}")
    assert (tmp_path / "global_step_4.incomplete").is_dir()
    assert checkpoints.settle(Place(tmp_path)) == (2, [])


def test_whole_checkpoint_that_verl_did_not_come_to_note_is_taken(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 4)
    for noted in ("2", ""):  # verl empties the file before it writes the number
        (tmp_path / checkpoints.TRACKER).write_text(noted)
        assert checkpoints.settle(Place(tmp_path)) == (4, [])
        assert (tmp_path / checkpoints.TRACKER).read_text() == "4"


def test_first_save_cut_short_means_the_beginning(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, 2) / "data.pt").unlink()
    (tmp_path / checkpoints.TRACKER).unlink()
    step, said = checkpoints.settle(Place(tmp_path))
    assert step == 0
    assert "global_step_2 was cut short" in said[0]
    assert checkpoints.settle(Place(tmp_path / "none")) == (0, [])


def test_training_whose_checkpoints_are_all_damaged_does_not_start_over(tmp_path: Path) -> None:
    cut(write_checkpoint(tmp_path, 2) / "data.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint is whole \(global_step_2: data.pt"):
        checkpoints.settle(Place(tmp_path))
    assert (tmp_path / "global_step_2").is_dir()


def test_asynchronous_modes_need_their_prompts_in_flight(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 2)
    place = Place(tmp_path, asynchronous=True)
    assert checkpoints.last_whole(place) == (
        0,
        {2: "transfer_queue, the prompts in flight, is missing"},
    )
    (folder / "transfer_queue").mkdir()
    assert checkpoints.last_whole(place) == (2, {})


def test_files_of_another_engine_count_once_verl_noted_them(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, 2)
    for file in (folder / "actor").iterdir():
        file.rename(file.with_suffix(".distcp"))
    assert checkpoints.last_whole(Place(tmp_path)) == (2, {})
    (tmp_path / checkpoints.TRACKER).write_text("1")
    assert checkpoints.last_whole(Place(tmp_path)) == (0, {2: "actor has no model"})


def test_only_checkpoint_stays_until_the_next_is_whole(tmp_path: Path) -> None:
    limits = {"max_actor_ckpt_to_keep": 1, "max_critic_ckpt_to_keep": None}
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path), **limits}})
    trainer = SimpleNamespace(config=config, global_steps=0)
    seen = []

    def upstream(trainer: Any) -> None:
        seen.append(trainer.config.trainer.max_actor_ckpt_to_keep)
        assert checkpoints.last_whole(Place(tmp_path))[0] == trainer.global_steps - 1
        write_checkpoint(tmp_path, trainer.global_steps)

    for trainer.global_steps in (1, 2, 3):
        checkpoints.save(upstream, trainer)
        assert [path.name for path in tmp_path.glob("global*")] == [
            f"global_step_{trainer.global_steps}"
        ]
    assert seen == [2, 2, 2]  # with 1 verl's workers would remove it themselves
    assert config.trainer.max_actor_ckpt_to_keep == 1


# --- the real thing -------------------------------------------------------------------------------


@pytest.mark.real
def test_actor_that_is_killed_is_named_and_one_that_verl_ends_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import ray

    from gdpo_verl.plugin import liveness

    @ray.remote(num_cpus=0)
    class RewardLoopWorker:
        def pid(self) -> int:
            return os.getpid()

    ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        first, second = (
            RewardLoopWorker.options(name=f"reward_loop_worker_{i}").remote() for i in (0, 1)
        )
        pid, _ = ray.get([first.pid.remote(), second.pid.remote()])
        watch = liveness.Watch()
        assert watch.look() is None

        ray.kill(second)
        wait_for(lambda: ray.util.list_named_actors() == ["reward_loop_worker_0"], 30)
        with monkeypatch.context() as patch:
            patch.setattr(liveness, "NAMING_SECONDS", 0.0)
            assert watch.wait_for_death() is None

        os.kill(pid, signal.SIGKILL)
        death = rf"a reward worker died: reward_loop_worker_0 \(pid {pid} on .+\), its process was"
        assert re.match(death, watch.wait_for_death() or "")
        with pytest.raises(RuntimeError, match=death):
            watch.check()
    finally:
        ray.shutdown()


class Victim:
    """A training in a directory of its own, whose processes are killed one after the other."""

    def __init__(self, run: Path, toolbox: Path, policy: Path) -> None:
        self.run = run
        self.command = [
            *[sys.executable, "-m", "gdpo_verl.cli", "train", "toolbox/gdpo", "--run", str(run)],
            f"data.train_files={toolbox / 'train.parquet'}",
            f"data.val_files={toolbox / 'validation.parquet'}",
            f"actor_rollout_ref.model.path={policy}",
            *["data.train_batch_size=8", "data.train_max_samples=40"],  # five steps an epoch
            *["actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=8"],
            *["trainer.val_before_train=false", "trainer.test_freq=15", "trainer.save_freq=3"],
            *["data.val_max_samples=16", "actor_rollout_ref.actor.optim.lr=1e-3"],
            "reward.num_workers=2",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
        ]
        self.steps = 7
        self.launcher: Any = None
        self.leader = -1

    def start(self, *options: str) -> None:
        self.launcher = subprocess.Popen(
            [*self.command, f"trainer.total_training_steps={self.steps}", *options],
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self, who: str, *, after: int, leaving: int | None = None) -> dict[int, set[str]]:
        """Kill -9 one process when a step is done; returns the prompts of the steps so far.

        `leaving` is a step of which half a checkpoint is planted, as a save that is killed leaves
        it: a newer folder without its place in the data.
        """
        wait_for(lambda: after in steps_of(self.run) or not self.running(), 600)
        assert self.running(), self.end()
        dump = self.run / "rollouts" / f"{after}.jsonl"  # verl writes it in a thread
        wait_for(lambda: dump.exists() and dump.read_text().count("\n") == 32, 30)
        self.leader = self.driver()
        members = session(self.leader)
        pids = [pid for pid, args in members if who in args]
        assert pids, members
        seen = {step: prompts(self.run, step) for step in steps_of(self.run)}
        if leaving is not None:
            unfinished = self.run / "checkpoints" / f"global_step_{leaving}" / "actor"
            unfinished.mkdir(parents=True)
            (unfinished / "model_world_size_1_rank_0.pt").write_bytes(b"PK\x03\x04 cut short")
        os.kill(pids[0], signal.SIGKILL)
        return seen

    def running(self) -> bool:
        return bool(self.launcher) and self.launcher.poll() is None

    def driver(self) -> int:
        (line,) = [
            line for line in processes_of([f"hydra.run.dir={self.run}"]) if "main_ppo" in line
        ]
        return int(line.split()[0])

    def end(self, seconds: float = 600) -> str:
        """What the launcher said when it ended; nothing of it or of its driver is left."""
        _, said = self.launcher.communicate(timeout=seconds)
        assert session(self.leader) == []
        assert processes_of([str(self.run)]) == []
        return said


@pytest.fixture
def victim(toolbox: Path, policy: Path, tmp_path: Path) -> Any:
    victim = Victim(tmp_path / "run", toolbox, policy)
    yield victim
    if victim.running():
        victim.launcher.terminate()  # the launcher ends all that it started
        victim.launcher.wait(60)


@pytest.mark.real
def test_engine_that_is_killed_is_named_and_the_retry_goes_on_past_half_a_checkpoint(
    victim: Victim, policy: Path
) -> None:
    # The kill comes two steps before the next checkpoint, which a late one must not meet.
    victim.start("--retries", "1")
    before = victim.kill("VLLM::EngineCore", after=4, leaving=9)
    said = victim.end()
    assert victim.launcher.returncode == 0, said
    parts = ["a vLLM engine died: ", "(killed by SIGKILL) of vllm_server_0_0", "retry 1 of 1"]
    parts += ["global_step_9 was cut short and is passed over: actor/model_world_size_1"]
    parts += ["toolbox/gdpo: goes on from step 3"]
    places = [said.index(part) for part in parts]
    assert places == sorted(places), said

    # The prompts of each step, also of those done twice, are an undisturbed run's.
    steps = range(1, victim.steps + 1)
    expected = undisturbed(victim.run, policy, victim.steps)
    assert {step: prompts(victim.run, step) for step in steps} == expected
    assert min(before) == 1
    assert before == {step: expected[step] for step in before}
    assert len(set.union(*(expected[step] for step in range(1, 6)))) == 40  # the first epoch

    # Rewards from two workers are the pure function's of the text, whoever computed them.
    training = Training(victim.run, 0, "")
    for step in steps:
        for row in training.rollouts(step):
            scored = tool_call.compute_score("toolbox", row["output"], row["gts"])
            assert (row["format"], row["correctness"]) == (scored["format"], scored["correctness"])

    last = training.metrics()[victim.steps]
    report = victim.run.parent / "report"
    run_cli("report", str(victim.run), "--out", str(report))
    assert f"{last['val-aux/toolbox/format/mean@1']:.3f}" in (report / "index.html").read_text()


@pytest.mark.real
@pytest.mark.slow
def test_other_parts_that_are_killed_are_named_and_the_same_command_goes_on_where_the_data_was(
    victim: Victim, policy: Path
) -> None:
    before: list[dict[int, set[str]]] = []
    victim.steps = 12

    victim.start()
    before.append(victim.kill("verl.trainer.main_ppo", after=4))
    said = victim.end()
    assert f"the driver died: pid {victim.leader} was killed by SIGKILL" in said
    assert "The same command goes on from step 3, the last whole checkpoint" in said

    # One of two reward workers is enough, and it recovers from that by itself.
    victim.start("--retries", "1")
    before.append(victim.kill("ray::RewardLoopWorker", after=7))
    wait_for(lambda: victim.driver() != victim.leader or not victim.running(), 120)
    before.append(victim.kill("ray::WorkerDict", after=8))
    said = victim.end()
    assert victim.launcher.returncode == 1
    parts = ["toolbox/gdpo: goes on from step 3", "a reward worker died: ", "retry 1 of 1"]
    parts += ["goes on from step 6", "a training worker (FSDP or Megatron) died: "]
    parts += ["The same command goes on from step 6, the last whole checkpoint"]
    places = [said.index(part) for part in parts]
    assert places == sorted(places), said

    victim.start()
    assert "toolbox/gdpo: goes on from step 6" in victim.end()
    assert victim.launcher.returncode == 0
    expected = undisturbed(victim.run, policy, victim.steps)
    steps = range(1, victim.steps + 1)
    assert {step: prompts(victim.run, step) for step in steps} == expected
    assert [min(seen) for seen in before] == [1, 4, 7]
    for seen in before:
        assert seen == {step: expected[step] for step in seen}


def prompts(run: Path, step: int) -> set[str]:
    """Text of the prompts, which identifies one: no two rows of the toolbox share it."""
    rows = Training(run, 0, "").rollouts(step)
    found = {row["input"] for row in rows}
    assert len(rows) == 4 * len(found) == 32
    return found


def undisturbed(run: Path, policy: Path, steps: int) -> dict[int, set[str]]:
    """The prompts of each step by verl's own data set and sampler, without a trainer."""
    from transformers import AutoTokenizer
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler

    tokenizer = AutoTokenizer.from_pretrained(policy)
    data = OmegaConf.load(run / "config.yaml").data
    data.seed = torch.Generator().initial_seed()
    dataset = create_rl_dataset(data.train_files, data, tokenizer, None, max_samples=40)
    sampler = create_rl_sampler(data, dataset)
    order = [index for _ in range(3) for index in sampler]
    texts = [
        tokenizer.decode(
            tokenizer.apply_chat_template(
                dataset[index]["raw_prompt"], add_generation_prompt=True, return_dict=False
            ),
            skip_special_tokens=True,
        )
        for index in order
    ]
    return {step + 1: set(texts[8 * step : 8 * step + 8]) for step in range(steps)}


def session(leader: int) -> list[tuple[int, str]]:
    listing = subprocess.run(
        ["ps", "-eww", "-o", "pid,sid,stat,args"], capture_output=True, text=True, check=True
    )
    rows = [line.split(None, 3) for line in listing.stdout.splitlines()[1:]]
    return [
        (int(pid), args) for pid, sid, state, args in rows if int(sid) == leader and state[0] != "Z"
    ]


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def steps_of(run: Path) -> set[int]:
    metrics = run / "metrics.jsonl"
    if not metrics.exists():
        return set()
    return {int(step) for step in re.findall(r'"step":\s*(\d+)', metrics.read_text())}
