"""A real Ray cluster on this machine: raylets with separate addresses."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conftest import processes_of, session
from waiting import wait_for

SUBMIT = Path(__file__).parents[1] / "scripts" / "submit.sh"
APART = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


class Cluster:
    """Raylets with separate addresses.

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

    def members(self) -> list[tuple[int, str]]:
        """The processes of its nodes and of the jobs' workers on them, by number and arguments."""
        return session(*(node.pid for node in self.nodes))

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
        """Start a raylet with logical devices, GPUs and CPUs; jobs on it find its own Python.

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
        """`scripts/submit.sh` with the toolbox recipe: five small steps unless told."""
        settings = {
            "actor_rollout_ref.model.path": "/no/model",
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
        environment = {**self.environment, "RUN": str(run)}
        del environment["RAY_AUTH_MODE"]  # a token that is there is sent without being told to
        return subprocess.Popen(
            [str(SUBMIT), "toolbox/gdpo", *overrides, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self.directory,
        )

    def ray(self, *command: str) -> str:
        """The output of one of Ray's commands."""
        done = subprocess.run(
            [sys.executable, "-m", "ray.scripts.scripts", *command],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env=self.environment,
            cwd=self.directory,
        )
        return done.stdout

    def actors(self, *, alive: bool = False) -> dict[str, set[str]]:
        """The nodes that each class of actors is or was on, by Ray's own account."""
        options = ["--detail", "--format=json", "--limit=1000", f"--address={self.address}"]
        places: dict[str, set[str]] = {}
        for actor in json.loads(self.ray("list", "actors", *options)):
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
