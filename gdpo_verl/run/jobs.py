"""Ray's job API: the options of ``ray job submit``, and a job's log followed to its end."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

STOP_SECONDS = 60.0
INTERRUPTED = 130


class JobError(RuntimeError):
    """A job was not submitted, or its state is unknown."""


@dataclass(frozen=True)
class Server:
    """The job server of a Ray cluster, and how to be let in; as Ray's own client has it.

    Attributes:
      address: for example "http://head:8265". Ray prefers RAY_API_SERVER_ADDRESS or RAY_ADDRESS
        to it, and without any looks on this machine. The token is Ray's affair
        (~/.ray/auth_token, RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN; RAY_AUTH_MODE=disabled sends
        none).
      headers: sent with each request.
      verify: the server's certificate, by the system's authorities or by a file or directory of
        others; False believes it.
    """

    address: str | None = None
    headers: Mapping[str, str] | None = None
    verify: bool | str = True

    def connect(self) -> JobSubmissionClient:
        """A client of the server.

        Raises:
          JobError: it is out of reach, or does not let us in.
        """
        # `ray start` takes a token that is there where no mode is set; Ray's client would not.
        token = os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token"
        if os.environ.get("RAY_AUTH_TOKEN") or os.path.isfile(os.path.expanduser(token)):
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        from ray.job_submission import JobSubmissionClient

        headers = dict(self.headers) if self.headers else None
        with self.explained():
            return JobSubmissionClient(self.address, headers=headers, verify=self.verify)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what Ray's client raises into a `JobError` that says what to set."""
        from ray.exceptions import RayError

        try:
            yield
        except (OSError, RuntimeError, ValueError, RayError) as error:
            environment = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
            named = [self.address, *map(os.environ.get, environment), "this machine"]
            # Ray says no more than that it failed to connect; a certificate is named beneath.
            beneath = f" ({error.__context__})" if error.__context__ else ""
            raise JobError(
                f"Ray's job server at {next(filter(None, named))}: {error}{beneath}\n"
                "Expected a running cluster: --address http://HEAD:8265 or "
                "RAY_API_SERVER_ADDRESS, --verify where its certificate is your own, --headers "
                "behind a proxy that asks for them, and its token in ~/.ray/auth_token or "
                "RAY_AUTH_TOKEN where the cluster asks for one."
            ) from error


def attach(server: Server, job: str) -> int:
    """Show a job's log from its first line until the job ends; returns the job's status.

    Ctrl-C ends the watching, not the job.

    Raises:
      JobError: its server is out of reach.
      RuntimeError: Ray's, that there is no such job.
    """
    client = server.connect()
    try:
        return follow(client, job)
    except KeyboardInterrupt:
        sys.stderr.write(f"job {job} goes on; `ray job stop {job}` ends it\n")
        return INTERRUPTED


def follow(client: JobSubmissionClient, job: str) -> int:
    """Print a job's log until the job ends, through lost connections; returns its status."""
    asyncio.run(_show_log(client, job))
    details = client.get_job_info(job)
    if details.status == "STOPPED":
        return INTERRUPTED
    if details.status == "FAILED" and not details.driver_exit_code:
        sys.stderr.write(f"job {job}: {details.message}\n")
        return 1
    return int(details.driver_exit_code or 0)


async def _show_log(client: JobSubmissionClient, job: str) -> None:
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


def stop(client: JobSubmissionClient, job: str) -> None:
    """Stop a job and wait until it has ended.

    Raises:
      JobError: it did not within a minute.
    """
    sys.stderr.write(f"job {job}: stopping\n")
    client.stop_job(job)
    deadline = time.monotonic() + STOP_SECONDS
    while not client.get_job_status(job).is_terminal():
        if time.monotonic() > deadline:
            raise JobError(f"job {job} does not stop; see `ray job status {job}`")
        time.sleep(0.5)


def add_server_options(command: argparse.ArgumentParser) -> None:
    """The options by which ``ray job`` finds a server; `server_of` reads them."""
    command.add_argument(
        "--address", help="http://HEAD:8265; default: RAY_API_SERVER_ADDRESS, or this machine"
    )
    command.add_argument(
        "--headers",
        metavar="JSON",
        type=_texts,
        default=os.environ.get("RAY_JOB_HEADERS"),
        help="of each request to the server; default: RAY_JOB_HEADERS",
    )
    command.add_argument(
        "--verify",
        metavar="CERTIFICATES",
        type=_verify,
        default=True,
        help="a file or directory to verify the server's certificate with; false believes it",
    )


def server_of(options: argparse.Namespace) -> Server:
    """The server that the options name."""
    return Server(options.address, options.headers, options.verify)


def add_entrypoint_options(command: argparse.ArgumentParser) -> None:
    """The options by which ``ray job submit`` describes a job; `entrypoint_of` reads them."""
    command.add_argument(
        "--submission-id", metavar="ID", help="of the job; default: one of Ray's making"
    )
    for name, kind, what in (
        ("num-cpus", float, "CPUs"),
        ("num-gpus", float, "GPUs"),
        ("memory", int, "bytes of memory"),
    ):
        about = f"{what} that the job's driver reserves on its node"
        command.add_argument(f"--entrypoint-{name}", metavar="N", type=kind, help=about)
    for name, read, what in (
        ("resources", _numbers, "Ray's resources that its node must have and the driver reserves"),
        ("label-selector", _texts, "labels that its node must have"),
    ):
        command.add_argument(f"--entrypoint-{name}", metavar="JSON", type=read, help=what)


def entrypoint_of(options: argparse.Namespace) -> dict[str, Any]:
    """Keywords of Ray's `submit_job` that the options set; an older Ray lacks some of them."""
    names = ("num_cpus", "num_gpus", "memory", "resources", "label_selector")
    keys = ["submission_id", *[f"entrypoint_{name}" for name in names]]
    return {key: getattr(options, key) for key in keys if getattr(options, key) is not None}


def _verify(text: str) -> bool | str:
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)


def _texts(text: str) -> dict[str, str]:
    return _object(text, str, '{"KEY": "VALUE"}')


def _numbers(text: str) -> dict[str, float]:
    return _object(text, (int, float), '{"NAME": 1}')


def _object(text: str, kind: Any, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(v, kind) for v in found.values()):
        raise argparse.ArgumentTypeError(f"expected JSON as {example}, found {text!r}")
    return found
