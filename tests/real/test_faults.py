"""A training of which a part is killed: what it says, and where it goes on."""

import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from omegaconf import OmegaConf
from processes import processes_of, run_cli, session
from trainings import SMALL_STEPS, Training, inputs, overrides_of
from waiting import HANGS, start_ray, wait_for

from gdpo_verl.rewards import tool_call


@pytest.mark.real
def test_actor_that_is_killed_is_named_and_one_that_verl_ends_is_not(monkeypatch):
    import ray

    from gdpo_verl.plugin.watch import liveness

    @ray.remote(num_cpus=0)
    class RewardLoopWorker:
        def pid(self):
            return os.getpid()

    start_ray(address="local", num_cpus=1)
    try:
        first, second = (
            RewardLoopWorker.options(name=f"reward_loop_worker_{i}").remote() for i in (0, 1)
        )
        pid, _ = ray.get([first.pid.remote(), second.pid.remote()])
        watch = liveness.ActorWatch()
        assert watch.first_death() is None

        ray.kill(second)
        wait_for(lambda: ray.util.list_named_actors() == ["reward_loop_worker_0"])
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
    """A training in its own directory, whose processes are killed one after the other."""

    def __init__(self, run, toolbox, policy):
        self.run = run
        self.overrides = [*inputs(toolbox, policy), "data.train_max_samples=40"]  # 5 steps an epoch
        self.steps = 7
        self.launcher = None
        self.leader = -1

    def start(self, *options):
        command = [sys.executable, "-m", "gdpo_verl.lab.cli", "train", "toolbox/gdpo"]
        settings = SMALL_STEPS | {
            "trainer.total_training_steps": self.steps,
            "trainer.test_freq": 15,
            "trainer.save_freq": 3,
            "data.val_max_samples": 16,
            "actor_rollout_ref.actor.optim.lr": 1e-3,
            "reward.num_workers": 2,
        }
        self.launcher = subprocess.Popen(
            [*command, "--run", str(self.run), *self.overrides, *overrides_of(settings), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def running(self):
        return bool(self.launcher) and self.launcher.poll() is None

    def driver(self):
        (line,) = [
            line for line in processes_of([f"hydra.run.dir={self.run}"]) if "main_ppo" in line
        ]
        return int(line.split()[0])

    def end(self):
        """Wait for the launcher's end, which leaves no process; returns its output."""
        said, _ = self.launcher.communicate(timeout=HANGS)
        assert session(self.leader) == []
        assert processes_of([str(self.run)]) == []
        return said


@pytest.fixture
def victim(toolbox, policy, tmp_path):
    victim = Victim(tmp_path / "run", toolbox, policy)
    yield victim
    if victim.running():
        victim.launcher.terminate()  # the launcher ends all that it started
        victim.launcher.wait(HANGS)


@pytest.mark.real
def test_engine_that_is_killed_is_named_and_the_retry_goes_on_past_half_a_checkpoint(
    victim, policy
):
    victim.start("--retries", "1")
    # Two steps before the next checkpoint, which a late kill must not meet.
    wait_for(lambda: 4 in steps_of(victim.run) or not victim.running())
    assert victim.running(), victim.end()
    dump = victim.run / "rollouts" / "4.jsonl"  # verl writes it in a thread
    wait_for(lambda: dump.exists() and dump.read_text().count("\n") == 32)
    victim.leader = victim.driver()
    engines = [pid for pid, args in session(victim.leader) if "VLLM::EngineCore" in args]
    before = {step: prompts(victim.run, step) for step in steps_of(victim.run)}
    # What a save leaves that is killed.
    unfinished = victim.run / "checkpoints" / "global_step_9" / "actor"
    unfinished.mkdir(parents=True)
    (unfinished / "model_world_size_1_rank_0.pt").write_bytes(b"PK\x03\x04 cut short")
    os.kill(engines[0], signal.SIGKILL)
    said = victim.end()
    assert victim.launcher.returncode == 0, said
    parts = ["a vLLM engine died: ", "(killed by SIGKILL) of vllm_server_0_0", "retry 1 of 1"]
    parts += ["global_step_9 was cut short and is skipped: its save did not end"]
    parts += ["toolbox/gdpo: resumes from step 3"]
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
    training = Training(victim.run)
    for step in steps:
        for row in training.rollouts(step):
            scored = tool_call.compute_score("toolbox", row["output"], row["gts"])
            assert (row["format"], row["correctness"]) == (scored["format"], scored["correctness"])

    last = training.metrics()[victim.steps]
    report = victim.run.parent / "report"
    run_cli("report", str(victim.run), "--out", str(report))
    assert f"{last['val-aux/toolbox/format/mean@1']:.3f}" in (report / "index.html").read_text()


def prompts(run, step):
    """Text of the prompts, which identifies one: no two rows of the toolbox share it."""
    rows = Training(run).rollouts(step)
    found = {row["input"] for row in rows}
    assert (len(rows), len(found)) == (32, 8)
    return found


def undisturbed(run, policy, steps):
    """The prompts of each step by verl's own data set and sampler, without a trainer."""
    from transformers import AutoTokenizer
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler

    tokenizer = AutoTokenizer.from_pretrained(policy)
    data = OmegaConf.load(run / "config.yaml").data
    data.seed = torch.Generator().initial_seed()
    dataset = create_rl_dataset(data.train_files, data, tokenizer, None, max_samples=40)
    sampler = create_rl_sampler(data, dataset)
    epochs = -(-8 * steps // 40)
    order = [index for _ in range(epochs) for index in sampler]
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


def steps_of(run):
    metrics = run / "metrics.jsonl"
    if not metrics.exists():
        return set()
    return {int(step) for step in re.findall(r'"step":\s*(\d+)', metrics.read_text())}
