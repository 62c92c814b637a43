"""The sandbox against hostile programs, on every protection that this machine can give."""

import json
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from protected import working_protections

from gdpo_verl.rewards.code import ParseError, compute_score
from gdpo_verl.sandbox import Limits, Sandbox, best_protection, child
from gdpo_verl.sandbox import protection as protections

FOUND = list(working_protections())
HOLDS = pytest.mark.skipif(
    not FOUND, reason="neither bubblewrap nor Landlock works here: apt install bubblewrap"
)
# A busy machine is no slow program: only what never ends has a short limit.
LIMITS = Limits(timeout=60, deadline=600, memory_limit_mb=256)
SHORT = replace(LIMITS, timeout=1)


@pytest.fixture(params=[pytest.param(found, id=found.name) for found in FOUND] or [None])
def sandbox(request):
    if request.param is None:
        pytest.skip("neither bubblewrap nor Landlock works here: apt install bubblewrap")
    with Sandbox(request.param, LIMITS) as made:
        yield made


def attempts(*actions, imports="os"):
    """A program that tries each action and prints what came of it."""
    body = "\n".join(
        f"try: print('done', {action})\nexcept BaseException as e: print(type(e).__name__)"
        for action in actions
    )
    return f"import {imports}\n{body}\n"


def still_works(sandbox):
    return sandbox.run("print(6 * 7)").text == "42\n"


@pytest.fixture
def nothing_protects(monkeypatch):
    def broken(*arguments, **keywords):
        raise RuntimeError("not on this machine")

    monkeypatch.setattr(protections, "_bubblewrap", broken)
    monkeypatch.setattr(protections, "_landlock", broken)
    monkeypatch.setattr(protections, "used", set())
    best_protection.cache_clear()
    yield
    best_protection.cache_clear()


# ------------------------------------------------ programs, and the code rewards' verdicts on them

# For what never runs a program, so that it is tested without a sandbox too.
runs_none = {"allow_unprotected": not FOUND}
SCRIPTS = json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})
SCRIPT = "a, b = map(int, input().split())\nprint(a + b)"


def answer(code):
    return f"So:\n```python\n{code}\n```\nThat is it."


PATIENT = {"timeout": LIMITS.timeout, "deadline": LIMITS.deadline}


def verdict(code, ground_truth, **settings):
    extra_info, settings = {"response_length": 9}, PATIENT | settings
    result = compute_score("mine", answer(code), ground_truth, extra_info, **settings)
    return result["pass"], result["bug_free"], ParseError(result["parse_error"])


def assert_refused(sandbox, *actions, imports):
    """Assert that a program may do none of these, and lives to say so of each."""
    said = sandbox.run(attempts(*actions, imports=imports)).text
    assert "done" not in said, said
    assert len(said.split()) == len(actions), said


def test_no_process_can_be_started(sandbox):
    assert_refused(
        sandbox,
        "os.fork()",
        "os.execv('/bin/sh', ['sh'])",
        "os.posix_spawn('/bin/sh', ['sh'], {})",
        "subprocess.run(['true'])",
        "pty.fork()",
        imports="os, subprocess, pty",
    )


def test_a_thread_bomb_stays_small(sandbox):
    code = (
        "import _thread, time\nn = 0\n"
        "try:\n    while True:\n        _thread.start_new_thread(time.sleep, (9,)); n += 1\n"
        "except RuntimeError:\n    print(n, flush=True)\n"
        "import os; os._exit(0)"
    )
    assert int(sandbox.run(code).text) < child.THREADS
    assert still_works(sandbox)


def test_files_outside_can_be_neither_read_nor_written_nor_deleted(sandbox, tmp_path):
    tmp_path.chmod(0o777)
    secret = tmp_path / "tests.json"
    secret.write_text("expected")
    secret.chmod(0o666)
    stdlib = Path(os.__file__)
    before = stdlib.stat().st_mtime, secret.stat().st_mtime
    assert_refused(
        sandbox,
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
        "open('/proc/self/environ').read()",
        "open('/proc/self/root/etc/hostname').read()",
        "open('/etc/shadow').read()",
        "os.listdir('/root/.ssh')",
        "os.listdir('/sys')[0]",
        "os.fstat(3)",
        f"os.link({str(secret)!r}, 'link')",
        f"os.chown({str(secret)!r}, 0, 0)",
        f"os.setxattr({str(secret)!r}, 'user.x', b'')",
        "os.mkfifo('pipe')",
        "os.mknod('device', 0o20666, 0x101)",
        "os.mkdir('/tmp')",
        "os.chroot('/')",
        imports="os",
    )
    wipe = "import shutil\nfor p in ('/', '/usr', %r): shutil.rmtree(p, ignore_errors=True)"
    sandbox.run(wipe % str(tmp_path))
    assert secret.read_text() == "expected"
    assert (stdlib.stat().st_mtime, secret.stat().st_mtime) == before
    assert [path.name for path in tmp_path.iterdir()] == ["tests.json"]
    assert still_works(sandbox)


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
        assert_refused(
            sandbox,
            f"socket.create_connection(('127.0.0.1', {port}), 1)",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
            "socket.socket(socket.AF_UNIX)",
            "socket.socket(socket.AF_INET, socket.SOCK_RAW)",
            "socket.socketpair()[0].sendto(b'x', '/x')",
            "socket.socketpair()[0].sendto(b'x', socket.MSG_OOB, '/x')",
            "socket.socketpair()[0].send(b'x', socket.MSG_OOB)",
            "socket.socketpair()[0].sendmsg([b'x'])",
            "socket.send_fds(socket.socketpair()[0], [b'x'], [1])",
            "socket.socketpair(socket.AF_INET)",
            "socket.socketpair()[0].connect('/x')",
            imports="socket",
        )
        with pytest.raises(TimeoutError):
            server.accept()


def test_nobody_can_be_signalled_traced_or_starved(sandbox):
    me = os.getpid()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert_refused(
        sandbox,
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
        imports="os, resource, fcntl",
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == limits
    assert still_works(sandbox)


# Calls that reach other processes, the kernel or the machine. With arguments of 0 they do nothing.
SYSTEM_CALLS = """
accept acct add_key adjtimex bind bpf capset chroot clone3 connect delete_module execve execveat
fanotify_init finit_module fork fsopen get_mempolicy init_module inotify_init1 io_setup
io_uring_enter io_uring_register io_uring_setup iopl kcmp kexec_load keyctl kill listen
lookup_dcookie memfd_create memfd_secret mount move_pages mq_open msgget name_to_handle_at
open_by_handle_at open_tree perf_event_open personality pidfd_getfd pidfd_open pidfd_send_signal
pivot_root process_madvise process_vm_readv process_vm_writev ptrace quotactl reboot recvmsg
request_key rt_sigqueueinfo seccomp semget sendmmsg sendmsg sethostname setns setresuid setsid
settimeofday setuid shmat shmget socket splice swapon syslog tgkill tkill umount2 unshare
userfaultfd vfork vhangup vmsplice
"""


def test_no_system_call_reaches_beyond_the_program(sandbox):
    seccomp = pytest.importorskip("pyseccomp")
    calls = {
        name: seccomp.resolve_syscall(seccomp.system_arch(), name) for name in SYSTEM_CALLS.split()
    }
    code = (
        "import ctypes, errno\nsyscall = ctypes.CDLL(None, use_errno=True).syscall\n"
        f"for name, number in {calls}.items():\n"
        "    if syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS:\n"
        "        print(name, flush=True)\n"
        "print('end')"
    )
    assert sandbox.run(code).text == "end\n"


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
