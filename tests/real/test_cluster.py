"""A job on a real Ray cluster."""

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
import tempfile
from pathlib import Path

import pytest
from processes import environment_without, processes_of, session
from trainings import SMALL_STEPS, Training, assert_trained_with, inputs, overrides_of
from waiting import HANGS, wait_for

from gdpo_verl import __version__
from gdpo_verl.lab.replay import replay

CODE = "reward.custom_reward_function.path"
SUBMIT = Path(__file__).parents[2] / "scripts" / "submit.sh"
APART = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


class Cluster:
    """Raylets with separate addresses.

    The head is at this machine's own address, into which Ray turns 127.0.0.1, then come
    127.0.0.2 and so on. Each process is ours to end.
    """

    def __init__(self, directory, **head):
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
        self.nodes = []
        options = ["--head", f"--port={self.gcs}"]
        options += ["--dashboard-host=127.0.0.1", f"--dashboard-port={self.dashboard}"]
        # Without --block: a server for ray:// that gives up after 30 s would end the head with it.
        self.start(*options, **head)

    def add(self, number, **options):
        """A node more, or one in place of that with this number; the head's is 1."""
        self.start("--block", f"--address=127.0.0.1:{self.gcs}", number=number, **options)

    def members(self):
        """The processes of its nodes and of the jobs' workers on them, by number and arguments."""
        return session(*(node.pid for node in self.nodes))

    def kill_node(self, number):
        """Kill -9 its raylet; the workers on it end with it."""
        (raylet,) = [
            line
            for line in processes_of([f"--node_ip_address=127.0.0.{number} "])
            if "raylet/raylet " in line and str(self.directory) in line
        ]
        os.kill(int(raylet.split()[0]), signal.SIGKILL)

    def start(
        self,
        *options,
        number=1,
        python=sys.executable,
        devices=(1, 16),
        apart=False,
        **environment,
    ):
        """Start a raylet with logical devices, GPUs and CPUs; jobs on it find its own Python.

        Apart from the others, its processes see no other node's: of several raylets that a driver
        sees on its machine, Ray connects it to the head's, wherever it was started.
        """
        path = f"{Path(python).parent}:{os.environ['PATH']}"
        command = [
            *(APART if apart else []),
            python,
            "-m",
            "ray.scripts.scripts",
            "start",
            *options,
            # Nodes with one directory would delete each other's copies of a job's files.
            f"--temp-dir={self.directory / f'ray{number}'}",
            f"--num-gpus={devices[0]}",
            f"--num-cpus={devices[1]}",
            f"--node-ip-address=127.0.0.{number}",
            "--min-worker-port=0",
            "--max-worker-port=0",
            f"--dashboard-agent-listen-port={free_port()}",
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

    def submit(self, run, *arguments):
        """`scripts/submit.sh` with the toolbox recipe: five small steps unless told."""
        settings = SMALL_STEPS | {
            "actor_rollout_ref.model.path": "/no/model",
            "trainer.nnodes": 2,
            "trainer.total_training_steps": 5,
            "trainer.save_freq": 2,
            "actor_rollout_ref.rollout.agent.num_workers": 2,
            "reward.num_workers": 2,
            "+algorithm.gdpo.whiten": "sequence",
        }
        environment = {**self.environment, "RUN": str(run)}
        del environment["RAY_AUTH_MODE"]  # a token that is there is sent without being told to
        return subprocess.Popen(
            [str(SUBMIT), "toolbox/gdpo", *overrides_of(settings), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self.directory,
        )

    def ray(self, *command):
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

    def actors(self, *, alive=False):
        """The nodes that each class of actors is or was on, by Ray's own account."""
        options = ["--detail", "--format=json", "--limit=1000", f"--address={self.address}"]
        places = {}
        for actor in json.loads(self.ray("list", "actors", *options)):
            if actor["state"] == "ALIVE" or not alive:
                places.setdefault(actor["class_name"], set()).add(actor["node_id"])
        return places

    def end(self):
        for node in reversed(self.nodes):
            node.terminate()
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(15)
            kill_session(node.pid)  # the head's `ray start` has ended long ago
            for line in processes_of([str(self.directory / "ray")]):
                if os.path.exists(f"/proc/{line.split()[0]}"):
                    os.kill(int(line.split()[0]), signal.SIGKILL)


def kill_session(leader):
    for pid, _ in session(leader):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(node, log):
    def says_so():
        return "Ray runtime started" in log.read_text()

    wait_for(lambda: says_so() or node.poll() is not None, log.read_text)
    return says_so()


@contextlib.contextmanager
def running_cluster(**head):
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


pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.usefixtures("turn_of_clusters"),
]


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A Python without gdpo-verl."""
    return environment_without(re.compile("gdpo_verl"), tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def cluster(bare):
    """Two nodes, the second without gdpo-verl."""
    with running_cluster() as cluster:
        cluster.add(2, python=bare)
        yield cluster


def test_two_nodes_train_and_when_one_dies_the_same_command_goes_on(
    cluster, bare, toolbox, policy, tmp_path
):
    run, steps = tmp_path / "run", 8
    # The second node has no gdpo-verl: the job brings it, with its entry points.
    arguments = ["--upload", *inputs(toolbox, policy), f"trainer.total_training_steps={steps}"]
    job = cluster.submit(run, *arguments)
    training = Training(run)
    # After the first checkpoint, which is that of step 2; test_chaos.py takes random times.
    done = run / "rollouts" / "3.jsonl"
    wait_for(lambda: done.exists() or job.poll() is not None, lambda: str(run))
    assert job.poll() is None, job.communicate()[0]
    cluster.kill_node(2)
    output, _ = job.communicate(timeout=HANGS)

    assert output.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 2
    nodes = cluster.actors()
    for actor in ("vLLMHttpServer", "RewardLoopWorker", "AgentLoopWorkerTQ"):
        assert len(nodes[actor]) == 2, nodes
    assert job.returncode == 1, output
    # The trainer is on either node, and the driver learns of its end before Ray knows the reason;
    # a worker that waits for the other node's may fail before either.
    # Where nobody says that a node died, the last error is that of the lost connection.
    named = (
        r"died: .+ its Ray node died|Actor(?:Died|Unavailable)Error|RuntimeError: .*(?:gloo|Conn)"
    )
    assert re.search(named, output), output
    said = re.search(
        r"The same command resumes from step (\d), the last complete checkpoint", output
    )
    assert said, output

    cluster.add(2, python=bare)
    first, resumed = training.metrics(), int(said[1])
    job = cluster.submit(run, *arguments)
    output, _ = job.communicate(timeout=HANGS)
    assert job.returncode == 0, output
    assert f"resumes from step {resumed}\n" in output
    assert sorted(training.metrics()) == [*range(resumed + 1, steps + 1)]
    # A step is logged after it is saved: killed in between, that step alone has no metrics.
    assert set(first) >= set(range(1, resumed))
    for step, metrics in (first | training.metrics()).items():
        dumped = [row["gdpo_advantage"] for row in training.rollouts(step)]
        assert len(dumped) == 32
        assert max(dumped) > 0.1
        # What both workers' updates were given.
        assert_trained_with(metrics, dumped)
    assert replay([run]).reproduces <= 1e-6


def test_a_job_without_the_token_and_nodes_without_software_or_a_file_are_refused(
    cluster, bare, toolbox, policy, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "environment", cluster.environment | {"RAY_AUTH_TOKEN": "0" * 64})
        output, _ = cluster.submit(run).communicate(timeout=HANGS)
    assert "Invalid authentication token" in output

    other = tmp_path / "other" / "gdpo_verl-9.9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: gdpo-verl\nVersion: 9.9.9\n")
    cluster.add(3, python=bare, PYTHONPATH=str(other.parent))
    missing = f"data.train_files={tmp_path}/none.parquet"
    job = cluster.submit(run, missing, *inputs(toolbox, policy)[1:])
    output, _ = job.communicate(timeout=HANGS)

    assert job.returncode == 1, output
    # The rest of the sentences: tests/lab/test_submit.py.
    for node, found in (("2", "is missing"), ("3", r"9\.9\.9")):
        expected = rf"node 127\.0\.0\.{node} .*: gdpo-verl {found}, .*none\.parquet not found"
        assert re.search(expected, output), output
    assert "rejected: 3 of 3 nodes cannot train. Nothing was started" in output
    assert not run.exists()

    # Sent with the job it is on all of them.
    job = cluster.submit(run, "--upload", *inputs(toolbox, policy))
    seen = ""
    for line in job.stdout:
        seen += line
        if "starting Ray" in line:
            break
    assert seen.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 3, seen
    cluster.ray("job", "stop", re.search(r"Job '(\S+)' submitted", seen)[1])
    job.communicate(timeout=HANGS)
    wait_for(lambda: not processes_of([str(run)]), lambda: str(processes_of([str(run)])))
    wait_for(lambda: not cluster.actors(alive=True), lambda: str(cluster.actors(alive=True)))


REWARD = """\
from gdpo_verl.rewards import tool_call
from gdpo_verl.config.components import declares


@declares("format", "correctness")
def compute_score(*arguments, **named):
    with open("seen_in_the_working_directory") as file:
        file.read()
    return tool_call.compute_score(*arguments, **named)
"""


@pytest.mark.skipif(
    subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
    reason="process namespaces are not allowed here",
)
def test_a_job_trains_beside_a_head_without_cpus(toolbox, policy, tmp_path):
    (tmp_path / "code" / "rewards").mkdir(parents=True)
    (tmp_path / "code" / "rewards" / "mine.py").write_text(REWARD)
    (tmp_path / "code" / "seen_in_the_working_directory").touch()
    with running_cluster(devices=(0, 0)) as cluster:
        cluster.add(2, apart=True)

        run = tmp_path / "run"
        chosen = ["--working-dir", str(tmp_path / "code"), "trainer.nnodes=1"]
        chosen += ["trainer.total_training_steps=2", f"{CODE}=rewards/mine.py"]
        rays = ["--", "--entrypoint-num-cpus", "1", "--submission-id", "mine", "--no-wait"]
        job = cluster.submit(run, *chosen, *inputs(toolbox, policy), *rays)
        output, _ = job.communicate(timeout=HANGS)
        assert job.returncode == 0, output
        output = cluster.ray("job", "logs", "--follow", "mine")
        assert output.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 2
        assert sorted(Training(run).metrics()) == [1, 2]
        # The driver reserves a CPU, so its supervisor, which Ray puts on the head, is there too.
        actors = cluster.actors()
        assert len(set.union(*actors.values())) == 1, actors
