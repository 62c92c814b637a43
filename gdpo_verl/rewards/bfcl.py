"""Rewards for the Berkeley Function-Calling Leaderboard: its own correctness, and the format.

Use them to measure a model on the questions of the leaderboard, which `gdpo-verl prepare bfcl-v3`
writes.
Assumes: the package bfcl-eval with the dependencies of its checker; responses in the format of
`rewards.tool_call`.

The leaderboard is at https://github.com/ShishirPatil/gorilla (Apache-2.0). Its package bfcl-eval
judges calls with a checker of the abstract syntax tree. If a question asks for no call, a response
is correct if it has no calls that can be parsed. Calls are parsed as in `rewards.tool_call`, and
nothing in a response is run.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from gdpo_verl.config.components import Component, declares
from gdpo_verl.rewards.parse_error import ParseError, warn_of_ground_truth, with_score
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.rewards.tool_text import Reading, read

__all__ = ["ParseError", "compute_score"]

REQUIREMENT = "bfcl-eval==2026.3.23"
INSTALL = f"pip install --no-deps {REQUIREMENT}"
# This command also installs the packages that all of its checkers need.
INSTALL_ALL = (
    f"{INSTALL} overrides tenacity tree-sitter==0.21.3 tree-sitter-java==0.21.0 "
    "tree-sitter-javascript==0.21.4"
)
MODEL = "gdpo-verl"
"""The name under which bfcl-eval knows our models."""
MODELS: dict[str, Any] = {MODEL: SimpleNamespace(underscore_to_dot=False)}
"""A replacement of bfcl-eval's table of models. The checker reads only this attribute of it."""

# bfcl-eval creates folders for results and locks when it is imported. They are created here.
_scratch = tempfile.TemporaryDirectory(prefix="gdpo-verl-bfcl-")


@declares(Component("format", 0, 1), Component("correctness", 0, 1))
def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str,
    extra_info: dict[str, Any] | None = None,
    **kwargs: Any,
) -> dict[str, float]:
    """Score one response, with the signature of verl's reward functions.

    Args:
      data_source: ignored, as are `extra_info` and `kwargs`.
      solution_str: the response. Special tokens at its end are dropped.
      ground_truth: JSON with the category, the available functions and the accepted answers. The
        answers are null if no call is asked for, or if any call is accepted.

    Returns:
      A dict with format (1 if every part of the response is in its place), correctness (0 or 1),
      score (their sum) and parse_error (a `ParseError`). The keys are the same for every text. Both
      rewards are 0 if the ground truth cannot be parsed.

    Raises:
      ModuleNotFoundError: bfcl-eval or a dependency is not installed. The error says how to install
        it.
    """
    try:
        truth = json.loads(ground_truth)
        category, functions = truth["category"], truth["functions"]
        accepted = truth["accepted"]
    except (ValueError, TypeError, KeyError) as failure:
        warn_of_ground_truth("bfcl", failure)
        return with_score({"format": 0.0, "correctness": 0.0}, ParseError.GROUND_TRUTH)
    reading = read(assistant_text(solution_str))
    makes_calls = bool(reading.calls)
    asks_for_calls = "irrelevance" not in category
    tidy = reading.tidy and (not asks_for_calls or (makes_calls and not reading.has_response))
    error = reading.error
    if asks_for_calls and not makes_calls:
        error = error or ParseError.NO_CALL
    if accepted is None:
        valid = makes_calls == asks_for_calls
    else:
        valid = makes_calls and _accepts(category, functions, accepted, reading)
    return with_score({"format": float(tidy), "correctness": float(valid)}, error)


def _accepts(category: str, functions: Any, accepted: Any, reading: Reading) -> bool:
    """Return whether bfcl-eval's checker accepts the calls."""
    checker = load_module("eval_checker.ast_eval.ast_checker")
    name = category.removeprefix("simple_").upper()
    language = getattr(checker.Language, name, checker.Language.PYTHON)
    output = [{call["name"]: call["parameters"]} for call in reading.calls]
    try:
        verdict = checker.ast_checker(functions, output, accepted, language, category, MODEL)
    except Exception:  # the checker raises errors of any kind for values that it does not expect
        return False
    return bool(verdict["valid"])


def package() -> Path:
    """Return the directory of the installed package, without importing it."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"bfcl: expected the package {REQUIREMENT}, found none. Install it with: {INSTALL} "
            "(--no-deps, because its pinned versions conflict with verl's; only its data and its "
            "checker are used)"
        )
    return Path(spec.submodule_search_locations[0])


def load_module(name: str) -> Any:
    """Import a module of bfcl-eval.

    Its modules look up a model in ``bfcl_eval.constants.model_config``. The import of that module
    needs the SDK of every vendor on the leaderboard, so a stub with `MODELS` replaces it.
    """
    loaded = sys.modules.get(f"bfcl_eval.{name}")
    if loaded is not None:
        return loaded
    package()
    os.environ.setdefault("BFCL_PROJECT_ROOT", _scratch.name)
    stubbed = "bfcl_eval.constants.model_config"
    sys.modules[stubbed] = ModuleType(stubbed)
    vars(sys.modules[stubbed])["MODEL_CONFIG_MAPPING"] = MODELS
    try:
        return importlib.import_module(f"bfcl_eval.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"bfcl: bfcl-eval's generation and scoring need the package {error.name}, which is "
            f"missing. Install all that they need with: {INSTALL_ALL} (--no-deps, because its "
            "pinned versions conflict with verl's)"
        ) from error
    finally:
        del sys.modules[stubbed]
