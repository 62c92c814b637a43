"""The protections: which is taken, what is readable in it, what the doctor says of it."""

import itertools
import os
import sys
import tempfile
from pathlib import Path

import pytest
import test_sandbox as sandboxes
from test_sandbox import FOUND, HOLDS, LIMITS, SHORT, attempts, still_works
from test_sandbox import nothing_protects as nothing_protects
from test_sandbox import sandbox as sandbox

from gdpo_verl.lab import doctor
from gdpo_verl.plugin.checks.reward_function import in_configuration
from gdpo_verl.sandbox import (
    Protection,
    Sandbox,
    Status,
    Unprotected,
    best_protection,
    visible_paths,
)
from gdpo_verl.sandbox import protection as protections

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


def test_packages_that_carry_data_sets_are_out_of_sight(sandbox):
    reads = []
    for packages in PACKAGES:
        for file in itertools.islice(Path(packages).rglob("*.py"), 1):
            reads.append(f"open({str(file)!r}).read()")
    assert reads
    said = sandbox.run(attempts(*reads)).text
    assert "done" not in said, said
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
        monkeypatch.setattr(visible_paths, "_LIBRARIES", [*visible_paths._LIBRARIES, f"{root}/lib"])
        yield made / "lib"


@HOLDS
def test_of_a_system_directory_only_the_libraries_are_readable(library):
    code = attempts(
        f"open({str(library / 'found.so')!r}).read()",
        f"open({str(library / 'python3/dist-packages/tests/data.py')!r}).read()",
        f"open({str(library / 'link')!r}).read()",
    )
    for found in sandboxes.working_protections():
        with Sandbox(found, LIMITS) as sandbox:
            said = sandbox.run(code).text.split("\n")
        assert said[0] == "done n = 42", found.name
        assert "done" not in said[1] + said[2], found.name


@HOLDS
@pytest.mark.parametrize("given", ["", "python3/dist-packages", "python3/dist-packages/tests"])
def test_packages_that_are_given_can_be_imported(library, given):
    data = library / "python3/dist-packages/tests/data.py"
    module = ".".join(data.with_suffix("").relative_to(library / given).parts)
    code = f"import importlib\nprint(importlib.import_module({module!r}).n)"
    best = best_protection(site_packages=str(library / given))
    for found in [best, *sandboxes.working_protections(str(library / given))]:
        with Sandbox(found, LIMITS) as sandbox:
            assert sandbox.run(code).text == "42\n", found.name


def test_without_protection_it_refuses_and_names_the_key_and_the_remedies(nothing_protects):
    with pytest.raises(Unprotected) as refused:
        best_protection()
    said = str(refused.value)
    assert said.startswith("allow_unprotected: expected a protection")
    key = "reward.custom_reward_function.reward_kwargs.allow_unprotected"
    assert in_configuration(refused.value).startswith(f"{key}: expected a protection")
    assert "apt install bubblewrap" in said
    assert "not on this machine" in said
    finding = doctor._sandbox()
    assert finding.state.startswith("none, which the rewards that run programs need")
    assert "apt install bubblewrap" in finding.state
    assert finding.remedy == "", "no other reward needs one"


def test_the_user_may_allow_it_with_a_warning(nothing_protects, caplog):
    found = best_protection(allow_unprotected=True)
    assert "without protection" in caplog.text
    with Sandbox(found, LIMITS) as sandbox:
        assert still_works(sandbox)
        assert sandbox.run("x = bytearray(1 << 30)").status is Status.MEMORY
    with Sandbox(found, SHORT) as sandbox:
        assert sandbox.run("while True: pass").status is Status.TIMEOUT


def test_a_sandbox_with_an_open_door_is_not_taken():
    open_door = protections.unprotected(None)
    without_filter = Protection("open", open_door.command, open_door.settings | {"filter": ""})
    with pytest.raises(RuntimeError, match="reads files, writes files, opens sockets, starts"):
        protections.probe(without_filter)


@HOLDS
def test_the_doctor_names_the_protection():
    finding = doctor._sandbox()
    assert (finding.subject, finding.remedy) == ("sandbox", "")
    assert finding.state == f"{FOUND[0].name}, for the rewards that run programs"
