"""Start Ray's workers as forks of one process that has imported verl and vLLM once.

Each of the eight Ray workers of a run imports verl, and most of them vLLM, one worker after the
other. On a few cores this is most of the time of a start. ``py_executable`` of Ray's runtime
environment names the command that starts a worker. Here that command is this module, which asks the
server to fork a worker, and ends when the worker ends:

    python -I -S gdpo_verl/cpu/workers.py SOCKET default_worker.py --its-arguments

This works for a Ray that verl starts itself; the nodes of a cluster start their workers themselves.
The server determines the number of torch's threads, because a worker gets its OMP_NUM_THREADS too
late.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# What the workers of a run import; a module that is not installed is imported by none of them.
MODULES = (
    "ray._private.workers.default_worker",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.workers.engine.fsdp.transformer_impl",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "verl.experimental.reward_loop",
)
_LENGTH = struct.Struct("!I")
_STATUS = struct.Struct("!i")
_MOST_FILES = 250  # in one message
_EXECUTABLE = "python"
# Without site-packages: a process that represents a worker imports as little as possible.
_STAND = [sys.executable, "-I", "-S", __file__]
_SERVE = [sys.executable, "-m", "gdpo_verl.cpu.workers", "--serve"]


def start(environment: Mapping[str, str], entry: str, modules: Sequence[str] = MODULES) -> str:
    """Start a server that ends with this process; return the command for ``py_executable``.

    Args:
      environment: variables that are added while the modules are imported. A worker has its own.
      entry: the module that prepares a process for the CPU, which the server imports first. That
        must be before Ray, because one of Ray's modules is patched when it is imported. If a module
        of verl installed the patches, Ray's generator would be seeded for all forks.
      modules: the modules that the server imports after it.
    """
    address = Path(tempfile.mkdtemp(prefix="gdpo-verl-")) / "workers"
    command = [*_STAND, str(address)]
    executable = address.with_name(_EXECUTABLE)
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    executable.chmod(0o700)
    # Ray reads both when it is imported, and not when a worker starts. The first job of a Ray has
    # this number. A worker ends with the raylet that has this process id: here with the driver,
    # because its raylet ends with the driver as well.
    of_any_worker = {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)  # workers may ask while the server imports
        # Nothing is written to the pipe. Its other end closes when this process ends for any
        # reason.
        end, _ = os.pipe()
        subprocess.Popen(
            [*_SERVE, str(listener.fileno()), entry, *modules],
            stdin=end,
            pass_fds=[listener.fileno()],
            env={**os.environ, **environment, **of_any_worker},
        )
        os.close(end)
    return " ".join(command)


def serve_workers(listener: socket.socket, modules: Sequence[str]) -> None:
    """Import, then fork a worker for each request; return in the server and in each worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as Ray does for its processes
    gc.disable()  # it would take a sixth of the time, and the modules' objects stay anyway
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # a worker's garbage collector does not visit them and copy their pages
    gc.enable()
    executable = str(Path(listener.getsockname()).with_name(_EXECUTABLE))
    workers: dict[int, tuple[int, socket.socket]] = {}  # the file is readable after its end
    while True:
        ready = select.select([listener, sys.stdin, *workers], [], [])[0]
        if sys.stdin in ready:
            break
        for ended in [file for file in workers if file in ready]:
            pid, connection = workers.pop(ended)
            os.close(ended)
            with connection, contextlib.suppress(OSError):  # its client may have ended
                connection.sendall(_STATUS.pack(os.waitpid(pid, 0)[1]))
        if listener in ready:
            connection, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                listener.close()
                for other, (_, its_connection) in workers.items():
                    os.close(other)
                    its_connection.close()
                adopt_request(connection, executable)
                return
            workers[os.pidfd_open(pid)] = pid, connection
    shutil.rmtree(Path(listener.getsockname()).parent)


def adopt_request(connection: socket.socket, executable: str) -> None:
    """Turn this fork into the requested worker with its argv, environment and files.

    Processes that it spawns with `multiprocessing`, such as vLLM's engine, are forks of the server
    as well.
    """
    import numpy

    request = _take_files(connection)
    spawned = "-c" in request["arguments"]  # not for a worker of Ray, which sets its own titles
    if spawned:
        with contextlib.suppress(ImportError):
            # vLLM's titles: their place in memory depends on the environment at the start of the
            # process.
            importlib.import_module("setproctitle").getproctitle()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    with contextlib.suppress(PermissionError):  # a higher priority than the server
        os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    raylet: Any = importlib.import_module("ray._raylet")
    # This reads RAY_AUTH_MODE, which `ray.init` chose after the server had started.
    raylet.Config.initialize("")
    numpy.random.seed()  # else every worker would have the state of the server
    multiprocessing.set_executable(executable)
    sys.argv = request["arguments"]
    if not spawned:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    # As `python -c CODE --multiprocessing-fork`.
    at = sys.argv.index("-c")
    code = sys.argv[at + 1]
    sys.argv = ["-c", *sys.argv[at + 2 :]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _take_files(connection: socket.socket) -> dict[str, Any]:
    """Read the request, and give its files the numbers that they have in the asking process."""
    header, received, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FILES)
    with connection.makefile("rb") as stream:
        request: dict[str, Any] = json.loads(stream.read(*_LENGTH.unpack(header)))
    # First move them away from those numbers.
    kept, *files = [
        fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, _MOST_FILES)
        for file in (connection.fileno(), *received)
    ]
    for file in (connection.detach(), *received):
        os.close(file)
    for file, number in zip(files, request["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    threading.Thread(target=_end_with, args=(kept,), daemon=True).start()
    return request


def _end_with(connection: int) -> None:
    """End this process as soon as the process that represents it ends."""
    os.read(connection, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    os.kill(os.getpid(), signal.SIGKILL)


def proxy_for_worker(address: str, arguments: list[str]) -> None:
    """Ask the server for a worker, and exit with its status."""
    listed = os.listdir("/proc/self/fd")  # the directory's own too, which is closed again
    files = [int(file) for file in listed if os.path.lexists(f"/proc/self/fd/{file}")]
    message = json.dumps(
        {
            "arguments": arguments,
            "environment": dict(os.environ),
            "directory": os.getcwd(),
            "niceness": os.getpriority(os.PRIO_PROCESS, 0),
            "files": files,
        }
    ).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [_LENGTH.pack(len(message))], files)
        connection.sendall(message)
        ended = connection.recv(_STATUS.size)
    status = os.waitstatus_to_exitcode(*_STATUS.unpack(ended)) if ended else 1
    if status < 0:
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve_workers(socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
    else:
        proxy_for_worker(sys.argv[1], sys.argv[2:])
