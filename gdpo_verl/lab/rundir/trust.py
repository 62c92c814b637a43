"""Find foreign code that a run's configuration names.

The run may come from somebody else, and the code would be executed with the user's permissions.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.lab.rundir.run import flattened

# Keys of verl whose values are imported or executed, or name files that list modules to import. The
# environment variables of the exception are those that this package's hardware recipes set.
_CODE_KEY = re.compile(
    r"""(_target_|trust_remote_code|external_lib|_config_path|class_path)$
    | _(class|cls|fqn|module|impl|cmd)$
    | engine_kwargs\.
    | ray_init\.address$
    | runtime_env\.(?!env_vars\.(OMP_WAIT_POLICY|VERL_PLATFORM|VLLM_CPU_KVCACHE_SPACE
                                 |VLLM_LOGGING_LEVEL)$)""",
    re.VERBOSE,
)
# Values that Python would import. They are found under every key, and inside lists.
_CODE = re.compile(r"pkg://|\.(py|pyc|so)\b|_target_")
_FILE = re.compile(r"\.(py|yaml)(:\w+)?$")
# Modules that are installed with this package, and `auto`, the address of a local Ray cluster.
_OURS = re.compile(r"(gdpo_verl|verl|torch\.optim)(\.\w+)*(:\w+)?|auto")


def foreign_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys that name code from outside this package and verl, with their values.

    Args:
      config: a resolved configuration.
    """
    code = {}
    for key, value in flattened("", config):
        text = str(value)
        is_set = value is True or (isinstance(value, (str, list)) and value)
        names_code = _CODE_KEY.search(key) or _CODE.search(text)
        if is_set and names_code and not _is_ours(text):
            code[key] = text
    return code


def _is_ours(text: str) -> bool:
    if not _FILE.search(text):
        return _OURS.fullmatch(text.removeprefix("pkg://")) is not None
    file = Path(text.removeprefix("file://").partition(":")[0]).resolve()
    recipes = Path(str(importlib.resources.files("gdpo_verl.recipes"))).resolve()
    return file.is_relative_to(recipes)


def check_no_foreign_code(config: Mapping[str, Any], where: str, remedy: str) -> None:
    """Reject a configuration that names code from outside this package and verl.

    Args:
      config: a resolved configuration.
      where: the file of the configuration.
      remedy: advice for a user who trusts the code.

    Raises:
      ValueError: the configuration names foreign code; the message lists each key with the code.
    """
    listed = "; ".join(f"{key}={text}" for key, text in foreign_code(config).items())
    if listed:
        raise ValueError(
            f"{where}: expected only code of gdpo-verl and verl, found other code, which would run "
            f"with your permissions: {listed}. Read that code. If you trust it, {remedy}"
        )
