"""A submission without a cluster: options, paths, and the check of the nodes."""

import subprocess
import sys
from pathlib import Path

import processes
import pytest
import yaml

import gdpo_verl
from gdpo_verl import __version__
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.run import cluster_nodes, submit

CODE = "reward.custom_reward_function.path"
HEALTHY = {"gdpo-verl": "0.1.0", "verl": "0.9.1", "loaded": True, "absent": []}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({"gdpo-verl": None, "loaded": False}, "gdpo-verl is missing, expected 0.1.0. Install"),
        ({"verl": "0.9.0"}, "verl 0.9.0, expected 0.9.1 as on the driver's node"),
        ({"verl": None, "loaded": False}, "verl is missing. Install it there"),
        ({"loaded": False}, "does not load gdpo-verl's plug-in. Run `gdpo-verl doctor`"),
        ({"absent": ["data.train_files=/x"]}, "data.train_files=/x not found. Put it where every"),
        ({"error": "GetTimeoutError: no"}, "could not be asked: GetTimeoutError: no"),
    ],
)
def test_a_node_with_other_software_is_reported_with_the_remedy(found, problem):
    assert cluster_nodes.problems(HEALTHY, "0.1.0", "0.9.1") == []
    (text,) = cluster_nodes.problems({**HEALTHY, **found}, "0.1.0", "0.9.1")
    assert problem in text


def test_a_node_is_checked_for_files(tmp_path):
    here, absent = f"data.val_files={tmp_path}", f"data.train_files={tmp_path}/a=b.parquet"
    assert cluster_nodes.inspect_node([here, absent])["absent"] == [absent]


def test_the_python_of_a_job_without_ray_is_named(tmp_path):
    # It is the system's Python if Ray was started without activating its environment.
    done = processes.run(sys.executable, "-S", cluster_nodes.__file__, __version__)
    assert done.returncode == 1
    assert done.stderr == ""
    assert done.stdout.startswith(
        f"rejected: the job's python3 on this node is {sys.executable}, which has no Ray."
    )
    assert "activate the environment that has gdpo-verl" in done.stdout


def test_a_job_checks_the_nodes_and_trains_with_the_given_options(tmp_path, monkeypatch):
    seen = []

    def run(command, **_):
        seen[:] = command
        file = Path(command[command.index("--runtime-env") + 1])
        sent = yaml.safe_load(file.read_text())
        check, package, metadata = map(Path, sent["py_modules"])
        assert (check / "__main__.py").read_text() == Path(cluster_nodes.__file__).read_text()
        here = Path(gdpo_verl.__file__).parent
        sources = {file.relative_to(here) for file in here.rglob("*.py")}
        assert sources <= {file.relative_to(package) for file in package.rglob("*.py")}
        assert (package / "recipes" / "toolbox" / "gdpo.yaml").exists()
        assert "verl.plugins" in (metadata / "entry_points.txt").read_text()
        assert sent["env_vars"] == {"VERL_FILE_LOGGER_PATH": "/run/metrics.jsonl", "KEY": "gehei🔑"}
        # The secret is neither on a command line nor in a file that other users can read.
        assert file.stat().st_mode & 0o077 == 0
        assert "gehei" not in " ".join(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(submit.subprocess, "run", run)
    monkeypatch.setenv("KEY", "gehei🔑")
    monkeypatch.chdir(tmp_path)
    # A node is checked only for files, not for a hub id and not for addresses.
    data = ["data.train_files=[/a.parquet,s3://b/c.parquet]", "data.val_files='/v w.parquet'"]
    options = {"retries": 2, "hang_after": 90.0, "ray_options": ["--no-wait"]}
    status = submit.submit(
        "tool_call/gdpo",
        Path("/run"),
        data,
        program="gdpo_verl.lab.cli",
        upload=True,
        env=["KEY"],
        **options,
    )
    assert status == 7
    *client, _, separator, shell, dash_c, job = seen[2:]
    assert client[:4] == ["ray.scripts.scripts", "job", "submit", "--no-wait"]
    assert (separator, shell, dash_c) == ("--", "sh", "-c")
    check, train = job.split(" && exec ")
    files = "data.train_files=/a.parquet 'data.val_files=/v w.parquet'"
    assert check == f"python3 -m cluster_nodes {__version__} {files}"
    start = (
        "python3 -m gdpo_verl.lab.cli train tool_call/gdpo --run /run --retries 2 --hang-after 1.5"
    )
    assert train.startswith(f"{start} ++ray_kwargs.ray_init.num_gpus=null ")


def test_relative_paths_are_made_absolute_when_submitting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my models").mkdir()
    (tmp_path / "my models" / "config.json").touch()
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
    # A hub id and a package stay as they are.
    assert not any("model.path" in each for each in submit.absolute("tool_call/gdpo", []))


def test_code_in_the_sent_directory_keeps_its_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sent").mkdir()
    for place in ("sent/mine.py", "here.py"):
        (tmp_path / place).touch()
    data = f"data.train_files={tmp_path}/data/rlla/train.parquet"
    for file, kept in (("mine.py", True), ("here.py", False)):
        overrides = submit.absolute("tool_call/gdpo", [f"{CODE}={file}"], "sent")
        assert data in overrides  # data is not sent with the working directory
        assert (f"{CODE}={tmp_path}/{file}" in overrides) != kept
    archive = "s3://bucket/code.zip"
    overrides = submit.absolute("tool_call/gdpo", [f"{CODE}=other.py"], archive)
    assert not any(each.startswith(f"{CODE}={tmp_path}") for each in overrides)


def test_a_dry_run_of_a_submission_needs_no_cluster(capsys):
    command = ["submit", "tool_call/gdpo", "--run", "/shared/run", "--dry-run"]
    command += ["hardware=cluster", "trainer.nnodes=4"]
    command += ["data.train_files=/shared/none.parquet", "--", "--address", "http://127.0.0.1:9"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "tool_call/gdpo: gdpo on 4 node(s) × 8 GPU(s)" in printed
    assert "not tried, and neither was the reward: files are missing on this machine" in printed
    assert "num_data_storage_units=32" in printed
