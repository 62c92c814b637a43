"""Train a recipe on an existing Ray cluster, through ``ray job submit``.

The job first checks the versions and the files on all nodes (`gdpo_verl.lab.run.cluster_nodes`).
Then it runs the same ``gdpo-verl train`` as on a single machine. It runs on the cluster's head
node, unless the options of ``ray job submit`` reserve resources for the driver.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

import yaml
from omegaconf import OmegaConf

import gdpo_verl
from gdpo_verl import __version__
from gdpo_verl.lab.overrides import quoted
from gdpo_verl.lab.run import cluster_nodes, composition, launch
from gdpo_verl.lab.run.composition import DATA, MODEL, REWARD
from gdpo_verl.lab.rundir import layout
from gdpo_verl.upstream.model import check_model

# A hardware recipe may set the number of devices for a Ray that verl starts. On an existing
# cluster, `ray start` has set these numbers.
_EXISTING_CLUSTER = [
    "++ray_kwargs.ray_init.num_gpus=null",
    "++ray_kwargs.ray_init.num_cpus=null",
    # Without this, TransferQueue requires storage units on nodes that have no CPU for them.
    "++transfer_queue.backend.SimpleStorage.required_node_resource=CPU",
]
# Files that workers import. They may be sent with the job's working directory.
_CODE = (
    REWARD,
    "reward.reward_manager.module.path",
    "data.custom_cls.path",
    "trainer.v1.sampler.custom_sampler.path",
)


class SubmitError(RuntimeError):
    """The error if a job cannot be submitted."""


def submit(
    recipe: str,
    run: Path,
    overrides: Sequence[str] = (),
    *,
    program: str,
    env: Sequence[str] = (),
    upload: bool = False,
    working_dir: str | None = None,
    retries: int = 0,
    hang_after: float = launch.HANG_SECONDS,
    config_dir: Path | None = None,
    accept_changed_files: bool = False,
    ray_options: Sequence[str] = (),
) -> int:
    """Submit a run with ``ray job submit``, which shows its log; return its exit status.

    The arguments that are not listed here have the same meaning as for `launch.train`. Every node
    must be able to write to the directory `run`.

    Args:
      program: the module of the command line, which the job starts with ``python3 -m``.
      env: variables for every process of the job: NAME=VALUE, or NAME to use the value that the
        variable has here.
      upload: send this gdpo-verl to every node, where it replaces an installed one.
      working_dir: a local directory, or the address of an archive, that is sent to every node. The
        processes of the job run in it.
      ray_options: options of ``ray job submit``, for example ["--address", "http://head:8265"].

    Raises:
      RecipeError: there is no such recipe, or its configuration cannot be composed.
      ValueError: the model is neither a local path, nor an absolute path, nor a hub id.
      SubmitError: an argument is wrong.
    """
    of_user = check_run_and_env(run, env)
    config_dir = config_dir and config_dir.absolute()
    overrides = absolute(recipe, overrides, working_dir, config_dir)
    # Every node needs each file that is not fetched from an address. A model that is no absolute
    # path is a hub id.
    config = composition.compose(recipe, overrides, config_dir)
    files = [
        f"{key}={file}"
        for key in (*DATA, *_CODE, MODEL)
        for file in composition.named(config, key)
        if "://" not in file and (key != MODEL or file.startswith("/"))
    ]
    # A node without a Python environment has a `python3` as well, so that the check can run there
    # and report what is missing.
    place = [f"--config-dir={config_dir}"] if config_dir else []
    check = ["python3", "-m", "cluster_nodes", __version__, *files, *place]
    train = ["python3", "-m", program, "train", recipe, "--run", str(run), *place]
    train += ["--retries", str(retries), "--hang-after", f"{hang_after / 60:g}"]
    train += ["--accept-changed-files"] if accept_changed_files else []
    job = f"{shlex.join(check)} && exec {shlex.join([*train, *_EXISTING_CLUSTER, *overrides])}"
    # The process of the trainer does not inherit this variable from the driver's environment.
    variables = {"VERL_FILE_LOGGER_PATH": str(run / layout.METRICS), **of_user}
    # Without a mode, `ray start` uses a token that exists, but Ray's client does not.
    token = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
    has_token = os.environ.get("RAY_AUTH_TOKEN") or os.path.isfile(os.path.expanduser(token))
    mode = {"RAY_AUTH_MODE": "token"} if has_token else {}
    with tempfile.TemporaryDirectory() as stage:
        sent: dict[str, object] = {"env_vars": variables}
        sent["py_modules"] = _modules(Path(stage), upload)
        if working_dir:
            sent["working_dir"] = working_dir
        command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", *ray_options]
        # A variable may be a secret, and every user of this machine can read a command line.
        # Therefore the variables are passed in a file.
        environment = Path(stage) / "runtime_env.yaml"
        environment.touch(mode=0o600)
        environment.write_text(yaml.safe_dump(sent), encoding="utf-8")
        command += ["--runtime-env", str(environment), "--", "sh", "-c", job]
        return subprocess.run(command, env=mode | os.environ, check=False).returncode


def absolute(
    recipe: str,
    overrides: Sequence[str],
    working_dir: str | None = None,
    config_dir: Path | None = None,
) -> list[str]:
    """Return the overrides, with further overrides that make the paths of the recipe absolute.

    The job has another working directory: the directory in which ``ray start`` ran on the head
    node, or `working_dir`. Code in `working_dir` keeps its relative path, and a hub id is not
    changed.

    Raises:
      RecipeError, ValueError: as for `submit`.
    """
    config = composition.compose(recipe, overrides, config_dir)
    check_model(config, elsewhere=True)
    added = []
    for key in (*DATA, MODEL, *_CODE):
        files = composition.named(config, key)
        absolute_files = [_from_here(key, file, working_dir) for file in files]
        if absolute_files != files:
            texts = [quoted(file) for file in absolute_files]
            value = f"[{','.join(texts)}]"
            if isinstance(OmegaConf.select(config, key), str):
                value = texts[0]
            added.append(f"{key}={value}")
    return [*overrides, *added]


def _from_here(key: str, file: str, working_dir: str | None) -> str:
    """Return the absolute path of a file; an address, a hub id or sent code stays as it is."""
    path = Path(file).expanduser()
    if "://" in file or (key == MODEL and not path.exists()):
        return file
    if key in _CODE and not path.is_absolute():
        sent = working_dir or ""
        # An archive at an address is assumed to contain the file.
        if "://" in sent or (sent and (Path(sent).expanduser() / file).exists()):
            return file
    return str(path.absolute())


def check_run_and_env(run: Path, env: Sequence[str]) -> dict[str, str]:
    """Return the variables of `env` with their values.

    Raises:
      SubmitError: `run` is a relative path, or a variable is not set here.
    """
    if not run.is_absolute():
        raise SubmitError(
            f"--run: expected an absolute path, found {str(run)!r}. The job has another working "
            "directory. Give the full path of a directory that every node can write"
        )
    variables = {}
    for entry in env:
        name, equals, value = entry.partition("=")
        if not equals and name not in os.environ:
            raise SubmitError(f"--env: {name} is not set here; set it, or give {name}=VALUE")
        variables[name] = value if equals else os.environ[name]
    return variables


def _modules(stage: Path, upload: bool) -> list[str]:
    """Return the directories that the job sends: the check, and with `upload` gdpo-verl."""
    check = stage / "cluster_nodes"
    package = stage / "gdpo_verl"
    check.mkdir()
    shutil.copyfile(cluster_nodes.__file__, check / "__main__.py")
    if not upload:
        return [str(check)]
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(gdpo_verl.__file__).parent, package, ignore=without_caches)
    # In a checkout the recipes are next to the package.
    recipes = composition.recipes_directory()
    shutil.copytree(recipes, package / "recipes", ignore=without_caches, dirs_exist_ok=True)
    # verl and vLLM find a plug-in through the metadata next to its package.
    metadata = stage / f"gdpo_verl-{__version__}.dist-info"
    metadata.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(distribution("gdpo-verl").read_text(name) or "")
    return [str(check), str(package), str(metadata)]
