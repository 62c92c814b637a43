"""A job on a real Ray cluster."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from clusters import APART, Cluster, running_cluster
from conftest import Training, environment_without, inputs, processes_of
from test_submit import CODE
from waiting import HANGS, wait_for

from gdpo_verl import __version__
from gdpo_verl.advantage import decompose

pytestmark = pytest.mark.usefixtures("turn_of_clusters")


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


@pytest.mark.real
@pytest.mark.slow
def test_two_nodes_train_and_when_one_dies_the_same_command_goes_on(
    cluster: Cluster, bare: str, toolbox: Path, policy: Path, tmp_path: Path
) -> None:
    run, steps = tmp_path / "run", 8
    # The second node has no gdpo-verl: the job brings it, with its entry points.
    arguments = ["--upload", *inputs(toolbox, policy), f"trainer.total_training_steps={steps}"]
    job = cluster.submit(run, *arguments)
    training = Training(run, 0, "")
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
    said = re.search(r"The same command goes on from step (\d), the last whole checkpoint", output)
    assert said, output

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
        counts = torch.ones(len(rows))
        expected = decompose(rewards, groups, counts, whiten="sequence").gdpo
        assert expected.std() > 0.1
        torch.testing.assert_close(dumped, expected, rtol=0, atol=1e-6)
        # What both workers' updates were given.
        assert metrics["critic/advantages/max"] == pytest.approx(float(expected.max()), abs=1e-5)
        assert metrics["critic/advantages/min"] == pytest.approx(float(expected.min()), abs=1e-5)


@pytest.mark.real
@pytest.mark.slow
def test_a_job_without_the_token_and_nodes_without_software_or_a_file_are_refused(
    cluster: Cluster,
    bare: str,
    toolbox: Path,
    policy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    reported = {
        line.split()[1]: line.partition(": ")[2]
        for line in output.splitlines()
        if line.startswith("node ")
    }
    remedy = "Install that version there, or submit with --upload"
    expected = f"expected {__version__}. {remedy}; {missing} not found"
    assert reported["127.0.0.2"].startswith(f"gdpo-verl is missing, {expected}")
    assert reported["127.0.0.3"].startswith(f"gdpo-verl 9.9.9, {expected}")
    assert "refused: 3 of 3 nodes cannot train; nothing was started" in output
    assert not run.exists()

    # Sent with the job it is on all of them.
    job = cluster.submit(run, "--upload", *inputs(toolbox, policy))
    assert job.stdout is not None
    seen = ""
    while "starting Ray" not in seen and (line := job.stdout.readline()):
        seen += line
    assert seen.count(f"gdpo-verl {__version__}, verl 0.9.1, plug-in loaded") == 3, seen
    cluster.ray("job", "stop", re.search(r"Job '(\S+)' submitted", seen)[1])  # type: ignore[index]
    job.communicate(timeout=HANGS)
    wait_for(lambda: not processes_of([str(run)]), lambda: str(processes_of([str(run)])))
    wait_for(lambda: not cluster.actors(alive=True), lambda: str(cluster.actors(alive=True)))


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
@pytest.mark.skipif(
    subprocess.run([*APART, "true"], capture_output=True, check=False).returncode != 0,
    reason="process namespaces are not allowed here",
)
def test_a_job_trains_beside_a_head_without_cpus(
    toolbox: Path, policy: Path, tmp_path: Path
) -> None:
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
        assert sorted(Training(run, 0, "").metrics()) == [1, 2]
        actors = cluster.actors()
        assert len(actors.pop("JobSupervisor")) == 2  # Ray puts one on the head by default
        assert len(set.union(*actors.values())) == 1, actors
