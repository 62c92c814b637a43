"""Workers that are forked from one process which has imported what they need."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import in_fresh_process
from waiting import wait_for

WORKER = """
import json, os, random, signal, sys
import numpy as np
os.write(1, (json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv, "cwd": os.getcwd(),
    "name": __name__, "own": os.environ["OWN"], "shared": os.environ.get("SHARED"),
    "imported": sys.modules["slow_to_import"].PROCESS, "imported with": os.environ.get("ONLY"),
    "draws": [random.random(), np.random.rand()],
    "child": os.waitstatus_to_exitcode(os.system("exit 3")),
}) + "\\n").encode())  # the other worker may write to the same pipe between two writes
sys.exit(0 if "good" in sys.argv else 7)
"""

# A driver: starts the server, two workers at once by the command for them, and ends.
DRIVER = """
import os, subprocess, sys
from gdpo_verl.cpu import workers
variables = {"SHARED": "server's", "ONLY": "server's"}
command = workers.start(variables, "gdpo_verl.cpu.entry", ["slow_to_import", "numpy"])
print(command.split()[-1])
started = [
    subprocess.Popen([*command.split(), "worker.py", how, own], env={**os.environ, "OWN": own})
    for how, own in [("good", "a"), ("bad", "b")]
]
print([worker.wait() for worker in started])
"""


def lines_of(driver, directory, **files):
    """The output of a driver and its workers in a directory with these modules."""
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    command = [sys.executable, "-c", driver]
    return subprocess.check_output(command, cwd=directory, text=True).splitlines()


def test_workers_share_imports_and_nothing_else(tmp_path):
    slow = "import os\nPROCESS = os.getpid()\n"
    address, *lines, statuses = lines_of(DRIVER, tmp_path, worker=WORKER, slow_to_import=slow)
    assert json.loads(statuses) == [0, 7]
    first, second = sorted(map(json.loads, lines), key=lambda worker: worker["own"])

    parents = [first["imported"], second["imported"], first["parent"], second["parent"]]
    assert len(set(parents)) == 1
    assert first["pid"] != second["pid"]
    for how, name, worker in (("good", "a", first), ("bad", "b", second)):
        assert worker["arguments"] == ["worker.py", how, name]
        assert (worker["own"], worker["shared"], worker["imported with"]) == (name, None, None)
        assert (worker["name"], worker["cwd"]) == ("__main__", str(tmp_path))
        assert worker["child"] == 3
    assert set(first["draws"]).isdisjoint(second["draws"])

    # The server ends with the process that started it, and leaves nothing.
    wait_for(lambda: not Path(address).parent.exists())


DRAWING = """
import json, os, threading
from ray import ObjectRef

drawn = []
for _ in range(2):
    thread = threading.Thread(target=lambda: drawn.append(ObjectRef.from_random().hex()))
    thread.start()
    thread.join()
drawn.append(ObjectRef.from_random().hex())
os.write(1, (json.dumps(drawn) + "\\n").encode())
"""

DRAWERS = """
import os, subprocess
from gdpo_verl.cpu import workers
command = workers.start({}, "gdpo_verl.cpu.entry", workers.MODULES[:2]).split()
started = [subprocess.Popen([*command, "drawing.py"]) for _ in range(2)]
assert [worker.wait() for worker in started] == [0, 0]
"""


def test_workers_draw_different_ids_in_each_thread(tmp_path, monkeypatch):
    """Two agent loops that name their calls alike end the engine that they call."""
    pytest.importorskip("verl")
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    lines = lines_of(DRAWERS, tmp_path, drawing=DRAWING)
    first, second = (json.loads(line) for line in lines if line.startswith("["))
    assert len({*first, *second}) == 6


RAY = """
import json, os, ray
from waiting import start_ray
from gdpo_verl.cpu import workers
modules = ["ray._private.workers.default_worker", "numpy"]
command = workers.start({}, "gdpo_verl.cpu.entry", modules)
start_ray(address="local", num_cpus=2, runtime_env={
    "py_executable": command, "env_vars": {"OF_JOB": "job"}})

@ray.remote(num_cpus=0, runtime_env={"env_vars": {"OF_ACTOR": "actor"}})
class Actor:
    def about(self):
        job = ray.get_runtime_context().get_job_id()
        title = open("/proc/self/cmdline").read().rstrip("\\0")
        return os.getppid(), os.environ["OF_JOB"], os.environ["OF_ACTOR"], job, title
    def die(self):
        os._exit(1)

actors = [Actor.options(name=name).remote() for name in "ab"]
found = ray.get([actor.about.remote() for actor in actors])
try:
    ray.get(actors[0].die.remote())
except ray.exceptions.ActorDiedError:
    found.append(ray.util.list_named_actors())
answer = json.dumps([ray.get_runtime_context().get_job_id(), *found])
# At once, on a separate line: Ray's thread prints that the actor died, and its newline after it.
os.write(1, f"\\n@{answer}\\n".encode())
"""


SPAWNING = """
import json, multiprocessing, os, setproctitle, time

def be(pipe, stay):
    setproctitle.setproctitle("VLLM::title")
    title = open("/proc/self/cmdline").read().rstrip("\\0")
    pipe.send([os.getppid(), os.getpid(), os.environ["OWN"], title])
    time.sleep(stay)
    os._exit(3)

def spawned(stay):
    here, there = context.Pipe()
    process = context.Process(target=be, args=(there, stay))
    process.start()
    there.close()
    return process, here.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ends, about = spawned(0)
    ends.join()
    dead, of_dead = spawned(600)
    os.kill(of_dead[1], 9)
    dead.join()
    killed, of_killed = spawned(600)
    killed.kill()
    killed.join()
    deadline = time.monotonic() + 300
    while os.path.exists(f"/proc/{of_killed[1]}") and time.monotonic() < deadline:
        time.sleep(0.1)
    left = os.path.exists(f"/proc/{of_killed[1]}")
    line = json.dumps([about, os.getppid(), left, ends.exitcode, dead.exitcode])
    os.write(1, (line + "\\n").encode())  # at once, as the other worker may write between two
"""


def test_what_a_worker_spawns_is_a_fork_too_and_ends_with_the_process_for_it(tmp_path):
    _, *lines, _ = lines_of(DRIVER, tmp_path, worker=SPAWNING, slow_to_import="")
    answers = [json.loads(line) for line in lines]
    assert {about[2] for about, *_ in answers} == {"a", "b"}
    assert {about[3] for about, *_ in answers} == {"VLLM::title"}
    for (parent, *_), server, left, *statuses in answers:
        assert (parent, left) == (server, False)
        assert statuses == [3, -9]


@pytest.mark.real
def test_rays_workers_are_forks_of_one_process_and_end_as_others_do():
    job, first, second, left = in_fresh_process(RAY, PYTHONPATH=str(Path(__file__).parents[1]))
    assert first == second
    assert first[1:] == ["job", "actor", job, "ray::Actor.about"]
    assert left == ["b"]
