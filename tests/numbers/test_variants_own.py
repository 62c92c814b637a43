"""A user's own function as a variant: the ten lines of the page, and functions with faults."""

import re
import sys
from pathlib import Path

import pytest
from test_variants import EXAMPLE, GROUPS, advantages, close

from gdpo_verl.advantage import decompose, find_variant, validate_variant

PAGE = Path(__file__).parents[2] / "docs/choose_variant.md"
TEN_LINES, CHECK = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def my_module(tmp_path, monkeypatch):
    """Write the ten lines of the page as a module that can be imported."""
    (tmp_path / "my_module.py").write_text(TEN_LINES)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_module", raising=False)
    return tmp_path / "my_module.py"


def test_the_ten_lines_of_the_page_are_a_variant(my_module):
    assert len(my_module.read_text().splitlines()) <= 10
    address = "pkg://my_module:my_variant"
    found = advantages(EXAMPLE, variant=address, more=0.5, whiten="none")
    terms = decompose(EXAMPLE, GROUPS).terms
    close(found, terms.sum(dim=1) + 0.5 * terms.amin(dim=1), 1e-12)
    validate_variant(find_variant(address), "algorithm.gdpo.variant", weights=[1.0, 0.5])


def test_the_check_on_the_page_runs(my_module, monkeypatch):
    monkeypatch.chdir(my_module.parent)
    names = {}
    exec(CHECK, names)
    address = "pkg://my_module:my_variant"
    expected = advantages(names["rewards"], names["groups"], variant=address, more=0.5)
    close(names["advantages"][:, 0], expected, 1e-12)


@pytest.mark.parametrize("folder", ["", "./", "{}/"])
def test_a_variant_can_be_in_a_file_of_the_working_directory_or_elsewhere(
    folder, my_module, monkeypatch
):
    monkeypatch.chdir(my_module.parent)
    address = f"{folder.format(my_module.parent)}my_module.py:my_variant"
    variant = find_variant(address)
    assert variant.name == "my_variant"
    assert variant.defaults == {"more": 1.0}
    validate_variant(variant, "algorithm.gdpo.variant", weights=[1.0, 0.5])
    assert "my_module" not in sys.modules


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

def doubles_terms(d):
    d.terms[:, 0] *= 2
    return d.terms.sum(dim=1)

def fills_unscored(d):
    return torch.nan_to_num_(d.normalized).sum(dim=1)

def shifts_rewards(d):
    d.rewards.sub_(1.0)
    return d.combined

def scales_weights(d):
    d.weights.div_(2.0)
    return d.combined

def clamps_std(d):
    d.spread.std.clamp_(min=0.1)
    return d.combined

def writes_with_numpy(d):
    d.terms.numpy()[0] = 7.0
    return d.combined

def works_on_a_copy(d):
    return d.terms.clone().mul_(2.0).sum(dim=1)
"""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("overflows", "expected finite numbers, found inf"),
        ("forgets_unscored", "expected finite numbers, found nan"),
        ("too_many", r"expected a tensor of shape \(9,\), one number per response, found \(9, 2\)"),
        ("no_tensor", r"one number per response, found float"),
        ("raises", "AttributeError: .*'term'"),
        # divides by the number of tokens, which is 0 for an empty response
        ("divides", "ZeroDivisionError"),
        ("doubles_terms", r"modifies terms .*, terms\.clone\(\)"),
        ("fills_unscored", "modifies normalized"),
        ("shifts_rewards", "modifies rewards"),
        ("scales_weights", "modifies weights"),
        ("clamps_std", "modifies spread.std"),
        ("writes_with_numpy", "modifies terms"),
    ],
)
def test_a_broken_function_is_rejected_with_the_key(function, message, my_module):
    my_module.write_text(BROKEN)
    variant = find_variant(f"pkg://my_module:{function}", "algorithm.gdpo.variant")
    with pytest.raises(ValueError, match=rf"^algorithm\.gdpo\.variant: '{function}'.*{message}"):
        validate_variant(variant, "algorithm.gdpo.variant", weights=[1.0, 1.0])


def test_a_function_may_modify_a_copy_of_its_input(my_module):
    my_module.write_text(BROKEN)
    variant = find_variant("pkg://my_module:works_on_a_copy")
    validate_variant(variant, "algorithm.gdpo.variant", weights=[1.0, 1.0])


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("pkg://my_module", "expected pkg://module:function"),
        ("pkg://my_module:nothing", "cannot load 'nothing' from 'my_module': .*PYTHONPATH"),
        ("pkg://no_such_module:f", "cannot load 'f' .* ModuleNotFoundError"),
        ("pkg://my_module:torch", "is module, not a function"),
        ("no_such_file.py:f", "cannot load 'f' .* FileNotFoundError: .* in the working directory"),
        ("my_module.py:nothing", "cannot load 'nothing' from 'my_module.py'"),
        ("my_module.py:", "expected pkg://module:function or FILE.py:function"),
        ("my_module.py", "expected one of .* or FILE.py:function"),
        ("my_module:my_variant", "expected one of .* or FILE.py:function"),
    ],
)
def test_an_address_without_a_function_is_rejected(address, message, my_module, monkeypatch):
    monkeypatch.chdir(my_module.parent)
    with pytest.raises(ValueError, match=f"^algorithm.gdpo.variant: .*{message}"):
        find_variant(address, "algorithm.gdpo.variant")
