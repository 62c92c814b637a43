"""Start other processes, and find processes that still run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

import psutil


def run(
    *command: object, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with variables in addition to those of this process."""
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | (environment or {}),
        **options,
    )


def run_cli(*arguments: str) -> str:
    process = run(sys.executable, "-m", "gdpo_verl.lab.cli", *arguments)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def in_fresh_process(code: str, **environment: str) -> dict:
    process = run(sys.executable, "-c", code, environment=environment)
    lines = [line for line in process.stdout.splitlines() if line.startswith("@")]
    assert lines, process.stdout + process.stderr
    return json.loads(lines[-1][1:])


def processes_of(needles: Sequence[str]) -> list[str]:
    """Return the command lines of running processes that contain one of the needles."""
    found = []
    for pid, _, _, args in _processes():
        if "ps -eww" not in args and any(needle in args for needle in needles):
            found.append(f"{pid} {args}")
    return found


def session(*leaders: int) -> list[tuple[int, str]]:
    """Return the numbers and command lines of the processes of these sessions, without zombies."""
    return [
        (int(pid), args)
        for pid, sid, state, args in _processes()
        if int(sid) in leaders and state[0] != "Z"
    ]


def reachable(leader: int) -> set[str]:
    """Return the sockets of a session's processes that other machines could reach."""
    pids = {pid for pid, _ in session(leader)}
    found = set()
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.pid in pids:
            address = ip_address(connection.laddr.ip)
            if isinstance(address, IPv6Address):
                address = address.ipv4_mapped or address
            if not address.is_loopback:
                found.add(f"{connection.laddr.ip} port {connection.laddr.port}")
    return found


def _processes() -> list[list[str]]:
    """Return number, session, state and command line of all processes."""
    listing = ["ps", "-eww", "-o", "pid,sid,stat,args"]
    return [line.split(None, 3) for line in run(*listing).stdout.splitlines()[1:]]


def environment_without(package: re.Pattern, directory: Path) -> str:
    """Copy this Python environment without some packages; return the copy's interpreter."""
    venv.create(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.search(entry.name):
            (packages / entry.name).symlink_to(entry)
    return str(directory / "bin" / "python")
