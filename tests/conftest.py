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

# The collector visits a million objects of verl, torch and vLLM, which took a tenth of the time.
gc.set_threshold(100_000)

# Container images often forbid it; compiling verl again in each process takes a third of the time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# With an installed copy, the tests of a broken checkout would pass.
_checkout = Path(__file__).resolve().parents[1]
_found = find_spec("gdpo_verl")
if _found is None or _found.origin != str(_checkout / "gdpo_verl" / "__init__.py"):
    raise pytest.UsageError(
        f"gdpo_verl: expected the package of this checkout, {_checkout}, found "
        f"{_found and _found.origin}. Run pytest in the checkout, without -c, --rootdir or "
        "--import-mode."
    )

# A background job of a shell ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest's workers begin with the files that take longest.
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
    """Put the longest files first, and the clusters last, because they wait for the others."""
    places = {name: place for place, name in enumerate(LONGEST)} | {"test_cluster.py": 1000}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.fixture(autouse=True)
def warnings_for_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Propagate our warnings to the root logger, where caplog reads; vLLM needs the opposite."""
    monkeypatch.setattr(logging.getLogger("gdpo_verl"), "propagate", True)
