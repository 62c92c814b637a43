"""A real Ray cluster: raylets with addresses of their own on this machine, and a job on them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from conftest import Training, processes_of

from gdpo_verl import __version__
from gdpo_verl.advantage import gdpo_scalars
from gdpo_verl.cli import main
from gdpo_verl.run import cluster_nodes, submit
from gdpo_verl.run.composition import RecipeError

SUBMIT = Path(__file__).parents[1] / "scripts" / "submit.sh"

HEALTHY = {"gdpo-verl": "0.1.0", "verl": "0.9.1", "loaded": True}


def test_node_with_the_same_software_has_no_problem() -> None:
    assert cluster_nodes.problems(HEALTHY, "0.1.0", "0.9.1") == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"gdpo-verl": None, "loaded": False}, "gdpo-verl is missing, expected 0.1.0. Install"),
        ({"gdpo-verl": "0.0.9"}, "gdpo-verl 0.0.9, expected 0.1.0. Install that version"),
        ({"verl": "0.9.0"}, "verl 0.9.0, expected 0.9.1 as on the driver's node"),
        ({"verl": None, "loaded": False}, "verl is missing. Install it there"),
        ({"loaded": False}, "does not load gdpo-verl's plug-in. Run `gdpo-verl doctor`"),
        ({"error": "GetTimeoutError: no"}, "could not be asked: GetTimeoutError: no"),
    ],
    ids=["missing", "other version", "other verl", "no verl", "not loaded", "silent"],
)
def test_node_with_other_software_is_told_the_remedy(found: dict, problem: str) -> None:
    (text,) = cluster_nodes.problems({**HEALTHY, **found}, "0.1.0", "0.9.1")
    assert problem in text


@pytest.mark.parametrize(
    ("recipe", "run", "env", "error", "message"),
    [
        ("toolbox/gdop", "/run", [], RecipeError, r"'toolbox/gdop' does not exist"),
        ("toolbox/gdpo", "run", [], submit.SubmitError, r"--run: 'run' is relative"),
        ("toolbox/gdpo", "/run", ["NOT_SET"], submit.SubmitError, r"--env: NOT_SET is not set"),
        ("toolbox/gdpo", "/run", ["A=b"], submit.SubmitError, r"job server at http://127.0.0.1:9:"),
    ],
    ids=["recipe", "relative run", "variable", "no cluster"],
)
def test_job_that_cannot_be_submitted_is_refused(
    recipe: str, run: str, env: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        submit.submit(recipe, Path(run), env=env, address="http://127.0.0.1:9")


def test_retries_are_the_job_s() -> None:
    entrypoint = submit._entrypoint("toolbox/gdpo", Path("/run"), ["a=1"], 2)
    assert " train toolbox/gdpo --run /run --retries 2 " in entrypoint
    assert entrypoint.endswith(" a=1")


def test_relative_paths_are_made_absolute_when_submitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my models").mkdir()
    reward = "reward.custom_reward_function.path=pkg://mine"
    given = ["data.val_files=[a.parquet,/b.parquet]", "actor_rollout_ref.model.path=my models"]
    overrides = submit.absolute("tool_call/gdpo", [*given, reward])
    assert overrides == [
        *given,
        reward,
        f"data.train_files={tmp_path}/data/rlla/train.parquet",
        f"data.val_files=[{tmp_path}/a.parquet,/b.parquet]",
        f"actor_rollout_ref.model.path='{tmp_path}/my models'",
    ]
    # A hub's id and a package stay as they are.
    assert not any("model.path" in each for each in submit.absolute("tool_call/gdpo", []))


def test_dry_run_of_a_submission_asks_no_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["submit", "tool_call/gdpo", "--run", "/shared/run", "--dry-run"]
    command += ["--address", "http://127.0.0.1:9", "hardware=cluster", "trainer.nnodes=3"]
    command += ["data.train_files=/shared/none.parquet"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "tool_call/gdpo: gdpo on 3 node(s) × 8 GPU(s)" in printed
    assert "not on this machine, so neither it nor the reward was tried" in printed
    assert "num_data_storage_units=24" in printed


class Cluster:
    """Raylets with addresses of their own, all but the first of them without gdpo-verl.

    The first is at this machine's own address, into which Ray turns 127.0.0.1, then come
    127.0.0.2 and so on. Each process is ours to end.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "token").write_text(secrets.token_hex(32))
        self.gcs, self.dashboard = free_port(), free_port()
        self.address = f"http://127.0.0.1:{self.dashboard}"
        self.environment = {
            **os.environ,
            "VENV": sys.prefix,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(directory / "token"),
            "RAY_API_SERVER_ADDRESS": self.address,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self.nodes: list[subprocess.Popen[bytes]] = []
        head = ["--head", f"--port={self.gcs}", f"--temp-dir={directory / 'ray'}"]
        self.start(*head, "--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard}")
        self.bare_python = environment_without_gdpo_verl(directory / "bare")
        self.add()

    def add(self, number: int | None = None, **environment: str) -> None:
        """A node more, or one in place of that with this number."""
        address = f"--address=127.0.0.1:{self.gcs}"
        self.start(address, number=number, python=self.bare_python, **environment)

    def kill_node(self, number: int) -> None:
        """Kill -9 its raylet; the workers on it end with it."""
        (raylet,) = [
            line
            for line in processes_of([f"--node_ip_address=127.0.0.{number} "])
            if "raylet/raylet " in line and str(self.directory) in line
        ]
        os.kill(int(raylet.split()[0]), signal.SIGKILL)

    def start(
        self,
        *options: str,
        number: int | None = None,
        python: str = sys.executable,
        **environment: str,
    ) -> None:
        number = number or len(self.nodes) + 1
        log = self.directory / f"node{number}.{len(self.nodes)}.log"
        command = [
            *[python, "-m", "ray.scripts.scripts", "start", "--block", *options],
            *["--num-gpus=1", "--num-cpus=16"],  # logical ones
            *[f"--node-ip-address=127.0.0.{number}"],
            *["--min-worker-port=0", "--max-worker-port=0"],
            *[f"--dashboard-agent-listen-port={free_port()}"],
        ]
        with log.open("wb") as out:
            self.nodes.append(
                subprocess.Popen(
                    command,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=self.environment | environment,
                    start_new_session=True,
                    cwd=self.directory,
                )
            )
        wait_for(lambda: "Ray runtime started" in log.read_text(), 90, log.read_text)

    def submit(self, run: Path, *arguments: str) -> subprocess.Popen[str]:
        """`scripts/submit.sh` with the toolbox recipe: five small steps on two nodes."""
        settings = {
            "trainer.nnodes": 2,
            "trainer.total_training_steps": 5,
            "trainer.save_freq": 2,
            "trainer.test_freq": -1,
            "trainer.val_before_train": "false",
            "data.train_batch_size": 8,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.rollout.n": 4,
            "actor_rollout_ref.rollout.agent.num_workers": 2,
            "reward.num_workers": 2,
            "+algorithm.gdpo.whiten": "sequence",
        }
        overrides = [f"{key}={value}" for key, value in settings.items()]
        return subprocess.Popen(
            [str(SUBMIT), "toolbox/gdpo", *overrides, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environment, "RUN": str(run)},
            cwd=self.directory,
        )

    def actors(self, *, alive: bool = False) -> dict[str, set[str]]:
        """The nodes that each class of actors is or was on, by Ray's own account."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "list", "actors", "--detail"]
        command += ["--format=json", "--limit=1000", f"--address={self.address}"]
        listing = subprocess.run(
            command, capture_output=True, text=True, check=True, env=self.environment
        )
        places: dict[str, set[str]] = {}
        for actor in json.loads(listing.stdout):
            if actor["state"] == "ALIVE" or not alive:
                places.setdefault(actor["class_name"], set()).add(actor["node_id"])
        return places

    def end(self) -> None:
        for node in reversed(self.nodes):
            node.terminate()
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(15)
            for line in processes_of([str(self.directory / "ray")]):
                if os.path.exists(f"/proc/{line.split()[0]}"):
                    os.kill(int(line.split()[0]), signal.SIGKILL)


def environment_without_gdpo_verl(directory: Path) -> str:
    """This Python environment but for one package; returns its interpreter."""
    venv.create(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "gdpo_verl" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    return str(directory / "bin" / "python")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float, state: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, state()
        time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Not below pytest's directories: a socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="gdpo", dir="/tmp"))
    cluster = None
    try:
        cluster = Cluster(directory)
        yield cluster
    finally:
        if cluster:
            cluster.end()
        shutil.rmtree(directory, ignore_errors=True)


def inputs(toolbox: Path, policy: Path) -> list[str]:
    return [
        f"data.train_files={toolbox / 'train.parquet'}",
        f"data.val_files={toolbox / 'validation.parquet'}",
        f"actor_rollout_ref.model.path={policy}",
    ]


@pytest.mark.real
@pytest.mark.slow
def test_two_nodes_train_and_when_one_dies_the_same_command_goes_on(
    cluster: Cluster, toolbox: Path, policy: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    # The second node has no gdpo-verl: the job brings it, with its entry points.
    job = cluster.submit(run, "--upload", *inputs(toolbox, policy))
    training = Training(run, 0, "")
    done = run / "rollouts" / "3.jsonl"
    wait_for(lambda: done.exists() or job.poll() is not None, 600, lambda: str(run))
    assert job.poll() is None, job.communicate()[0]
    cluster.kill_node(2)
    output, _ = job.communicate(timeout=120)

    assert output.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 2
    nodes = cluster.actors()
    for actor in ("vLLMHttpServer", "RewardLoopWorker", "AgentLoopWorkerTQ"):
        assert len(nodes[actor]) == 2, nodes
    assert job.returncode == 1, output
    # The trainer is on either node, and the driver learns of its end before Ray knows the reason.
    lost = "the trainer's process or its Ray node died: the driver lost the connection to it"
    assert lost in output or re.search(r"died: .+ its Ray node died", output), output
    assert "The same command goes on from step 2, the last whole checkpoint" in output

    cluster.add(2)
    first = training.metrics()
    job = cluster.submit(run, "--upload", *inputs(toolbox, policy))
    output, _ = job.communicate(timeout=600)
    assert job.returncode == 0, output
    assert "goes on from step 2" in output
    assert sorted(training.metrics()) == [3, 4, 5]
    for step, metrics in (first | training.metrics()).items():
        rows = training.rollouts(step)
        assert len(rows) == 32
        table = [[row["format"], row["correctness"]] for row in rows]
        rewards = torch.tensor(table, dtype=torch.float64)
        groups = [row["uid"].rsplit("_", 2)[0] for row in rows]
        dumped = torch.tensor([row["gdpo_advantage"] for row in rows], dtype=torch.float64)
        expected = gdpo_scalars(rewards, groups, torch.ones(len(rows)), whiten="sequence")
        assert expected.std() > 0.1
        torch.testing.assert_close(dumped, expected, rtol=0, atol=1e-6)
        # What both workers' updates were given.
        assert metrics["critic/advantages/max"] == pytest.approx(float(expected.max()), abs=1e-5)
        assert metrics["critic/advantages/min"] == pytest.approx(float(expected.min()), abs=1e-5)


@pytest.mark.real
@pytest.mark.slow
def test_nodes_without_the_package_or_with_another_version_are_refused_by_name(
    cluster: Cluster, toolbox: Path, policy: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "gdpo_verl-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: gdpo-verl\nVersion: 9.9.9\n")
    cluster.add(3, PYTHONPATH=str(other.parent))
    run = tmp_path / "run"

    job = cluster.submit(run)
    output, _ = job.communicate(timeout=300)

    assert job.returncode == 1, output
    reported = {
        line.split()[1]: line.partition(": ")[2]
        for line in output.splitlines()
        if line.startswith("node ")
    }
    expected = f"expected {__version__}. Install that version there, or submit with --upload"
    assert reported["127.0.0.2"] == f"gdpo-verl is missing, {expected}"
    assert reported["127.0.0.3"] == f"gdpo-verl 9.9.9, {expected}"
    assert "refused: 2 of 3 nodes cannot train; nothing was started" in output
    assert not run.exists()

    # Sent with the job it is on all of them; and Ctrl-C stops the job.
    job = cluster.submit(run, "--upload", *inputs(toolbox, policy))
    assert job.stdout is not None
    seen = ""
    while "starting Ray" not in seen and (line := job.stdout.readline()):
        seen += line
    assert seen.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 3, seen
    job.send_signal(signal.SIGINT)
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 130, seen + output
    wait_for(lambda: not processes_of([str(run)]), 60, lambda: str(processes_of([str(run)])))
    wait_for(lambda: not cluster.actors(alive=True), 60, lambda: str(cluster.actors(alive=True)))


@pytest.mark.real
@pytest.mark.slow
def test_job_without_the_token_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**cluster.environment, "RAY_AUTH_TOKEN": "0" * 64}
    monkeypatch.setattr(cluster, "environment", wrong)
    job = cluster.submit(Path("/run"))
    output, _ = job.communicate(timeout=120)
    assert job.returncode == 1
    assert "Invalid authentication token" in output
