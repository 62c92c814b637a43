"""Settings of all tests: their order, and the state of the process."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

# With its usual threshold, the garbage collector visits a million objects of verl, torch and vLLM,
# and takes a tenth of the time of the tests.
gc.set_threshold(100_000)

# Container images often forbid bytecode files. Then each process compiles verl again, which takes a
# third of the time of the tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# If an installed copy were tested instead of the checkout, a broken checkout would pass the tests.
_checkout = Path(__file__).resolve().parents[1]
_found = find_spec("gdpo_verl")
if _found is None or _found.origin != str(_checkout / "gdpo_verl" / "__init__.py"):
    raise pytest.UsageError(
        f"gdpo_verl: expected the package of this checkout, {_checkout}, found "
        f"{_found and _found.origin}. Run pytest in the checkout, without -c, --rootdir or "
        "--import-mode."
    )

# A background job of a shell ignores Ctrl-C. The commands that tests interrupt would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The files that take longest. The workers of pytest-xdist begin with them.
LONGEST = (
    "test_wheel.py",
    "test_chaos.py",
    "test_faults.py",
    "test_training.py",
    "test_pretrained.py",
    "test_explain.py",
    "test_recipes.py",
    "test_modes.py",
    "test_unnoticed.py",
    "test_docs_site.py",
    "test_check_reward.py",
    "test_launch.py",
    "test_code.py",
    "test_plugin.py",
    "test_cpu.py",
    "test_trl.py",
    "test_submit.py",
    "test_child.py",
    "test_contract.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first and the tests of clusters last, because these wait for others."""
    places = {name: place for place, name in enumerate(LONGEST)} | {"test_cluster.py": 1000}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.fixture(autouse=True)
def warnings_for_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Propagate the plug-in's warnings to the root logger, which caplog reads.

    Outside of tests they are not propagated, because vLLM would print them a second time.
    """
    monkeypatch.setattr(logging.getLogger("gdpo_verl"), "propagate", True)
