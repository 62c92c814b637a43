"""The variants by name, and loading a user's own variant.

To add a variant, write a module next to this one and add the module to `_MODULES`.
"""

from __future__ import annotations

import importlib
import importlib.util
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from gdpo_verl.advantage import (
    corr_grpo,
    dara,
    dvao,
    gd2po,
    mgda,
    mo_grpo,
    rvpo,
    sa_mrpo,
    saw,
    tchebycheff,
)
from gdpo_verl.advantage.decomposition import DEFAULTS, EstimatorSettings, decompose
from gdpo_verl.advantage.variant import GDPO, Variant
from gdpo_verl.names import did_you_mean

_MODULES = (
    dvao,
    sa_mrpo,
    dara,
    gd2po,
    saw,
    corr_grpo,
    mo_grpo,
    rvpo,
    tchebycheff,
    mgda,
)
VARIANTS: Mapping[str, Variant] = {"gdpo": GDPO} | {
    module.VARIANT.name: module.VARIANT for module in _MODULES
}
PACKAGE = "pkg://"
# The tensors of a decomposition that a variant may read, and must not modify.
_READ = ("rewards", "weights", "token_counts", "normalized", "terms", "combined", "spread.std")
ADDRESS = "pkg://module:function or FILE.py:function"
"""The two ways to write the address of a user's function, for error messages."""


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the random state afterwards, because a user's code may seed or use the generators."""
    state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


def find_variant(name: Any, where: str = "variant") -> Variant:
    """Return the variant with a name, or a user's own variant at an address (`load_function`).

    Args:
      name: the value of `algorithm.gdpo.variant`.
      where: the key of this setting in error messages.

    Raises:
      ValueError: there is no such variant, or no such function.
    """
    if is_address(name):
        return Variant(own_name(name), load_function(name, where))
    if not isinstance(name, str) or name not in VARIANTS:
        raise ValueError(
            f"{where}: expected one of {list(VARIANTS)} or {ADDRESS}, found {name!r}."
            f"{did_you_mean(name, VARIANTS)}"
        )
    return VARIANTS[name]


def own_name(address: str) -> str:
    """Return the name of a user's function: the part of its address after the colon.

    This name is also the key of the function's settings under `algorithm.gdpo`.
    """
    return address.rpartition(":")[2]


def is_address(name: Any) -> bool:
    """Return whether the setting is the address of a user's function, not the name of a variant."""
    if not isinstance(name, str):
        return False
    return name.startswith(PACKAGE) or name.rpartition(":")[0].endswith(".py")


def load_function(address: str, where: str) -> Any:
    """Load a user's function by its address: ``pkg://module:function`` or ``FILE.py:function``.

    A relative path of the file begins in the working directory.

    Raises:
      ValueError: the function cannot be loaded. The text of the error begins with `where`.
    """
    path, _, name = address.removeprefix(PACKAGE).rpartition(":")
    if not path or not name or not is_address(address):
        raise ValueError(f"{where}: expected {ADDRESS}, found {address!r}")
    remedy = f"A relative path begins in the working directory, {Path.cwd()}."
    if address.startswith(PACKAGE):
        remedy = "The module has to be importable where the driver runs (PYTHONPATH)."
    try:
        with random_state_kept():
            if address.startswith(PACKAGE):
                module = importlib.import_module(path)
            else:
                module = _load_file(path)
            function = getattr(module, name)
    except Exception as error:  # an import runs the user's module, which may raise anything
        raise ValueError(
            f"{where}: cannot load {name!r} from {path!r}: {type(error).__name__}: {error}. "
            f"{remedy}"
        ) from error
    if not callable(function):
        raise ValueError(f"{where}: {address} is {type(function).__name__}, not a function")
    return function


def _load_file(path: str) -> ModuleType:
    # The colon in the name of the module prevents that it hides another module.
    spec = importlib.util.spec_from_file_location(f"gdpo_verl_file:{path}", path)
    assert spec is not None  # it is None only for a file whose name does not end with .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look for the module there
    spec.loader.exec_module(module)
    return module


def validate_variant(
    variant: Variant,
    where: str,
    *,
    weights: Sequence[float],
    settings: EstimatorSettings = DEFAULTS,
) -> None:
    """Call a user's variant on a small batch, so that a fault is reported before training.

    Args:
      variant: the user's variant.
      where: the configuration key of the variant in error messages.
      weights: the weight of each component.
      settings: the other settings of the estimator. Its gate and its whitening are not used.

    Raises:
      ValueError: the function raised an exception, did not return a finite number for each
        response, or modified the decomposition.
    """
    # The batch has the special cases that occur in training: a component that is not scored, a
    # response that is not scored, a constant group, a group of one, and a response without tokens.
    columns = torch.arange(len(weights), dtype=torch.float64)
    rewards = torch.arange(9.0, dtype=torch.float64)[:, None].sub(columns).remainder(4.0)
    rewards[:3] = rewards[0]
    rewards[3, 0] = torch.nan
    rewards[4] = torch.nan
    groups = [0, 0, 0, 1, 1, 1, 1, 1, 2]
    tokens = torch.tensor([3, 1, 2, 3, 3, 0, 1, 2, 2])
    settings = replace(settings, variant=variant, weights=weights, whiten=None, gate=None)
    decomposition = decompose(rewards, groups, tokens, settings)
    untouched = decompose(rewards.clone(), groups, tokens.clone(), settings)
    try:
        with random_state_kept():
            _ = decomposition.advantage
    except Exception as error:
        raise ValueError(
            f"{where}: {variant.name!r} failed on a batch of {len(rewards)} responses with "
            f"{len(weights)} component(s): {type(error).__name__}: {error}"
        ) from error
    for name in _READ:
        after = attrgetter(name)(decomposition)
        before = attrgetter(name)(untouched)
        if not torch.allclose(after, before, rtol=0, atol=0, equal_nan=True):
            raise ValueError(
                f"{where}: {variant.name!r} modifies {name} of the decomposition, which the "
                f"metrics read as well. Let it work on a copy, {name}.clone()."
            )
