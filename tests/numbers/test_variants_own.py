"""A variant that is a function of one's own: the page's ten lines, and broken ones."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from test_variants import EXAMPLE, GROUPS, advantages, close

from gdpo_verl.advantage import decompose, find_variant, validate_variant


@pytest.fixture
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ten lines of docs/choose_variant.md as a module that can be imported."""
    page = (Path(__file__).parents[2] / "docs/choose_variant.md").read_text(encoding="utf-8")
    found = re.search(r'```python\n(""".*?)```', page, re.DOTALL)
    assert found is not None
    (tmp_path / "my_module.py").write_text(found[1])
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    return tmp_path / "my_module.py"


def test_the_page_s_ten_lines_are_a_variant(my_module: Path) -> None:
    assert len(my_module.read_text().splitlines()) <= 10
    address = "pkg://my_module:my_variant"
    found = advantages(EXAMPLE, variant=address, more=0.5, whiten="none")
    terms = decompose(EXAMPLE, GROUPS).terms
    close(found, terms.sum(dim=1) + 0.5 * terms.amin(dim=1), 1e-12)
    validate_variant(find_variant(address), "algorithm.gdpo.variant", weights=[1.0, 0.5])


BROKEN = """
import torch

def overflows(d):
    return d.combined + float("inf")

def forgets_unscored(d):
    return d.normalized.sum(dim=1)

def too_many(d):
    return d.terms

def no_tensor(d):
    return 1.0

def raises(d):
    return d.term

def divides(d):
    return d.combined / (6 // int(d.token_counts.min()))
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("overflows", "expected finite numbers, found inf"),
        ("forgets_unscored", "expected finite numbers, found nan"),
        ("too_many", r"expected a tensor of shape \(9,\), one number a response, found \(9, 2\)"),
        ("no_tensor", r"one number a response, found float"),
        ("raises", "AttributeError: .*'term'"),
        ("divides", "ZeroDivisionError"),  # by the tokens of an empty response
    ],
)
def test_a_broken_function_is_refused_with_the_key(
    function: str, message: str, my_module: Path
) -> None:
    my_module.write_text(BROKEN)
    variant = find_variant(f"pkg://my_module:{function}", "algorithm.gdpo.variant")
    with pytest.raises(ValueError, match=rf"^algorithm\.gdpo\.variant: '{function}'.*{message}"):
        validate_variant(variant, "algorithm.gdpo.variant", weights=[1.0, 1.0])


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("pkg://my_module", "expected pkg://module:function"),
        ("pkg://my_module:nothing", "cannot load 'nothing' of the module 'my_module'"),
        ("pkg://no_such_module:f", "cannot load 'f' .* ModuleNotFoundError"),
        ("pkg://my_module:torch", "is module, not a function"),
    ],
)
def test_an_address_without_a_function_is_refused(
    address: str, message: str, my_module: Path
) -> None:
    with pytest.raises(ValueError, match=f"^algorithm.gdpo.variant: .*{message}"):
        find_variant(address, "algorithm.gdpo.variant")
