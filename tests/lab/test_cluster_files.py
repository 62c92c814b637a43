"""The Dockerfile, the RayJob and the SkyPilot task fit the recipes that they start."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from gdpo_verl.lab.cli import _parser
from gdpo_verl.lab.cli import main as gdpo
from gdpo_verl.lab.run.launch import composed
from gdpo_verl.lab.run.submit import _EXISTING_CLUSTER

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "scripts" / "cluster"
QUEUE_NODES = "transfer_queue.backend.SimpleStorage.required_node_resource"


def rayjob():
    job = yaml.safe_load((PLACE / "rayjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    return dict(job["spec"])


def training(command):
    """Return run directory, arguments and configuration of a `gdpo-verl train` command."""
    program, *arguments = shlex.split(command)
    assert program == "gdpo-verl"
    options, overrides = _parser().parse_known_args(arguments)
    return options.run, arguments, composed(options.recipe, options.run, overrides)[0]


def test_the_rayjob_starts_a_recipe_that_passes_the_dry_run(tmp_path, capsys):
    # the configuration of a local model, because tests do not use the hub
    (tmp_path / "config.json").touch()
    _, arguments, _ = training(rayjob()["entrypoint"])
    here = [f"data.{name}_files=/tmp/none.parquet" for name in ("train", "val")]
    here += [f"actor_rollout_ref.model.path={tmp_path}"]
    assert gdpo([*arguments, "--dry-run", *here]) == 1
    problems = re.findall(r"PROBLEM  (.+)", capsys.readouterr().out)
    assert len(problems) == 1
    assert "data.train_files: '/tmp/none.parquet' does not exist here" in problems[0]


def test_the_rayjob_has_the_nodes_gpus_volumes_and_metrics_that_its_run_needs():
    spec = rayjob()
    run, _, config = training(spec["entrypoint"])
    variables = yaml.safe_load(spec["runtimeEnvYAML"])["env_vars"]
    assert variables["VERL_FILE_LOGGER_PATH"] == str(run / "metrics.jsonl")
    head = spec["rayClusterSpec"]["headGroupSpec"]
    (workers,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == config.trainer.nnodes
    images = set()
    for group in (head, workers):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        images.add(container["image"])
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounts = container["volumeMounts"]
        assert {mount["name"] for mount in mounts} <= volumes
        folders = [mount["mountPath"] + "/" for mount in mounts]
        for path in (str(run), config.data.train_files, config.data.val_files):
            assert path.startswith(tuple(folders))
    assert len(images) == 1
    assert container["resources"]["limits"]["nvidia.com/gpu"] == config.trainer.n_gpus_per_node
    # The head has no CPUs, so that nothing runs on it, not even the transfer queue.
    assert head["rayStartParams"] == {"num-cpus": "0"}
    assert spec["entrypointNumCpus"] >= 1
    assert OmegaConf.select(config, QUEUE_NODES) == "CPU"
    assert f"++{QUEUE_NODES}=CPU" in _EXISTING_CLUSTER


def test_the_skypilot_task_submits_a_recipe_on_its_nodes_from_the_first_node(tmp_path):
    task = yaml.safe_load((PLACE / "skypilot.yaml").read_text())
    subprocess.run(["bash", "-n"], input=task["setup"], text=True, check=True)
    for script in re.findall(r"scripts/\S+", task["setup"] + task["run"]):
        assert os.access(ROOT / script, os.X_OK), script
    # The scripts on the node are replaced by ones that print their arguments.
    stubs = "source() { :; }\nfunction /sky_templates/ray/start_cluster { echo cluster; }\n"
    stubs += 'scripts/submit.sh() { echo "$RUN $*"; }\n'
    printed = []
    for rank in ("0", "1"):
        variables = {"HOME": "", "SKYPILOT_NODE_RANK": rank, "SKYPILOT_NUM_NODES": "2"}
        command = ["bash", "-c", stubs + task["run"]]
        printed.append(subprocess.check_output(command, text=True, env=os.environ | variables))
    assert printed[1] == "cluster\n"
    cluster, submitted = printed[0].splitlines()
    run, *arguments = submitted.split()
    assert cluster == "cluster"
    assert run.startswith(tuple(f"{mount}/" for mount in task["file_mounts"]))
    _, _, config = training(shlex.join(["gdpo-verl", "train", "--run", run, *arguments]))
    assert config.trainer.nnodes == task["num_nodes"]
    assert task["resources"]["accelerators"].endswith(f":{config.trainer.n_gpus_per_node}")


@pytest.mark.real
@pytest.mark.slow
def test_the_dockerfile_copies_enough_to_install_and_to_train(tmp_path):
    lines = (PLACE / "Dockerfile").read_text().splitlines()
    instructions = [line.partition(" ")[::2] for line in lines]
    (install,) = (rest for word, rest in instructions if word == "RUN" and "setup.sh" in rest)
    for word, rest in instructions:
        if word == "COPY":
            _, *sources, target = rest.split()  # after the option --chown
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, tmp_path / target)
    environment = {key: value for key, value in os.environ.items() if key != "VENV"}
    environment["HARDWARE"] = "cpu"  # the build argument of the image
    subprocess.run(["bash", "-c", install], cwd=tmp_path, env=environment, check=True)
    command = [tmp_path / ".venv/bin/gdpo-verl", "train", "toolbox/gdpo", "--cfg", "job"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "adv_estimator: gdpo" in printed.stdout
