"""Start Ray's workers as forks of one process that has imported verl and vLLM once.

A run has eight Ray workers. Each of them imports verl, and most of them import vLLM, one worker
after the other. On a few cores these imports take most of the time in which a run starts.

Here a *server* process imports the modules once, and forks itself for each worker. The key
``py_executable`` of Ray's runtime environment is the command with which Ray starts a worker. Its
value is this module. The process that Ray starts with it, the *proxy*, asks the server to fork a
worker, and ends when the worker ends:

    python -I -S gdpo_verl/cpu/workers.py SOCKET default_worker.py --its-arguments

This works only if verl starts Ray itself, because the nodes of a cluster start their own workers.
The server determines the number of torch's threads, because a worker gets its OMP_NUM_THREADS only
after torch has been imported.
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

# The modules that the workers of a run import.
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
_MOST_FILES = 250  # the largest number of files in one message
_EXECUTABLE = "python"
# The command of a proxy. It has no site-packages, because a proxy should import as little as
# possible.
_STAND = [sys.executable, "-I", "-S", __file__]
_SERVE = [sys.executable, "-m", "gdpo_verl.cpu.workers", "--serve"]


def start(environment: Mapping[str, str], entry: str, modules: Sequence[str] = MODULES) -> str:
    """Start a server that ends with this process, and return the command for ``py_executable``.

    Args:
      environment: environment variables of the server, which the imported modules see. A worker has
        its own variables.
      entry: the module that prepares a process for the CPU. The server imports it first, before
        Ray, because it patches one of Ray's modules when that module is imported. If the patch came
        later, Ray's random generator would already be seeded, with the same seed for all forks.
      modules: the modules that the server imports after `entry`.
    """
    address = Path(tempfile.mkdtemp(prefix="gdpo-verl-")) / "workers"
    command = [*_STAND, str(address)]
    executable = address.with_name(_EXECUTABLE)
    executable.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    executable.chmod(0o700)
    # Ray reads both variables when it is imported, and not when a worker starts, so all workers
    # have the same values. The first job of a Ray has this number. A worker ends when the raylet
    # with this process id ends. The raylet's id is not known yet, so the driver's id is used. This
    # is correct, because the raylet ends with the driver.
    of_any_worker = {"RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": str(os.getpid())}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)  # proxies may connect while the server still imports the modules
        # Nothing is written to the pipe. When this process ends for any reason, the other end of
        # the pipe closes, and the server notices it.
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
    """Import the modules, and then fork a worker for each request.

    This function returns in the server when the driver ends, and in each worker when the worker's
    code ends.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ray also does this for its workers
    # Garbage collection would take a sixth of the time of the imports, and find almost nothing,
    # because the objects of modules stay in use.
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    # After this, a worker's garbage collector does not visit these objects. Visiting them would
    # copy the memory pages that the worker shares with the server.
    gc.freeze()
    gc.enable()
    executable = str(Path(listener.getsockname()).with_name(_EXECUTABLE))
    # The process id and the connection of each worker, by its pidfd, a file descriptor that becomes
    # readable when the worker ends.
    workers: dict[int, tuple[int, socket.socket]] = {}
    while True:
        ready = select.select([listener, sys.stdin, *workers], [], [])[0]
        if sys.stdin in ready:
            break
        for ended in [file for file in workers if file in ready]:
            pid, connection = workers.pop(ended)
            os.close(ended)
            with connection, contextlib.suppress(OSError):  # the proxy may have ended
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
    """Turn this fork into the requested worker, with its argv, environment and files.

    The processes that a worker spawns with `multiprocessing`, such as vLLM's engine, are forks of
    the server, too.
    """
    import numpy

    request = _take_files(connection)
    # `multiprocessing` starts a process with `python -c`, and Ray starts a worker with a file.
    spawned = "-c" in request["arguments"]
    if spawned:
        with contextlib.suppress(ImportError):
            # vLLM sets the title of its processes with this package. The package must find the
            # place of the title in memory before the environment changes. Ray's workers set their
            # titles in another way.
            importlib.import_module("setproctitle").getproctitle()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    with contextlib.suppress(PermissionError):  # a higher priority than the server's is not allowed
        os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    raylet: Any = importlib.import_module("ray._raylet")
    # This reads RAY_AUTH_MODE, which `ray.init` chose after the server had started.
    raylet.Config.initialize("")
    numpy.random.seed()  # otherwise every worker would have the random state of the server
    multiprocessing.set_executable(executable)
    sys.argv = request["arguments"]
    if not spawned:
        runpy.run_path(sys.argv[0], run_name="__main__")
        return
    # The command was `python -c CODE --multiprocessing-fork …`.
    at = sys.argv.index("-c")
    code = sys.argv[at + 1]
    sys.argv = ["-c", *sys.argv[at + 2 :]]
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _take_files(connection: socket.socket) -> dict[str, Any]:
    """Read the request, and give its files the same numbers as in the proxy."""
    header, received, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FILES)
    with connection.makefile("rb") as stream:
        request: dict[str, Any] = json.loads(stream.read(*_LENGTH.unpack(header)))
    # The files are first moved to high numbers, so that they do not overwrite each other.
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
    """End this worker as soon as its proxy ends."""
    os.read(connection, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10)
    os.kill(os.getpid(), signal.SIGKILL)


def proxy_for_worker(address: str, arguments: list[str]) -> None:
    """Ask the server for a worker, and exit with its status."""
    # The list also has the file descriptor of the directory itself, which is closed by now.
    listed = os.listdir("/proc/self/fd")
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
