"""Fixtures for real training runs: verl's driver, a prepared task, a tiny policy, and a queue."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from processes import reachable, run_cli
from waiting import start_ray, wait_for

from gdpo_verl.cpu.patches import give_ray_time_to_start
from gdpo_verl.lab.rundir.run import flattened
from gdpo_verl.upstream.hooks import when_imported

RECIPES = Path(__file__).parents[1] / "recipes"
STOCK = "verl's own configuration"
SMALL_STEPS = {
    "data.train_batch_size": 8,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
    "trainer.val_before_train": "false",
    "trainer.test_freq": -1,
}


@dataclass
class Training:
    """A run of ``python -m verl.trainer.main_ppo`` that has ended or was killed."""

    directory: Path
    output: str = ""
    reachable: frozenset[str] = frozenset()  # sockets that other machines could reach at some time

    def metrics(self) -> dict[int, dict[str, float]]:
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return {record["step"]: record["data"] for record in map(json.loads, lines)}

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        lines = (self.directory / "rollouts" / f"{step}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def assert_trained_with(metrics: dict[str, float], advantages: Iterable[float]) -> None:
    """Assert, from verl's own metrics, that a step trained the actor with these advantages."""
    values = sorted(map(float, advantages))
    assert metrics["critic/advantages/min"] == pytest.approx(values[0], abs=1e-5)
    assert metrics["critic/advantages/max"] == pytest.approx(values[-1], abs=1e-5)


# On a busy machine Ray needs more time to start than its own limit allows.
when_imported("ray._private.node")(give_ray_time_to_start)


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch the hub off; otherwise tests would wait for it to count the weights of models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    """Start a TransferQueue on a Ray of its own."""
    import ray
    import transfer_queue as tq
    from fake_verl import recipe

    start_ray(num_cpus=8)
    tq.init(recipe().transfer_queue)
    yield tq
    tq.close()
    ray.shutdown()


@pytest.fixture(scope="session")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepare the toolbox task."""
    return made_once(
        tmp_path_factory, "toolbox", lambda out: run_cli("prepare", "toolbox", "--out", str(out))
    )


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a policy like that of `gdpo-verl make-policy`, with half of the steps."""

    def make(out: Path) -> None:
        from gdpo_verl.recipes.toolbox.policy import TASK

        from gdpo_verl.lab import policy

        settings = replace(TASK.settings, steps=160)
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(policy, "check_bands", lambda shares, task: None)
            policy.make_policy(out, TASK, settings=settings)

    return made_once(tmp_path_factory, "policy", make)


def overrides_of(settings: dict[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


def inputs(toolbox: Path, policy: Path) -> list[str]:
    """Return the overrides that name the files of the task, and the policy."""
    return [
        f"data.train_files={toolbox / 'train.parquet'}",
        f"data.val_files={toolbox / 'validation.parquet'}",
        f"actor_rollout_ref.model.path={policy}",
    ]


@pytest.fixture(scope="module")
def turn_of_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Wait for other modules with clusters, because two clusters take more than 24 GB."""
    with (of_all_workers(tmp_path_factory) / "clusters.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def of_all_workers(factory: pytest.TempPathFactory) -> Path:
    """Return the directory that the workers of pytest-xdist share."""
    root = factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory or file that the first worker of pytest-xdist makes for all workers."""
    root = of_all_workers(factory)
    made = root / name
    with (root / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unfinished = root / f"{name}.unfinished"
            make(unfinished)
            unfinished.rename(made)
    return made


def stock_overrides() -> list[str]:
    """Return the settings of the hardware recipe `cpu`, as overrides of verl's configuration."""
    recipe = OmegaConf.load(RECIPES / "hardware" / "cpu.yaml")
    flat = []
    for key, value in flattened("", OmegaConf.to_container(recipe)):
        quoted = json.dumps(value) if isinstance(value, str) else value
        flat.append(f"++{key}={quoted}")
    lengths = ["data.max_prompt_length=64", "data.max_response_length=48"]
    return [*flat, *lengths, "trainer.logger=[console,file]"]


@pytest.fixture
def driver(
    tmp_path: Path, toolbox: Path, policy: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start verl's driver with the configuration of a recipe; kill it at the end of the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(config: str, *overrides: str) -> subprocess.Popen[bytes]:
        settings = SMALL_STEPS | {
            "data.train_files": toolbox / "train.parquet",
            "data.val_files": toolbox / "validation.parquet",
            "data.val_max_samples": 16,
            "actor_rollout_ref.model.path": policy,
            "trainer.default_local_dir": tmp_path / "checkpoints",
            "trainer.rollout_data_dir": tmp_path / "rollouts",
            "trainer.save_freq": -1,
            "trainer.total_training_steps": 2,
            "hydra.run.dir": tmp_path,
        }
        chosen = ["--config-dir", str(RECIPES), "--config-name", config]
        command = [
            sys.executable,
            "-m",
            "verl.trainer.main_ppo",
            *(stock_overrides() if config == STOCK else chosen),
            *overrides_of(settings),
            *overrides,
        ]
        log = (tmp_path / "train.log").open("ab")
        variables = {
            "VERL_FILE_LOGGER_PATH": str(tmp_path / "metrics.jsonl"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "VERL_PLATFORM": "cpu",
            "HYDRA_FULL_ERROR": "1",
        }
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | variables,
            start_new_session=True,
            cwd=tmp_path,
        )
        log.close()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def train(
    driver: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> Callable[..., Training]:
    """Run verl's driver to its end."""

    def run(config: str, *overrides: str) -> Training:
        process = driver(config, *overrides)
        found: set[str] = set()

        def ended() -> bool:
            found.update(reachable(process.pid))
            return process.poll() is not None

        wait_for(ended, every=1.0)
        output = (tmp_path / "train.log").read_text(errors="replace")
        assert process.returncode == 0, output[-6000:]
        return Training(tmp_path, output, frozenset(found))

    return run
