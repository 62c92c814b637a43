"""Train a recipe on a Ray cluster that exists, through Ray's job API.

The job is the same ``gdpo-verl train`` that runs on one machine, on the cluster's head node,
after each node has been asked for its versions (`gdpo_verl.run.cluster_nodes`).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from gdpo_verl import __version__
from gdpo_verl.run import cluster_nodes, composition, launch

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

STOP_SECONDS = 60.0
INTERRUPTED = 130
# The hardware recipes may say how many devices a Ray of their own has; here `ray start` did.
_EXISTING_CLUSTER = ["++ray_kwargs.ray_init.num_gpus=null", "++ray_kwargs.ray_init.num_cpus=null"]


class SubmitError(RuntimeError):
    """The job was not submitted, or its state is unknown."""


def submit(
    recipe: str,
    run: Path,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    env: Sequence[str] = (),
    upload: bool = False,
    retries: int = 0,
) -> int:
    """Submit a training, show its log, and return its exit status.

    Ctrl-C stops the job; whatever else ends this process leaves it running.

    Args:
      recipe: its name, for example "tool_call/gdpo".
      run: the run's directory, where every node can write.
      overrides: Hydra's.
      address: of the cluster's job server, for example "http://head:8265". Ray prefers
        RAY_API_SERVER_ADDRESS or RAY_ADDRESS to it, and without any looks on this machine. The
        token is Ray's affair: RAY_AUTH_MODE=token with ~/.ray/auth_token or RAY_AUTH_TOKEN.
      env: variables for every process of the job, NAME=VALUE or NAME for the value here.
      upload: send this gdpo-verl to every node, in place of one that is installed there.
      retries: how often the job itself starts a training again that failed.

    Returns:
      The job's own status; 130 when it was stopped.

    Raises:
      SubmitError: a wrong argument, or Ray refused the job or is out of reach.
    """
    composition.require_recipe(recipe)
    if not run.is_absolute():
        raise SubmitError(
            f"--run: {str(run)!r} is relative, but the job has a working directory of its own; "
            "name a directory that every node can write, from its root"
        )
    overrides = absolute(recipe, overrides)
    # The trainer's process does not inherit the driver's environment, from which it would have it.
    variables = {"VERL_FILE_LOGGER_PATH": str(run / "metrics.jsonl"), **_variables(env)}
    with tempfile.TemporaryDirectory() as stage:
        runtime_env: dict[str, Any] = {
            "env_vars": variables,
            "py_modules": [_check(Path(stage)), *(_package(Path(stage)) if upload else [])],
        }
        entrypoint = _entrypoint(recipe, run, overrides, retries)
        client, job = _send(address, entrypoint, runtime_env)
    sys.stderr.write(f"job {job}\n")
    try:
        asyncio.run(_show_log(client, job))
    except KeyboardInterrupt:
        _stop(client, job)
        return INTERRUPTED
    details = client.get_job_info(job)
    if details.status == "STOPPED":
        return INTERRUPTED
    if details.status == "FAILED" and not details.driver_exit_code:
        sys.stderr.write(f"job {job}: {details.message}\n")
        return 1
    return int(details.driver_exit_code or 0)


def absolute(recipe: str, overrides: Sequence[str]) -> list[str]:
    """The overrides, and the files that the recipe names, by their full paths from here.

    The job has another working directory: that in which ``ray start`` ran on the head node. A
    model or reward function is a path only where it is one here; a hub id stays as it is.

    Raises:
      RecipeError: no such recipe, or its configuration cannot be composed.
    """
    config = composition.compose(recipe, overrides)
    added = []
    for key in composition.SOURCES:
        value = OmegaConf.select(config, key)
        files = [value] if isinstance(value, str) else list(value or [])
        whole = [_from_here(file, always=key.startswith("data.")) for file in files]
        if whole != files:
            texts = [launch.quoted(file) for file in whole]
            text = texts[0] if isinstance(value, str) else f"[{','.join(texts)}]"
            added.append(f"{key}={text}")
    return [*overrides, *added]


def _from_here(file: str, *, always: bool) -> str:
    if "://" in file or not (always or Path(file).expanduser().exists()):
        return file
    return str(Path(file).expanduser().absolute())


def _entrypoint(recipe: str, run: Path, overrides: Sequence[str], retries: int) -> str:
    check = ["python", "-m", "cluster_nodes", __version__]
    train = ["python", "-m", "gdpo_verl.cli", "train", recipe, "--run", str(run)]
    train += ["--retries", str(retries)]
    return f"{shlex.join(check)} && exec {shlex.join([*train, *_EXISTING_CLUSTER, *overrides])}"


def _variables(env: Sequence[str]) -> dict[str, str]:
    variables = {}
    for entry in env:
        name, given, value = entry.partition("=")
        if not given and name not in os.environ:
            raise SubmitError(f"--env: {name} is not set here; set it, or give {name}=VALUE")
        variables[name] = value if given else os.environ[name]
    return variables


def _check(stage: Path) -> str:
    """`cluster_nodes` as a package of its own, which is what the job API can send."""
    check = stage / "cluster_nodes"
    check.mkdir()
    shutil.copyfile(cluster_nodes.__file__, check / "__main__.py")
    return str(check)


def _package(stage: Path) -> list[str]:
    """This gdpo-verl as directories for `py_modules`.

    verl and vLLM find a plug-in by the metadata beside the package, so that is sent as well.
    """
    package, metadata = stage / "gdpo_verl", stage / f"gdpo_verl-{__version__}.dist-info"
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(__file__).parent, package, ignore=without_caches)
    # In a checkout they are beside the package.
    shutil.copytree(
        composition.recipes_directory(),
        package / "recipes",
        ignore=without_caches,
        dirs_exist_ok=True,
    )
    metadata.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (metadata / name).write_text(distribution("gdpo-verl").read_text(name) or "")
    return [str(package), str(metadata)]


def _send(
    address: str | None, entrypoint: str, runtime_env: dict[str, Any]
) -> tuple[JobSubmissionClient, str]:
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(address)
        return client, client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        where = address or os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS")
        raise SubmitError(
            f"Ray's job server at {where or 'this machine'}: {error}\n"
            "Expected a running cluster: --address http://HEAD:8265 or RAY_API_SERVER_ADDRESS, "
            "and RAY_AUTH_MODE=token with its token where the cluster asks for one."
        ) from error


async def _show_log(client: JobSubmissionClient, job: str) -> None:
    """Print the job's log until the job ends, through lost connections."""
    import aiohttp

    shown = 0
    while True:
        # Asked before reading: after a lost connection, what the job wrote last is yet to be read.
        ended = client.get_job_status(job).is_terminal()
        skip = shown  # each connection begins with the log's first line
        try:
            async for text in client.tail_job_logs(job):
                new, skip = text[skip:], max(0, skip - len(text))
                shown += len(new)
                print(new, end="", flush=True)
            ended = client.get_job_status(job).is_terminal()
        except (RuntimeError, OSError, aiohttp.ClientError):  # a proxy's time limit, say
            await asyncio.sleep(1.0)
        if ended:
            return


def _stop(client: JobSubmissionClient, job: str) -> None:
    sys.stderr.write(f"job {job}: stopping\n")
    client.stop_job(job)
    deadline = time.monotonic() + STOP_SECONDS
    while not client.get_job_status(job).is_terminal():
        if time.monotonic() > deadline:
            raise SubmitError(f"job {job} does not stop; see `ray job status {job}`")
        time.sleep(0.5)
