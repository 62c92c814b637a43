"""Ray's workers as forks of one process that has imported verl and vLLM once.

Each of a training's eight Ray workers imports verl, and most of them vLLM, one worker after the
other: most of a start on a few cores. ``py_executable`` of Ray's runtime environment names the
command that it starts a worker with; here that is this module, which asks the server to fork one
and stays as long as the worker does:

    python -m gdpo_verl.cpu.workers SOCKET default_worker.py --its-arguments

For a Ray that verl starts itself; a cluster's nodes start their workers themselves. The number of
threads that torch computes with is the server's, since a worker's OMP_NUM_THREADS comes too late.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# What the workers of a training import; a module that is not there is imported by none of them.
MODULES = (
    "ray._private.workers.default_worker",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "verl.experimental.reward_loop",
)
_LENGTH = struct.Struct("!I")
_COMMAND = [sys.executable, "-m", "gdpo_verl.cpu.workers"]


def start(environment: Mapping[str, str], modules: Sequence[str] = MODULES) -> str:
    """Start a server that ends with this process; returns the command for ``py_executable``.

    Args:
      environment: added to this process's while the modules are imported. A worker gets its own.
      modules: that the server imports.
    """
    address = Path(tempfile.mkdtemp(prefix="gdpo-verl-")) / "workers"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)  # workers may ask while the server imports
        # Nobody writes to the pipe; its other end closes when this process ends, however it does.
        end, _ = os.pipe()
        subprocess.Popen(
            [*_COMMAND, "--serve", str(listener.fileno()), *modules],
            stdin=end,
            pass_fds=[listener.fileno()],
            env={**os.environ, **environment, **_of_any_worker()},
        )
        os.close(end)
    return " ".join([*_COMMAND, str(address)])


def _of_any_worker() -> dict[str, str]:
    """Variables that Ray reads in a process when it is imported, and not when a worker starts.

    The first job of a Ray has this number, and a worker ends with the raylet of this number: here
    with the driver, with which its raylet ends, too.
    """
    return {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}


def serve(listener: socket.socket, modules: Sequence[str]) -> None:
    """Import, then fork a worker for each request; returns in the server and in each worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as Ray does for its processes
    for module in modules:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the workers
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                become_worker(connection)
                return
    shutil.rmtree(Path(listener.getsockname()).parent)


def become_worker(connection: socket.socket) -> None:
    """Run the requested worker in this process, with the requester's environment and files."""
    import numpy
    from ray._raylet import Config  # type: ignore[attr-defined]

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    header, files, _, _ = socket.recv_fds(connection, _LENGTH.size, 3)
    with connection.makefile("rb") as stream:
        request = json.loads(stream.read(*_LENGTH.unpack(header)))
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    Config.initialize(
        ""
    )  # reads RAY_AUTH_MODE again, which `ray.init` chose after the server began
    numpy.random.seed()  # the server's state would be every worker's
    sys.argv = request["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")


def stand_for(address: str, arguments: list[str]) -> None:
    """Have the server fork a worker in this process's place, and wait for its end."""
    message = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}
    ).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [_LENGTH.pack(len(message))], [0, 1, 2])
        connection.sendall(message)
        connection.recv(1)  # the worker has the other end until it is gone


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        stand_for(sys.argv[1], sys.argv[2:])
