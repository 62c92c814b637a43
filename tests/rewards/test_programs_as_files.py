"""A program in a sandbox does what it does as a file of its own, run by plain Python."""

import functools
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from test_sandbox import FOUND, HOLDS, LIMITS

from gdpo_verl.rewards.code_text import PUBLISHED_IMPORTS, PUBLISHED_SETUP
from gdpo_verl.sandbox import Sandbox, Status

STDIN = "3\n1 2 3\n-7 \u00e9\nlast"
# The header of contest programs, in the words of many.
FAST_IO = """
import os, sys
from io import BytesIO, IOBase
BUFSIZE = 8192
class FastIO(IOBase):
    newlines = 0
    def __init__(self, file):
        self._fd = file.fileno()
        self.buffer = BytesIO()
        self.writable = "x" in file.mode or "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def readline(self):
        while self.newlines == 0:
            b = os.read(self._fd, max(os.fstat(self._fd).st_size, BUFSIZE))
            self.newlines = b.count(b"\\n") + (not b)
            ptr = self.buffer.tell()
            self.buffer.seek(0, 2), self.buffer.write(b), self.buffer.seek(ptr)
        self.newlines -= 1
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self._fd, self.buffer.getvalue())
            self.buffer.truncate(0), self.buffer.seek(0)
class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush = self.buffer.flush
        self.writable = self.buffer.writable
        self.write = lambda s: self.buffer.write(s.encode("ascii"))
        self.readline = lambda: self.buffer.readline().decode("ascii")
"""
THREADS = {
    "a thread": "import threading\nthreading.Thread(target=print, args=('t',)).start()",
    "a daemon is not waited for": "import threading, time\nprint('main')\n"
    "threading.Thread(target=lambda: (time.sleep(60), print('t')), daemon=True).start()",
    "exit() in a thread": "import threading\nt = threading.Thread(target=exit, args=(3,))\n"
    "t.start(); t.join(); print('on')",
    "a thread with a stack of its own": "import functools, sys, threading\n"
    "sys.setrecursionlimit(10**6); threading.stack_size(1 << 27)\n"
    "@functools.cache\ndef f(n): return n and 1 + f(n - 1)\n"
    "t = threading.Thread(target=lambda: print(f(20000))); t.start(); t.join()",
    "asyncio.to_thread": "import asyncio\nasync def main():\n"
    "    print(await asyncio.gather(*(asyncio.to_thread(pow, 2, n) for n in range(5))))\n"
    "asyncio.run(main())",
}
PROGRAMS = {
    # -------------------------------------------------------- reading
    "input": "n = int(input()); print(n, input().split(), repr(input()), repr(input()))",
    "input beyond the end": "try:\n    while True: print(input('> '))\nexcept EOFError: print('E')",
    "sys.stdin.buffer": "import sys\nprint(sys.stdin.buffer.read(3), sys.stdin.buffer.readlines())",
    "open(0) as sys.stdin": "import sys\nsys.stdin = open(0)\nprint(input(), sys.stdin.read())",
    "a codec's reader of stdin detached": "import codecs, sys\n"
    "sys.stdin = codecs.getreader('utf-8')(sys.stdin.detach())\nprint(sys.stdin.read())",
    "mmap": "import mmap\nm = mmap.mmap(0, 0, prot=mmap.PROT_READ)\nprint(m.readline(), len(m))",
    "select": "import select, sys\nprint(select.select([sys.stdin], [], [], 1)[0] == [sys.stdin])",
    "stdin sought": "import sys\nsys.stdin.read(); sys.stdin.seek(0); print(input())",
    # -------------------------------------------------------- writing
    "stdout detached": "import io, sys\n"
    "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint('\u00e9')",
    "stdout detached and left": "import sys\nout = sys.stdout.detach()\nout.write(b'x')",
    "a buffered writer": "import io, sys\n"
    "out = io.BufferedWriter(io.FileIO(1, 'w', closefd=False), 1 << 20)\nout.write(b'x\\n' * 9)",
    "reconfigured": "import sys\nsys.stdout.reconfigure(line_buffering=True, newline='\\r\\n')\n"
    "print(sys.stdout.line_buffering)",
    "os.fdopen as sys.stdout": "import os, sys\nsys.stdout = os.fdopen(1, 'w')\nprint('x')",
    "os.fdopen closed": "import os\nwith os.fdopen(1, 'w') as out: out.write('x')",
    "text left behind fd 1 closed": "print('lost')\nwith open(1, 'w') as f: f.write('x')",
    "a file that a built-in holds": "import builtins\nout = open(1, 'w', closefd=False)\n"
    "builtins.show = lambda x: out.write(x)\nshow('x')",
    "os.write": "import os\nprint('b'); os.write(1, b'a')",
    "a copy of the descriptor": "import os, sys\nsys.stdout = open(os.dup(1), 'w')\nprint('x')",
    "sys.__stdout__ behind another": "import io, sys\nsys.stdout = io.StringIO(); print('lost')\n"
    "print('x', file=sys.__stdout__)",
    "sys.stdout.close()": "import sys\nprint('x'); sys.stdout.close()",
    "print after close": "import sys\nprint('x'); sys.stdout.close(); print('y')",
    "stdout deleted": "import sys\nprint('x'); del sys.stdout",
    "stdout without flush": "import sys\nclass W:\n"
    "    def write(self, s): sys.__stdout__.write(s)\nsys.stdout = W(); print('x')",
    "stderr": "import sys\nprint('e', file=sys.stderr); sys.stderr.write('\\ud800'); print('x')",
    "a surrogate is refused": "print('a'); print('\\ud800')",
    "an escaped byte": "import sys\nprint('\\udce9\\udcff'.encode(errors='surrogateescape'))\n"
    "sys.stdout.write('\\udcc3\\udca9')",
    "a null device": "import os\nwith open(os.devnull, 'w') as f: f.write('x')\n"
    "print(repr(open(os.devnull).read()))",
    "names of streams": "import sys\n"
    "for s in (sys.stdin, sys.stdout): print(s.name, s.mode, s.encoding, s.errors, s.newlines)",
    "the header": f"{FAST_IO}sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)\n"
    "input = lambda: sys.stdin.readline().rstrip('\\r\\n')\nprint(int(input()) + 1)\n"
    "print(sum(map(int, input().split())))",
    "the header, never flushed": f"{FAST_IO}out = IOWrapper(sys.stdout)\nout.write('x')\n",
    # -------------------------------------------------------- the end
    "an exit handler for the output": "import atexit, io, os, sys\nout = io.StringIO()\n"
    "sys.stdout = out\natexit.register(lambda: os.write(1, out.getvalue().encode()))\nprint('x')",
    "an exit handler that raises": "import atexit\natexit.register(lambda: 1 / 0); print('a')",
    "__del__ with globals": "class A:\n    def __del__(self): print(x)\na = A()\nx = 5",
    "__del__ in a cycle": "class A:\n    def __del__(self): print(self.n)\n"
    "a = A(); a.a = a; a.n = 3; del a",
    "exit": "print('x')\nexit()",
    "sys.exit with a text": "import sys\nprint('x'); sys.exit('text')",
    "sys.exit(256)": "import sys\nprint('x'); sys.exit(256)",
    "os._exit loses what was not flushed": "import os\nprint('x'); os._exit(0)",
    "raises behind its output": "print('x'); 1 / 0",
    "an alarm": "import signal\nsignal.signal(signal.SIGALRM, lambda *a: print('time'))\n"
    "signal.alarm(1); signal.pause()",
    "gc disabled": "import gc; gc.disable(); gc.freeze(); print('x')",
    # -------------------------------------------------------- the module
    "__file__": "import os\nprint(os.path.isabs(__file__), os.path.basename(__file__))\n"
    "os.path.abspath(__file__)",
    "names of a module": "import builtins\nprint(__name__, __doc__, __package__, __spec__)\n"
    "print(__builtins__ is builtins)",
    "names that are not there": "print({*globals()} & {'code', 'request', 'command', 'Program'})",
    "sys.argv": "import os, sys\nprint(len(sys.argv), os.path.basename(sys.argv[0]))",
    "sys.path": "import os, sys\nprint(os.path.dirname(__file__) == sys.path[0])",
    "the directory": "import os\nos.chdir(os.path.dirname(os.path.abspath(__file__)))",
    "__main__": "import __main__, sys\nx = 3\nprint(__main__.x, sys.modules[__name__].x)",
    "pickle": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)",
    "deep recursion": "def f(n):\n    try: return f(n + 1)\n    except RecursionError: return n\n"
    "print(f(0) > 985)",
    "recursion as deep as it says": "import sys\nn = 3000\nsys.setrecursionlimit(n + 20)\n"
    "def f(n): return n and 1 + f(n - 1)\nprint(f(n))",
    "a traceback": "import traceback\ntry: 1 / 0\nexcept ZeroDivisionError as e:\n"
    "    print(e.__traceback__.tb_lineno, e.__traceback__.tb_next, e.__context__)\n"
    "    print(traceback.extract_stack()[-1].lineno)",
    "no exception is handled": "import sys\nprint(sys.exc_info())",
    "too many digits": "print(len(str(10**4299)))\nprint(10**5000)",
    "an event loop's own": "import asyncio\nloop = asyncio.new_event_loop()\n"
    "print(loop.run_until_complete(asyncio.sleep(0, 'x'))); loop.close()",
}  # fmt: skip


@functools.cache
def as_a_file(name):
    """The output of a program, and its success, as a file that plain Python runs."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as stdin:
        Path(folder, "solution.py").write_text((PROGRAMS | THREADS)[name], "utf-8")
        stdin.write(STDIN.encode())
        stdin.seek(0)
        with open(f"{folder}/stdout", "w+b") as stdout:
            code = subprocess.run(
                [sys.executable, "-X", "utf8", "solution.py"],
                **{"cwd": folder, "stdin": stdin, "stdout": stdout, "stderr": subprocess.DEVNULL},
                env={"LC_ALL": "C.UTF-8"},
                check=False,
            ).returncode
            stdout.seek(0)
            return stdout.read().decode(errors="replace"), code == 0


# The sandboxes of every protection, and one as lenient programs run in.
PLACES = {found.name: (found, True) for found in FOUND}
PLACES |= {f"{found.name}, lenient": (found, False) for found in FOUND[:1]}


@pytest.fixture(scope="module")
def started():
    made = {}
    for name, (found, strict) in PLACES.items():
        limits = replace(LIMITS, timeout=30, deadline=3600)
        made[name] = Sandbox(found, limits, () if strict else PUBLISHED_IMPORTS)
    yield made
    for sandbox in made.values():
        sandbox.close()


@HOLDS
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", [*PROGRAMS, *THREADS])
def test_a_program_runs_as_a_file_of_its_own_would(started, name, place):
    found, strict = PLACES[place]
    if name in THREADS and not found.own_user and (os.geteuid() == 0 or found.name == "landlock"):
        pytest.skip("threads cannot be counted here, so there are none")
    code = (PROGRAMS | THREADS)[name]
    outcome = started[place].run(code, STDIN, setup="" if strict else PUBLISHED_SETUP)
    assert (outcome.text, outcome.status is Status.OK) == as_a_file(name)


@HOLDS
def test_lines_of_standard_input_may_end_as_those_of_windows():
    with Sandbox(FOUND[0], LIMITS) as sandbox:
        assert sandbox.run("print([input(), input()])", "a\r\nb\r\n").text == "['a', 'b']\n"
