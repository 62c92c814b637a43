"""Workers that are forked from one process which has imported what they need."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_plugin import in_fresh_process

WORKER = """
import json, os, random, signal, sys
import numpy as np
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv, "cwd": os.getcwd(),
    "name": __name__, "own": os.environ["OWN"], "shared": os.environ.get("SHARED"),
    "imported": sys.modules["slow_to_import"].PROCESS, "imported with": os.environ.get("ONLY"),
    "draws": [random.random(), np.random.rand()],
    "child": os.waitstatus_to_exitcode(os.system("exit 3")),
}), flush=True)
sys.exit(0 if "good" in sys.argv else 7)
"""

# A driver: starts the server, two workers at once by the command for them, and ends.
DRIVER = """
import os, subprocess, sys
from gdpo_verl.cpu import workers
command = workers.start({"SHARED": "server's", "ONLY": "server's"}, ["slow_to_import", "numpy"])
print(command.split()[-1])
started = [
    subprocess.Popen([*command.split(), "worker.py", "good", str(i)], env={**os.environ, "OWN": i})
    for i in "ab"
]
for worker in started:
    worker.wait()
"""


@pytest.fixture
def driver(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "worker.py").write_text(WORKER)
    (tmp_path / "slow_to_import.py").write_text("import os\nPROCESS = os.getpid()\n")
    command = [sys.executable, "-c", DRIVER]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)


def test_workers_share_imports_and_nothing_else(
    driver: subprocess.CompletedProcess[str], tmp_path: Path
) -> None:
    address, *lines = driver.stdout.splitlines()
    first, second = sorted(map(json.loads, lines), key=lambda worker: worker["own"])

    assert first["imported"] == second["imported"] == first["parent"] == second["parent"]
    assert first["pid"] != second["pid"]
    for name, worker in (("a", first), ("b", second)):
        assert worker["arguments"] == ["worker.py", "good", name]
        assert (worker["own"], worker["shared"], worker["imported with"]) == (name, None, None)
        assert (worker["name"], worker["cwd"]) == ("__main__", str(tmp_path))
        assert worker["child"] == 3
    assert set(first["draws"]).isdisjoint(second["draws"])

    # The server ends with the process that started it, and leaves nothing.
    deadline = time.monotonic() + 60
    while Path(address).parent.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


RAY = """
import json, os, ray
from gdpo_verl.cpu import workers
modules = ["ray._private.workers.default_worker", "numpy"]
ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={
    "py_executable": workers.start({}, modules), "env_vars": {"OF_JOB": "job"}})

@ray.remote(num_cpus=0, runtime_env={"env_vars": {"OF_ACTOR": "actor"}})
class Actor:
    def about(self):
        job = ray.get_runtime_context().get_job_id()
        return os.getppid(), os.environ["OF_JOB"], os.environ["OF_ACTOR"], job
    def die(self):
        os._exit(1)

actors = [Actor.options(name=name).remote() for name in "ab"]
found = ray.get([actor.about.remote() for actor in actors])
try:
    ray.get(actors[0].die.remote())
except ray.exceptions.ActorDiedError:
    found.append(ray.util.list_named_actors())
print("@" + json.dumps([ray.get_runtime_context().get_job_id(), *found]))
"""


@pytest.mark.real
def test_rays_workers_are_forks_of_one_process_and_end_as_others_do() -> None:
    job, first, second, left = in_fresh_process(RAY)
    assert first == second
    assert first[1:] == ["job", "actor", job]
    assert left == ["b"]
