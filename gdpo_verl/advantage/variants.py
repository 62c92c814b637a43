"""The variants by name. A new one is a file beside this one and its name here."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from gdpo_verl.advantage.decomposition import GDPO
from gdpo_verl.advantage.variant import Variant
from gdpo_verl.text import did_you_mean

_FILES = ("dvao", "sa_mrpo", "dara", "gd2po", "saw", "corr_grpo", "mo_grpo", "rvpo")
VARIANTS: Mapping[str, Variant] = {"gdpo": GDPO} | {
    name: importlib.import_module(f"gdpo_verl.advantage.{name}").VARIANT for name in _FILES
}
OWN = "pkg://"


def find_variant(name: Any, where: str = "variant") -> Variant:
    """A variant of ours by its name, or a user's own as ``pkg://module:function``.

    Args:
      name: as `algorithm.gdpo.variant` has it.
      where: what an error calls it.

    Raises:
      ValueError: no such variant, or no such function.
    """
    if isinstance(name, str) and name.startswith(OWN):
        return _load(name, where)
    if not isinstance(name, str) or name not in VARIANTS:
        raise ValueError(
            f"{where}: expected one of {list(VARIANTS)} or pkg://module:function, found {name!r}."
            f"{did_you_mean(name, VARIANTS)}"
        )
    return VARIANTS[name]


def own_name(address: str) -> str:
    """The name of a user's function, under which its settings stand.

    >>> own_name("pkg://my_module:my_variant")
    'my_variant'
    """
    return address.rpartition(":")[2]


def _load(address: str, where: str) -> Variant:
    module, colon, name = address.removeprefix(OWN).partition(":")
    if not colon or not module or not name:
        raise ValueError(f"{where}: expected pkg://module:function, found {address!r}")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ValueError(
            f"{where}: cannot load {name!r} of the module {module!r}: {type(error).__name__}: "
            f"{error}. The module has to be importable where the driver runs (PYTHONPATH)."
        ) from error
    if not callable(function):
        raise ValueError(f"{where}: {address} is {type(function).__name__}, not a function")
    return Variant(name, function)
