"""A real Ray cluster: raylets with addresses of their own on this machine, and a job on them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Training, environment_without, processes_of
from test_chaos import SEED
from test_faults import session
from test_submit import CODE
from waiting import HANGS, wait_for

from gdpo_verl import __version__
from gdpo_verl.advantage import gdpo_scalars
from gdpo_verl.run import jobs

SUBMIT = Path(__file__).parents[1] / "scripts" / "submit.sh"
APART = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


class Cluster:
    """Raylets with addresses of their own.

    The head is at this machine's own address, into which Ray turns 127.0.0.1, then come
    127.0.0.2 and so on. Each process is ours to end.
    """

    def __init__(self, directory: Path, **head: Any) -> None:
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
        options = ["--head", f"--port={self.gcs}"]
        options += ["--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard}"]
        # Without --block: a server for ray:// that gives up after 30 s would end the head with it.
        self.start(*options, **head)

    def add(self, number: int, **options: Any) -> None:
        """A node more, or one in place of that with this number; the head's is 1."""
        self.start("--block", f"--address=127.0.0.1:{self.gcs}", number=number, **options)

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
        number: int = 1,
        python: str = sys.executable,
        devices: tuple[int, int] = (1, 16),
        apart: bool = False,
        **environment: str,
    ) -> None:
        """Start a raylet with so many logical GPUs and CPUs; jobs on it find its own Python.

        Apart from the others, its processes see no other node's: of several raylets that a driver
        sees on its machine, Ray connects it to the head's, wherever it was started.
        """
        path = f"{Path(python).parent}:{os.environ['PATH']}"
        command = [
            *(APART if apart else []),
            *[python, "-m", "ray.scripts.scripts", "start", *options],
            # Nodes with one directory would delete each other's copies of a job's files.
            f"--temp-dir={self.directory / f'ray{number}'}",
            *[f"--num-gpus={devices[0]}", f"--num-cpus={devices[1]}"],
            *[f"--node-ip-address=127.0.0.{number}"],
            *["--min-worker-port=0", "--max-worker-port=0"],
            *[f"--dashboard-agent-listen-port={free_port()}"],
        ]
        # Ray gives up after 30 s, within which a busy machine may not start a raylet.
        for _ in range(10):
            log = self.directory / f"node{number}.{len(self.nodes)}.log"
            with log.open("wb") as out:
                node = subprocess.Popen(
                    command,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    env=self.environment | {"PATH": path} | environment,
                    start_new_session=True,
                    cwd=self.directory,
                )
            self.nodes.append(node)
            if started(node, log):
                return
            kill_session(node.pid)
        raise AssertionError(log.read_text())

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

    def attach(self, job: str, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "gdpo_verl.cli", "attach", job, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            cwd=self.directory,
        )

    def actors(self, *, alive: bool = False) -> dict[str, set[str]]:
        """The nodes that each class of actors is or was on, by Ray's own account."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "list", "actors", "--detail"]
        command += ["--format=json", "--limit=1000", f"--address={self.address}"]
        listing = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=True,
            env=self.environment | {"RAY_API_SERVER_ADDRESS": self.address},
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
            kill_session(node.pid)  # the head's `ray start` has ended long ago
            for line in processes_of([str(self.directory / "ray")]):
                if os.path.exists(f"/proc/{line.split()[0]}"):
                    os.kill(int(line.split()[0]), signal.SIGKILL)


class Proxy:
    """What stands before a cluster: a certificate that no authority signed, and a header.

    Attributes:
      address: of the proxy.
      certificate: the file that a client verifies it with.
    """

    def __init__(self, port: int, directory: Path, header: str) -> None:
        self.upstream, self.header = port, header.lower().encode()
        self.certificate, key = directory / "proxy.pem", directory / "proxy.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
        command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, key)
        own = free_port()
        self.address = f"https://127.0.0.1:{own}"
        self.loop = asyncio.new_event_loop()
        serve = asyncio.start_server(self.answer, "127.0.0.1", own, ssl=context)
        self.loop.run_until_complete(serve)
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if self.header not in head.lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        back, forth = await asyncio.open_connection("127.0.0.1", self.upstream)
        forth.write(head)
        await asyncio.gather(copied(reader, forth), copied(back, writer))


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def kill_session(leader: int) -> None:
    for pid, _ in session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(node: subprocess.Popen[bytes], log: Path) -> bool:
    def says_so() -> bool:
        return "Ray runtime started" in log.read_text()

    wait_for(lambda: says_so() or node.poll() is not None, log.read_text)
    return says_so()


@contextlib.contextmanager
def running_cluster(**head: Any) -> Iterator[Cluster]:
    # Not below pytest's directories: a socket's path has at most 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="gdpo", dir="/tmp"))
    cluster = None
    try:
        cluster = Cluster(directory, **head)
        yield cluster
    finally:
        if cluster:
            cluster.end()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_certificate_and_headers_are_needed_and_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    proxy = Proxy(free_port(), tmp_path, "X-Team: gdpo")  # nothing answers behind it
    given = {"verify": str(proxy.certificate), "headers": {"X-Team": "gdpo"}}
    for options, refusal in (
        ({}, "certificate verify failed"),
        ({"verify": given["verify"]}, "407"),
        ({**given, "headers": {"X-Team": "other"}}, "407"),
        (given, "Connection aborted"),
    ):
        with pytest.raises(jobs.JobError, match=refusal):
            jobs.Server(proxy.address, **options).connect()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without gdpo-verl."""
    return environment_without(re.compile("gdpo_verl"), tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def cluster(bare: str) -> Iterator[Cluster]:
    """Two nodes, the second without gdpo-verl."""
    with running_cluster() as cluster:
        cluster.add(2, python=bare)
        yield cluster


def inputs(toolbox: Path, policy: Path) -> list[str]:
    return [
        f"data.train_files={toolbox / 'train.parquet'}",
        f"data.val_files={toolbox / 'validation.parquet'}",
        f"actor_rollout_ref.model.path={policy}",
    ]


@pytest.mark.real
@pytest.mark.slow
def test_two_nodes_train_and_when_one_dies_the_same_command_goes_on(
    cluster: Cluster, bare: str, toolbox: Path, policy: Path, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    print(f"CHAOS_SEED={SEED}")
    run, steps = tmp_path / "run", 8
    # The second node has no gdpo-verl: the job brings it, with its entry points.
    arguments = ["--upload", *inputs(toolbox, policy), f"trainer.total_training_steps={steps}"]
    job = cluster.submit(run, *arguments)
    training = Training(run, 0, "")
    # At a random time after the first checkpoint, which is that of step 2.
    done = run / "rollouts" / f"{chance.randint(2, 4)}.jsonl"
    wait_for(lambda: done.exists() or job.poll() is not None, lambda: str(run))
    time.sleep(chance.uniform(0, 5))
    assert job.poll() is None, job.communicate()[0]
    cluster.kill_node(2)
    output, _ = job.communicate(timeout=HANGS)

    assert output.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 2
    nodes = cluster.actors()
    for actor in ("vLLMHttpServer", "RewardLoopWorker", "AgentLoopWorkerTQ"):
        assert len(nodes[actor]) == 2, nodes
    assert job.returncode == 1, output
    # The trainer is on either node, and the driver learns of its end before Ray knows the reason.
    lost = "the trainer's process or its Ray node died: the driver lost the connection to it"
    assert lost in output or re.search(r"died: .+ its Ray node died", output), output
    said = re.search(r"The same command goes on from step (\d), the last whole checkpoint", output)
    assert said, output
    print(said[0])

    cluster.add(2, python=bare)
    first, resumed = training.metrics(), int(said[1])
    job = cluster.submit(run, *arguments)
    output, _ = job.communicate(timeout=HANGS)
    assert job.returncode == 0, output
    assert f"goes on from step {resumed}\n" in output
    assert sorted(training.metrics()) == [*range(resumed + 1, steps + 1)]
    # A step is logged after it is saved: killed in between, that step alone has no metrics.
    assert set(first) >= set(range(1, resumed))
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
    cluster: Cluster, bare: str, toolbox: Path, policy: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other" / "gdpo_verl-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: gdpo-verl\nVersion: 9.9.9\n")
    cluster.add(3, python=bare, PYTHONPATH=str(other.parent))
    run = tmp_path / "run"

    job = cluster.submit(run, *inputs(toolbox, policy))
    output, _ = job.communicate(timeout=HANGS)

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
    output, _ = job.communicate(timeout=HANGS)
    assert job.returncode == 130, seen + output
    wait_for(lambda: not processes_of([str(run)]), lambda: str(processes_of([str(run)])))
    wait_for(lambda: not cluster.actors(alive=True), lambda: str(cluster.actors(alive=True)))


@pytest.mark.real
@pytest.mark.slow
def test_job_without_the_token_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**cluster.environment, "RAY_AUTH_TOKEN": "0" * 64}
    monkeypatch.setattr(cluster, "environment", wrong)
    job = cluster.submit(Path("/run"))
    output, _ = job.communicate(timeout=HANGS)
    assert job.returncode == 1
    assert "Invalid authentication token" in output


REWARD = """\
from gdpo_verl.rewards import tool_call
from gdpo_verl.rewards.components import declares


@declares("format", "correctness")
def compute_score(*arguments, **named):
    with open("seen_in_the_working_directory") as file:
        file.read()
    return tool_call.compute_score(*arguments, **named)
"""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
@pytest.mark.skipif(
    subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
    reason="no process namespaces of one's own here",
)
def test_job_behind_a_proxy_trains_beside_a_head_without_cpus_and_is_attached_to_again(
    toolbox: Path, policy: Path, tmp_path: Path
) -> None:
    bare = environment_without(re.compile("gdpo_verl|^verl"), tmp_path / "bare")
    (tmp_path / "code" / "rewards").mkdir(parents=True)
    (tmp_path / "code" / "rewards" / "mine.py").write_text(REWARD)
    (tmp_path / "code" / "seen_in_the_working_directory").touch()
    with running_cluster(python=bare, devices=(0, 0)) as cluster:
        cluster.add(2, apart=True)
        proxy = Proxy(cluster.dashboard, tmp_path, "X-Team: gdpo")
        cluster.environment["RAY_API_SERVER_ADDRESS"] = proxy.address
        certified = ["--verify", str(proxy.certificate)]
        through = [*certified, "--headers", '{"X-Team": "gdpo"}']

        for options, refusal in (([], "certificate verify failed"), (certified, "407")):
            output, _ = cluster.submit(Path("/run"), *options).communicate(timeout=HANGS)
            assert refusal in output, output

        # The driver is on the head, as Ray puts it there by default, and a file is missing.
        run = tmp_path / "run"
        missing = f"data.train_files={tmp_path}/none.parquet"
        others = inputs(toolbox, policy)[1:]
        output, _ = cluster.submit(run, *through, missing, *others).communicate(timeout=HANGS)
        assert "with --entrypoint-num-cpus 1 it starts on a node that has CPUs" in output
        assert re.search(rf"node 127.0.0.2 .*: {missing} not found", output), output
        assert "refused: 2 of 2 nodes cannot train" in output

        chosen = ["--entrypoint-num-cpus", "1", "--working-dir", str(tmp_path / "code")]
        chosen += ["--submission-id", "mine", "--no-wait", "trainer.nnodes=1"]
        chosen += ["trainer.total_training_steps=2", f"{CODE}=rewards/mine.py"]
        job = cluster.submit(run, *through, *chosen, *inputs(toolbox, policy))
        output, _ = job.communicate(timeout=HANGS)
        assert job.returncode == 0, output
        assert "`gdpo-verl attach mine` shows its log" in output
        first = cluster.attach("mine", *through)
        wait_for(lambda: (run / "train.log").exists(), lambda: str(run))
        first.send_signal(signal.SIGINT)
        output, _ = first.communicate(timeout=HANGS)
        assert first.returncode == 130
        assert "job mine goes on" in output

        again = cluster.attach("mine", *through)
        output, _ = again.communicate(timeout=HANGS)
        assert again.returncode == 0, output
        assert "holds no worker, for it has neither CPU nor GPU for Ray; not asked" in output
        assert output.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 1
        assert sorted(Training(run, 0, "").metrics()) == [1, 2]
        actors = cluster.actors()
        assert len(actors.pop("JobSupervisor")) == 2  # the refused job's was on the head
        assert len(set.union(*actors.values())) == 1, actors

        unknown = cluster.attach("another", *through)
        output, _ = unknown.communicate(timeout=HANGS)
        assert unknown.returncode == 1
        assert "another does not exist" in output
