"""A run's configuration read without executing anything, and what of it names code.

A run may come from somebody else. Its configuration is text here: OmegaConf's resolvers would read
the reader's own environment, and verl would import what many of its keys name.
"""

from __future__ import annotations

import fnmatch
import importlib.resources
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

# verl's keys whose values are imported, executed, or read as a list of what to import.
_CODE = (
    "*_target_",
    "*trust_remote_code",
    "*external_lib",
    "*custom_*.path",
    "*module.path",
    "*class_path",
    "*_class",
    "*_cls",
    "*_fqn",
    "*_module",
    "*_impl",
    "*_cmd",
    "*datagen.path",
    "*tool_config_path",
    "*function_tool_path",
    "*interaction_config_path",
    "*agent_loop_config_path",
    "*router_config_path",
    "*engine_kwargs.*",
    "ray_kwargs.ray_init.address",
    "ray_kwargs.*runtime_env.*",
    "hydra.*",
    "defaults*",
)
# Those of our hardware recipes.
_HARMLESS = (
    "*.env_vars.OMP_WAIT_POLICY",
    "*.env_vars.VERL_PLATFORM",
    "*.env_vars.VLLM_CPU_KVCACHE_SPACE",
    "*.env_vars.VLLM_LOGGING_LEVEL",
)
_PYTHON_FILE = re.compile(r"\.py(:\w+)?$")
_FILE = re.compile(r"\.(py|yaml)(:\w+)?$")
# Modules that are installed with this package, and the address of a cluster that runs here.
_OURS = re.compile(r"(gdpo_verl|verl|torch\.optim)(\.\w+)*(:\w+)?|auto")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_INTERPOLATION = re.compile(r"(\\*)\$\{")


def read_settings(path: Path) -> DictConfig:
    """Read a configuration whose references to other keys of the file are followed.

    Every other interpolation, such as ``${oc.env:HOME}``, is the text that is written there.
    """
    # By name, so that a configuration whose root is a list fails here.
    root: Any = OmegaConf.to_container(DictConfig(OmegaConf.load(path)), resolve=False)
    return as_settings(root)


def as_settings(root: dict[Any, Any]) -> DictConfig:
    """Return a configuration in which `read_settings`'s interpolations are text."""
    return DictConfig(_as_text(root, root))


def _as_text(node: Any, root: dict[Any, Any]) -> Any:
    if isinstance(node, dict):
        return {key: _as_text(value, root) for key, value in node.items()}
    if isinstance(node, list):
        return [_as_text(value, root) for value in node]
    if not isinstance(node, str):
        return node
    whole = _REFERENCE.fullmatch(node)
    value = _followed(whole, root) if whole else node
    if isinstance(value, str):
        value = _REFERENCE.sub(lambda reference: str(_followed(reference, root)), value)
        # OmegaConf reads an interpolation behind a backslash as text.
        value = _INTERPOLATION.sub(r"\1\1\\${", value)
    return value


def _followed(reference: re.Match[str], root: dict[Any, Any]) -> Any:
    """Return the value that a chain of references ends at; the reference itself without one."""
    seen = set()
    following: re.Match[str] | None = reference
    value: Any = None
    while following and following[0] not in seen:
        seen.add(following[0])
        value = root
        for part in following[1].split("."):
            if not isinstance(value, dict) or part not in value:
                return reference[0]
            value = value[part]
        following = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    # Of a text with references in it, or a whole section, the size could grow without a limit.
    is_whole = following is None and not isinstance(value, (dict, list)) and "${" not in str(value)
    return value if is_whole else reference[0]


def named_code(config: Any) -> dict[str, str]:
    """The keys of a configuration, a dict or OmegaConf's, that name code, with what they name.

    Interpolations of OmegaConf's are resolved.
    """
    if isinstance(config, DictConfig):
        config = OmegaConf.to_container(config, resolve=True)
    found = {}
    for key, value in _leaves("", config):
        text = str(value)
        named = value is True or isinstance(value, str)
        is_code = "pkg://" in text or _PYTHON_FILE.search(text) or _matches(key, _CODE)
        if named and text and is_code and not _matches(key, _HARMLESS):
            found[key] = text
    return found


def foreign_code(config: Any) -> dict[str, str]:
    """Those of `named_code` that are neither of this package and its recipes, nor of verl."""
    return {key: text for key, text in named_code(config).items() if not _is_ours(text)}


def _matches(key: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def _is_ours(text: str) -> bool:
    if not _FILE.search(text):
        return _OURS.fullmatch(text.removeprefix("pkg://")) is not None
    file = Path(text.removeprefix("file://").partition(":")[0]).resolve()
    folders = ("gdpo_verl", "gdpo_verl.recipes")
    places = [Path(str(importlib.resources.files(name))).resolve() for name in folders]
    return any(file.is_relative_to(place) for place in places)


def _leaves(prefix: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Each value under its full key, those of lists by their number."""
    if isinstance(node, dict):
        pairs = [(str(key), value) for key, value in node.items()]
    elif isinstance(node, list):
        pairs = [(str(number), value) for number, value in enumerate(node)]
    else:
        yield prefix, node
        return
    for key, value in pairs:
        yield from _leaves(f"{prefix}.{key}" if prefix else key, value)


def check_no_foreign_code(config: Any, where: str, remedy: str) -> None:
    """Refuse a configuration that names code from outside of this package.

    Args:
      where: the file of the configuration.
      remedy: what somebody can do who trusts it.

    Raises:
      ValueError: names each key and what it names.
    """
    found = foreign_code(config)
    if found:
        listed = "; ".join(f"{key}={text}" for key, text in found.items())
        raise ValueError(
            f"{where}: expected code of gdpo-verl and verl alone, found keys that name other code, "
            f"which would run with your permissions: {listed}. Read that code. If you trust it, "
            f"{remedy}"
        )
