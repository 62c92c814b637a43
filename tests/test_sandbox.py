"""The sandbox against hostile programs, on every protection that this machine can give."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdpo_verl import doctor
from gdpo_verl.sandbox import (
    Limits,
    Sandbox,
    SandboxError,
    Status,
    Unprotected,
    best_protection,
    slot,
    slot_directory,
)
from gdpo_verl.sandbox import protection as protections
from gdpo_verl.sandbox.child import decode, encode
from gdpo_verl.sandbox.protection import Protection, working_protections

FOUND = list(working_protections())
HOLDS = pytest.mark.skipif(
    not FOUND, reason="neither bubblewrap nor Landlock works here: apt install bubblewrap"
)
LIMITS = Limits(timeout=1, deadline=20, memory_mb=256, output_mb=1, processes=16)


@pytest.fixture(params=[pytest.param(found, id=found.name) for found in FOUND] or [None])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if request.param is None:
        pytest.skip("neither bubblewrap nor Landlock works here: apt install bubblewrap")
    with Sandbox(request.param, LIMITS) as made:
        yield made


def attempts(*actions: str, imports: str = "os") -> str:
    """A program that tries each action and prints what came of it."""
    body = "\n".join(
        f"try: print('done', {action})\nexcept BaseException as e: print(type(e).__name__)"
        for action in actions
    )
    return f"import {imports}\n{body}\n"


def still_works(sandbox: Sandbox) -> bool:
    return sandbox.run("print(6 * 7)").text == "42\n"


# ---------------------------------------------------------------- what is allowed


def test_a_program_reads_its_input_and_its_output_comes_back(sandbox):
    outcome = sandbox.run("print(sum(map(int, input().split())))", "1 2 3\n")
    assert (outcome.status, outcome.text) == (Status.OK, "6\n")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("raise SystemExit", Status.OK, id="leaves with success"),
        pytest.param("import sys; sys.exit(3)", Status.EXCEPTION, id="leaves with failure"),
        pytest.param("1 / 0", Status.EXCEPTION, id="raises"),
        pytest.param("def f(:", Status.SYNTAX, id="does not compile"),
        pytest.param("\0", Status.SYNTAX, id="NUL"),
        pytest.param("'\ud800'", Status.SYNTAX, id="a lone surrogate"),
        pytest.param("(" * 100_000, Status.SYNTAX, id="nested without end"),
        pytest.param("x = bytearray(1 << 30)", Status.MEMORY, id="a memory bomb"),
        pytest.param("x = []\nwhile True: x.append('a' * 999999)", Status.MEMORY, id="grows"),
        pytest.param("while True: print('a' * 9999)", Status.OUTPUT, id="endless output"),
        pytest.param("while True: pass", Status.TIMEOUT, id="an infinite loop"),
        pytest.param("import time; time.sleep(99)", Status.TIMEOUT, id="sleeps"),
        pytest.param("def f(): f()\nf()", Status.EXCEPTION, id="recurses without end"),
        pytest.param(
            "import sys; sys.setrecursionlimit(10**9)\nclass A:\n"
            " def __getattr__(self, n): return getattr(self, n + 'a')\nA().a",
            Status.EXCEPTION,
            id="overflows the stack",
        ),
        pytest.param("import os; os.abort()", Status.EXCEPTION, id="aborts"),
        pytest.param("import ctypes; ctypes.string_at(0)", Status.EXCEPTION, id="segfaults"),
    ],
)
def test_how_a_program_ended_is_told_and_the_next_one_is_not_touched(sandbox, code, status):
    started = time.monotonic()
    assert sandbox.run(code).status is status
    assert time.monotonic() - started < 2 * LIMITS.timeout + 6
    assert still_works(sandbox)


def test_threads_decimals_asyncio_and_exit_handlers_work(sandbox):
    threads = sandbox.protection.own_user or os.geteuid() != 0
    code = (
        "import asyncio, atexit, decimal, sys, dataclasses\n"
        "@dataclasses.dataclass\nclass P:\n    x: int = 1\n"
        "async def main(): await asyncio.sleep(0.01); return P().x\n"
        "print(asyncio.run(main()), decimal.Decimal(1))\n"
        "atexit.register(sys.stdout.write, 'bye')\n"
        "rest = open(1, 'w', closefd=False); rest.write('.')\n"
    )
    assert sandbox.run(code).text == "1 1\nbye."
    if threads and sandbox.protection.name != "landlock":
        code = "import threading\nthreading.Thread(target=print, args=('t',)).start()"
        assert sandbox.run(code).text == "t\n"


HABITS = {
    "exit": "print(6 * 7)\nexit()",
    "quit": "print(6 * 7)\nquit(0)",
    "a null device": "import os\nwith open(os.devnull, 'w') as f: f.write('x')\n"
    "assert open(os.devnull).read() == ''\nprint(6 * 7)",
    "a larger stack": "import resource as r\nr.setrlimit(r.RLIMIT_STACK, (1 << 28, -1))\n"
    "r.setrlimit(r.RLIMIT_STACK, (-1, -1))\nprint(6 * 7)",
}


@pytest.mark.parametrize("code", HABITS.values(), ids=HABITS)
def test_what_people_write_runs(sandbox, code):
    outcome = sandbox.run(code)
    assert (outcome.status, outcome.text) == (Status.OK, "42\n")


def test_a_thread_with_a_stack_of_its_own_recurses_deeply(sandbox):
    if not sandbox.protection.own_user and os.geteuid() == 0:
        pytest.skip("root's threads cannot be counted here, so there are none")
    code = (
        "import functools, sys, threading\n"
        "sys.setrecursionlimit(10**6); threading.stack_size(1 << 27)\n"
        "@functools.cache\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(20000))); t.start(); t.join()"
    )
    assert sandbox.run(code).text == "20000\n"


def test_setup_runs_first_in_the_same_module(sandbox):
    setup = "from math import *\ndef f(): return 1"
    code = "from __future__ import annotations\nprint(floor(2.5) + f(), __name__)"
    assert sandbox.run(code, setup=setup).text == "3 __main__\n"


@HOLDS
def test_modules_are_loaded_once_for_all_programs():
    with Sandbox(FOUND[0], LIMITS, imports=["fractions"]) as sandbox:
        assert sandbox.run("import sys; print('fractions' in sys.modules)").text == "True\n"
    with Sandbox(FOUND[0], LIMITS) as sandbox:
        assert sandbox.run("import sys; print('fractions' in sys.modules)").text == "False\n"


# ---------------------------------------------------------------- hostile programs


def test_no_process_can_be_started(sandbox):
    libc = "ctypes.CDLL(None)"
    code = attempts(
        "os.fork()",
        "os.execv('/bin/sh', ['sh'])",
        "os.posix_spawn('/bin/sh', ['sh'], {})",
        "subprocess.run(['true'])",
        "pty.fork()",
        f"1 // ({libc}.vfork() + 1)",
        f"1 // ({libc}.syscall(435, None, 0) + 1)",
        imports="os, subprocess, pty, ctypes",
    )
    said = sandbox.run(code).text
    assert "done" not in said, said
    assert len(said.split()) == 7


def test_a_thread_bomb_stays_small(sandbox):
    code = (
        "import _thread, time\nn = 0\n"
        "try:\n    while True:\n        _thread.start_new_thread(time.sleep, (9,)); n += 1\n"
        "except RuntimeError:\n    print(n, flush=True)\n"
        "import os; os._exit(0)"
    )
    assert int(sandbox.run(code).text) < LIMITS.processes
    assert still_works(sandbox)


def test_files_outside_can_be_neither_read_nor_written_nor_deleted(sandbox, tmp_path):
    tmp_path.chmod(0o777)
    secret = tmp_path / "tests.json"
    secret.write_text("expected")
    secret.chmod(0o666)
    stdlib = Path(os.__file__)
    code = attempts(
        f"open({str(secret)!r}).read()",
        f"os.listdir({str(tmp_path)!r})",
        f"os.unlink({str(secret)!r})",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"os.symlink('/', {str(tmp_path / 'new')!r})",
        f"os.truncate({str(secret)!r}, 0)",
        f"os.chmod({str(secret)!r}, 0)",
        f"os.utime({str(secret)!r}, (0, 0))",
        f"open({str(stdlib)!r}, 'a')",
        f"os.rename({str(stdlib)!r}, {str(stdlib.with_suffix('.x'))!r})",
        "open('/new', 'w')",
        "open('/dev/new', 'w')",
        "open('/dev/shm/new', 'w')",
        "open('/usr/lib/new', 'w')",
        "open('/etc/passwd').read()",
        "os.listdir('/proc')[0]",
        "open('/proc/self/mem').read(1)",
        "open('/proc/1/environ').read()",
        "os.mkdir('/tmp')",
        "os.chroot('/')",
        "ctypes.memmove(ctypes.create_string_buffer(1), b'', 1) and 1 // "
        "(ctypes.CDLL(None).mount(None, b'/', None, 32, None) + 1)",
        imports="os, ctypes",
    )
    before = stdlib.stat().st_mtime, secret.stat().st_mtime
    said = sandbox.run(code).text
    assert "done" not in said, said
    wipe = "import shutil\nfor p in ('/', '/usr', %r): shutil.rmtree(p, ignore_errors=True)"
    sandbox.run(wipe % str(tmp_path))
    assert secret.read_text() == "expected"
    assert (stdlib.stat().st_mtime, secret.stat().st_mtime) == before
    assert [path.name for path in tmp_path.iterdir()] == ["tests.json"]
    assert still_works(sandbox)


VERSION = f"python3.{sys.version_info.minor}"
# Those of Debian's Python, of Fedora's, of this one, and of the environment that runs this.
PACKAGES = {
    "/usr/lib/python3/dist-packages",
    "/lib/python3/dist-packages",
    f"/usr/lib/{VERSION}/site-packages",
    f"/usr/lib64/{VERSION}/site-packages",
    f"/usr/local/lib/{VERSION}/dist-packages",
    f"{sys.base_prefix}/lib/{VERSION}/site-packages",
    f"{sys.prefix}/lib/{VERSION}/site-packages",
}


@pytest.mark.parametrize("packages", sorted(PACKAGES))
def test_packages_that_carry_data_sets_are_out_of_sight(sandbox, packages):
    file = next(Path(packages).rglob("*.py"), None)
    if file is None:
        pytest.skip("no packages there")
    assert "done" not in sandbox.run(attempts(f"open({str(file)!r}).read()")).text
    assert "done" in sandbox.run(attempts(f"open({os.__file__!r}).read(1)")).text


@pytest.fixture
def library(monkeypatch):
    """A directory as /usr/lib is: a library, a package, and a link to a secret."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
        made = Path(root)
        for name in ("lib/found.so", "lib/python3/dist-packages/tests/data.py", "secret"):
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_text("n = 42")
        (made / "lib/link").symlink_to(made / "secret")
        for path in (made, *made.rglob("*")):
            path.chmod(0o755)
        monkeypatch.setattr(protections, "_LIBRARIES", [*protections._LIBRARIES, f"{root}/lib"])
        yield made / "lib"


@HOLDS
def test_of_a_system_directory_only_the_libraries_are_readable(library):
    code = attempts(
        f"open({str(library / 'found.so')!r}).read()",
        f"open({str(library / 'python3/dist-packages/tests/data.py')!r}).read()",
        f"open({str(library / 'link')!r}).read()",
    )
    for found in working_protections():
        with Sandbox(found, LIMITS) as sandbox:
            said = sandbox.run(code).text.split("\n")
        assert said[0] == "done n = 42", found.name
        assert "done" not in said[1] + said[2], found.name


@HOLDS
@pytest.mark.parametrize("given", ["", "python3/dist-packages", "python3/dist-packages/tests"])
def test_packages_that_are_given_are_not_hidden(library, given):
    given = str(library / given)
    data = str(library / "python3/dist-packages/tests/data.py")
    for candidate in protections._candidates(given):
        try:
            found = candidate()
            protections._probe(found)
        except RuntimeError:
            continue
        with Sandbox(found, LIMITS) as sandbox:
            assert sandbox.run(f"print(open({data!r}).read())").text == "n = 42\n", found.name


def test_the_disk_cannot_be_filled(sandbox):
    code = (
        "import os\nn = 0\n"
        "try:\n    for i in range(1000):\n"
        "        with open(f'f{i}', 'wb') as f: n += f.write(bytes(1 << 20))\n"
        "except OSError as e: pass\nprint(n >> 20)"
    )
    megabytes = int(sandbox.run(code).text)
    assert megabytes <= 16
    assert bool(megabytes) == bool(sandbox.protection.settings["scratch"])
    assert sandbox.run("import os; print(os.listdir('.') if os.getcwd() != '/' else [])").text == (
        "[]\n"
    ), "the next program finds what the last one wrote"


def test_nothing_reaches_the_network(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        code = attempts(
            f"socket.create_connection(('127.0.0.1', {port}), 1)",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_UNIX)",
            "socket.socket(socket.AF_INET, socket.SOCK_RAW)",
            "1 // (ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(256)) + 1)",
            imports="socket, ctypes",
        )
        said = sandbox.run(code).text
        assert "done" not in said, said
        with pytest.raises(TimeoutError):
            server.accept()


def test_nobody_can_be_signalled_traced_or_starved(sandbox):
    me = os.getpid()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    libc = "ctypes.CDLL(None)"
    code = attempts(
        f"os.kill({me}, 9)",
        "os.kill(os.getppid(), 9)",
        "os.kill(-1, 9)",
        "os.killpg(0, 9)",
        f"resource.prlimit({me}, resource.RLIMIT_NOFILE, (3, 3))",
        "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
        f"fcntl.fcntl(os.pipe()[0], 8, {me})",
        f"os.setpriority(os.PRIO_PROCESS, {me}, 19)",
        f"os.sched_setaffinity({me}, [0])",
        "os.pidfd_open(os.getppid())",
        "os.setsid()",
        "os.nice(-5)",
        f"1 // ({libc}.ptrace(16, os.getppid(), None, None) + 1)",
        f"1 // ({libc}.unshare(0x10000000) + 1)",
        f"1 // ({libc}.shmget(0, 1 << 20, 0o1600) + 1)",
        "os.memfd_create('x')",
        imports="os, resource, fcntl, ctypes",
    )
    said = sandbox.run(code).text
    assert "done" not in said, said
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    assert still_works(sandbox)


def test_a_program_cannot_spoil_the_channels_of_the_next(sandbox):
    sandbox.run(
        "import os\nfor f in range(3, 64):\n try: os.write(f, b'{}\\n')\n except OSError: 0"
    )
    assert still_works(sandbox)
    sandbox.run("import os; os.closerange(0, 1000)")
    assert still_works(sandbox)
    sandbox.run("import builtins, json; json.dumps = builtins.exec = print; open('x', 'w')")
    assert still_works(sandbox)


def test_no_variable_of_the_trainer_is_seen(sandbox, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    said = sandbox.run("import os; print(*os.environ)").text.split()
    assert "LC_ALL" in said
    assert set(said) <= {"LC_ALL", "LC_CTYPE", "MALLOC_ARENA_MAX", "PWD", "TMPDIR"}


def test_nothing_is_left_when_it_is_closed(sandbox):
    assert still_works(sandbox)
    assert sandbox.process is not None
    started = [sandbox.process.pid, *children(sandbox.process.pid)]
    sandbox.close()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in started):
        assert time.monotonic() < deadline, started
        time.sleep(0.01)


# Fills the pipe that its arguments come through: it says that it is loaded and never reads.
DEAF = """
import os, time
for channel in range(3, 64):
    try: os.write(channel, b"loaded\\n")
    except OSError: pass
while True: time.sleep(1)
"""
TRAINER = """
import json, sys
from gdpo_verl.sandbox import Limits, Sandbox
from gdpo_verl.sandbox import protection as protections
name, attack, timeout, code = sys.argv[1:]
found = [*(make() for make in protections._candidates(None)), protections._unprotected(None)]
(protection,) = [each for each in found if each.name == name]
limits = Limits(timeout=float(timeout), deadline=2 * float(timeout) + 9)
sandbox = Sandbox(protection, limits)
assert sandbox.load("", code if attack == "deaf" else "def f(x):\\n    while True: pass", "f")
print("ready", flush=True)
print(sandbox.call(json.dumps([[list(range(30_000))], {"dict": []}])).status.name, flush=True)
sandbox.close()
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("attack", "end"),
    [
        ("deaf", "trainer killed"),
        ("deaf", "server killed"),
        ("deaf", "deadline"),
        ("busy", "trainer killed"),
    ],
)
@pytest.mark.parametrize("name", [found.name for found in FOUND] + ["unprotected"])
def test_no_process_is_left_however_it_ends(name, attack, end):
    timeout = "0.2" if end == "deadline" else "60"
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, name, attack, timeout, DEAF],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert trainer.stdin
    assert trainer.stdout
    try:
        assert trainer.stdout.readline() == b"ready\n"
        time.sleep(0.3)
        started = children(trainer.pid)
        assert len(started) >= 2, "a server and a program"
        if end == "trainer killed":
            trainer.kill()
            trainer.wait()
        elif end == "server killed":
            os.kill(started[-2], signal.SIGKILL)  # the program's parent
            assert trainer.stdout.readline() == b"EXCEPTION\n"
        else:
            assert trainer.stdout.readline() in (b"TIMEOUT\n", b"DEADLINE\n")
        deadline = time.monotonic() + 10
        while left := [pid for pid in started if lives(pid)]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)
    finally:
        for pid in (trainer.pid, *children(trainer.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        trainer.communicate()


def lives(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(of: int | None = None) -> list[int]:
    """All processes below one, of the second generation and later too."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            parents[int(entry.name)] = int(stat[1])
    found: list[int] = [of or os.getpid()]
    for ancestor in found:
        found += [pid for pid, parent in parents.items() if parent == ancestor]
    return found[1:]


def test_an_answer_has_one_deadline_for_all_its_tests():
    if not FOUND:
        pytest.skip("neither bubblewrap nor Landlock works here: apt install bubblewrap")
    started = time.monotonic()
    with Sandbox(FOUND[0], Limits(timeout=1, deadline=2.5)) as sandbox:
        ended = [sandbox.run("while True: pass").status for _ in range(5)]
    assert ended[0] in (Status.TIMEOUT, Status.DEADLINE)  # the machine may be busy
    assert ended[-1] is Status.DEADLINE
    assert time.monotonic() - started < 6


# ---------------------------------------------------------------- functions


def test_a_function_gets_and_gives_plain_data(sandbox):
    code = "def f(x, n=2): return {(i, x): [x] * n for i in range(2)}"
    assert sandbox.load("", code, "f").status is Status.OK
    outcome = sandbox.call('[["a"], {"dict": [["n", 3]]}]')
    assert outcome.status is Status.OK
    assert '[{"tuple": [1, "a"]}, ["a", "a", "a"]]' in outcome.text


@pytest.mark.parametrize(
    "value",
    [
        None,
        [1, -2.5, "a\ud800\0", True],
        {1: {2}, (3, "x"): frozenset({4})},
        (b"\xff", 2j, [[]], {}),
        10**400,
    ],
    ids=repr,
)
def test_plain_data_survives_the_channel(value):
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        pytest.param("def g(): pass", Status.NO_FUNCTION, id="another name"),
        pytest.param("f = 3", Status.NO_FUNCTION, id="not a function"),
        pytest.param("import sys; sys.exit(0)", Status.EXCEPTION, id="leaves while loading"),
        pytest.param("def f(:", Status.SYNTAX, id="does not compile"),
        pytest.param("while True: pass", Status.TIMEOUT, id="never loads"),
    ],
)
def test_a_program_without_the_function_is_refused(sandbox, code, status):
    assert sandbox.load("def f(): return 1", code, "f").status is status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param("import os; os._exit(0)", Status.EXCEPTION, id="leaves"),
        pytest.param("raise ValueError", Status.EXCEPTION, id="raises"),
        pytest.param("return object()", Status.NOT_PLAIN, id="an object"),
        pytest.param("return (x for x in [])", Status.NOT_PLAIN, id="a generator"),
        pytest.param("x = []; x.append(x); return x", Status.NOT_PLAIN, id="a cycle"),
        pytest.param("return 'a' * (1 << 22)", Status.OUTPUT, id="too much"),
        pytest.param("return any(iter(int, 1))", Status.TIMEOUT, id="never"),
        pytest.param("return bytearray(1 << 30)", Status.MEMORY, id="too much memory"),
    ],
)
def test_a_call_that_gives_no_value_says_why(sandbox, body, status):
    assert sandbox.load("", f"def f(): {body}", "f").status is Status.OK
    assert sandbox.call('[[], {"dict": []}]').status is status
    assert still_works(sandbox)


# ---------------------------------------------------------------- which protection


@pytest.fixture
def nothing_protects(monkeypatch):
    def broken(*arguments, **keywords):
        raise RuntimeError("not on this machine")

    monkeypatch.setattr(protections, "_bubblewrap", broken)
    monkeypatch.setattr(protections, "_landlock", broken)
    best_protection.cache_clear()
    yield
    best_protection.cache_clear()


def test_without_protection_it_refuses_and_names_the_key_and_the_remedies(nothing_protects):
    with pytest.raises(Unprotected) as refused:
        best_protection()
    said = str(refused.value)
    assert "reward.custom_reward_function.reward_kwargs.allow_unprotected" in said
    assert "apt install bubblewrap" in said
    assert "not on this machine" in said


def test_the_user_may_allow_it_with_a_warning(nothing_protects, caplog):
    found = best_protection(allow_unprotected=True)
    assert "without protection" in caplog.text
    with Sandbox(found, LIMITS) as sandbox:
        assert still_works(sandbox)
        assert sandbox.run("while True: pass").status is Status.TIMEOUT
        assert sandbox.run("x = bytearray(1 << 30)").status is Status.MEMORY


def test_a_sandbox_with_an_open_door_is_not_taken():
    open_door = protections._unprotected(None)
    without_filter = Protection("open", open_door.command, open_door.settings | {"filter": ""})
    with pytest.raises(RuntimeError, match="reads files, writes files, opens sockets, starts"):
        protections._probe(without_filter)


@HOLDS
def test_packages_can_be_given_to_programs(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "extra_package.py").write_text("answer = 42")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as packages:
        os.chmod(packages, 0o755)
        (Path(packages) / "extra_package.py").write_text("answer = 42")
        found = best_protection(site_packages=packages)
        with Sandbox(found, LIMITS) as sandbox:
            assert sandbox.run("import extra_package as e; print(e.answer)").text == "42\n"


# ---------------------------------------------------------------- places


def test_no_more_sandboxes_run_at_once_than_there_are_places(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    running, most, lock = 0, 0, threading.Lock()

    def work():
        nonlocal running, most
        with slot(2):
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.05)
            with lock:
                running -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 2


def test_a_directory_of_places_that_another_user_could_use_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / f"gdpo-verl-slots-{os.geteuid()}"
    with slot(1):
        assert [file.name for file in path.iterdir()] == ["0"]
    path.chmod(0o777)
    with pytest.raises(SandboxError, match=r"alone may write, found user .* with mode 0777\. "):
        slot_directory().__enter__()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SandboxError, match=f"{path}: expected a directory"), slot(1):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's directory")
def test_a_directory_of_places_that_another_user_made_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / f"gdpo-verl-slots-{os.geteuid()}"
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(SandboxError, match="found user 65534's"), slot(1):
        pass
    os.chown(path, 0, 0)
    (path / "0").symlink_to(tmp_path / "chosen by an attacker")
    with pytest.raises(OSError, match="symbolic links"), slot(1):
        pass
    assert not (tmp_path / "chosen by an attacker").exists()


# ---------------------------------------------------------------- what the doctor says


@HOLDS
def test_the_doctor_names_the_protection():
    finding = doctor._sandbox()
    assert (finding.subject, finding.remedy) == ("sandbox", "")
    assert finding.state == f"{FOUND[0].name}, for the rewards that run programs"


def test_without_protection_the_doctor_says_what_would_give_one(nothing_protects):
    finding = doctor._sandbox()
    assert finding.state.startswith("none, which the rewards that run programs need")
    assert "apt install bubblewrap" in finding.state
    assert finding.remedy == "", "no other reward needs one"
