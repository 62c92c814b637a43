"""Real questions: the Berkeley Function-Calling Leaderboard's, from the package ``bfcl-eval``.

https://github.com/ShishirPatil/gorilla, Apache-2.0. All single-turn Python
questions with accepted answers. The ground truth takes the first answer listed
for each argument, and a row is kept only if the leaderboard's own checker
accepts that answer; the others are listed, with its reason, in the provenance.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from gdpo_verl.tasks import parquet, prompt
from gdpo_verl.tasks.rows import BadRow, PromptLength, Row

DATA_SOURCE = "bfcl"
REQUIREMENT = "bfcl-eval==2026.3.23"
INSTALL = f"pip install --no-deps {REQUIREMENT}"
VALIDATION_SHARE = 0.1
CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)

Call = tuple[str, dict[str, Any]]
Checker = Callable[[list[dict[str, Any]], list[Call], list[dict[str, Any]], str], list[str]]


def _package() -> Path:
    """Find the installed package without importing it."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"bfcl: expected the package {REQUIREMENT}, found none. Install it with: {INSTALL} "
            "(--no-deps, because its pins conflict with verl's; only its data and its checker "
            "are used)"
        )
    return Path(spec.submodule_search_locations[0])


@contextmanager
def stand_in(name: str, **attributes: Any) -> Iterator[None]:
    """Have ``import name`` give a module with ``attributes``; undone on leaving."""
    before = sys.modules.get(name)
    module = ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


class _AnyModel(dict[str, SimpleNamespace]):
    """Model settings for any name: the model writes function names with their dots."""

    def __missing__(self, key: str) -> SimpleNamespace:
        return SimpleNamespace(underscore_to_dot=False)


def load_checker() -> Checker:
    """The leaderboard's own AST checker as ``checker(functions, calls, accepted, category)``.

    Its module asks ``bfcl_eval.constants.model_config`` for one flag of a
    model, and that import needs the SDK of every vendor on the leaderboard. A
    stand-in answers instead while the module is loaded, under a private name:
    afterwards ``sys.modules`` holds neither.

    Returns:
      a function that gives the checker's objections; an empty list is a pass.
    """
    path = _package() / "eval_checker" / "ast_eval" / "ast_checker.py"
    spec = importlib.util.spec_from_file_location("_gdpo_verl_bfcl_checker", path)
    if spec is None or spec.loader is None or not path.exists():
        raise FileNotFoundError(f"bfcl: {path} is missing. Install the package again: {INSTALL}")
    module = importlib.util.module_from_spec(spec)
    with stand_in("bfcl_eval.constants.model_config", MODEL_CONFIG_MAPPING=_AnyModel()):
        spec.loader.exec_module(module)
    python = module.Language.PYTHON

    def check(
        functions: list[dict[str, Any]],
        calls: list[Call],
        accepted: list[dict[str, Any]],
        category: str,
    ) -> list[str]:
        output = [{name: arguments} for name, arguments in calls]
        verdict = module.ast_checker(functions, output, accepted, python, category, "any")
        return [] if verdict["valid"] else [str(reason) for reason in verdict["error"]]

    return check


_OMIT = object()


def _first(accepted: list[Any]) -> Any:
    """The first listed value, or _OMIT where that is "", which means: may be left out."""
    if not accepted or accepted[0] == "":
        return _OMIT
    return _resolve(accepted[0])


def _resolve(value: Any) -> Any:
    """An answer in which every dict lists accepted values for each key, with the first of each."""
    if isinstance(value, Mapping):
        chosen = {
            key: _first(options) if isinstance(options, list) else _resolve(options)
            for key, options in value.items()
        }
        return {key: item for key, item in chosen.items() if item is not _OMIT}
    if isinstance(value, list):
        return [_resolve(item) for item in value]
    return value


def first_answer(accepted: list[dict[str, Any]]) -> list[Call]:
    """The calls made of the first answer listed for each argument.

    >>> first_answer([{"area": {"side": [3, 3.0], "unit": ["", "cm"]}}])
    [('area', {'side': 3})]
    """
    return [(name, _resolve(arguments)) for call in accepted for name, arguments in call.items()]


def tool_block(function: Mapping[str, Any]) -> str:
    """A function of the leaderboard, as a prompt names it."""
    schema = function["parameters"]
    required = schema.get("required", [])
    parameters = {
        name: details if name in required else {**details, "optional": True}
        for name, details in schema["properties"].items()
    }
    return prompt.tool_block(function["name"], function["description"], parameters)


def read(category: str) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """(file name, question, accepted answers) of each question in a category."""
    name = f"BFCL_v4_{category}.json"
    data = _package() / "data"
    try:
        questions = (data / name).read_text(encoding="utf-8").splitlines()
        answers = (data / "possible_answer" / name).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"bfcl: {error.filename} is missing from the installed package. "
            f"Install the version that has it: {INSTALL}"
        ) from error
    accepted = {answer["id"]: answer["ground_truth"] for answer in map(json.loads, answers)}
    for question in map(json.loads, questions):
        yield name, question, accepted[question["id"]]


def split_of(text: str, *, seed: int) -> str:
    """The split of a question, by its text: the same text never stands in both."""
    digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return "validation" if share < VALIDATION_SHARE else "train"


def accepted_rows(
    *, seed: int = 0, length: PromptLength | None = None
) -> tuple[dict[str, list[Row]], dict[str, Any]]:
    """The accepted questions as rows of train and validation, and what the provenance says of all.

    Raises:
      ModuleNotFoundError: ``bfcl-eval`` is not installed.
      FileNotFoundError: the installed version lacks one of the files.
    """
    check = load_checker()
    splits: dict[str, list[Row]] = {"train": [], "validation": []}
    counts: dict[str, dict[str, int]] = defaultdict(lambda: {"questions": 0, "kept": 0})
    rejected: list[dict[str, Any]] = []
    for category in CATEGORIES:
        for file, question, accepted in read(category):
            counts[category]["questions"] += 1
            calls = first_answer(accepted)
            objections = check(question["function"], calls, accepted, category)
            if objections:
                rejected.append({"file": file, "id": question["id"], "reason": objections})
                continue
            turns = [(turn["role"], turn["content"]) for turn in question["question"][0]]
            messages = prompt.messages([tool_block(f) for f in question["function"]], turns)
            try:
                if length:
                    length.check(messages)
            except BadRow as error:
                rejected.append({"file": file, "id": question["id"], "reason": [str(error)]})
                continue
            counts[category]["kept"] += 1
            split = split_of("\n".join(text for _, text in turns), seed=seed)
            names = " and ".join(dict.fromkeys(name for name, _ in calls))
            splits[split].append(
                parquet.row(
                    DATA_SOURCE,
                    messages,
                    prompt.reference_answer(f"use {names}", calls),
                    ability="tool_call",
                    extra_info={
                        "index": len(splits[split]),
                        "split": split,
                        "id": question["id"],
                        "category": category,
                    },
                )
            )
    return splits, {
        "categories": dict(counts),
        "kept": sum(count["kept"] for count in counts.values()),
        "rejected": rejected,
    }


def prepare(out_dir: Path, *, seed: int = 0, length: PromptLength | None = None) -> dict[str, Any]:
    """Write the accepted questions to ``out_dir`` and return their provenance.

    Args:
      out_dir: gets train.parquet, validation.parquet and provenance.json.
      seed: decides the split, about nine to one.
      length: the longest prompt, unchecked without it.

    Raises:
      ModuleNotFoundError: ``bfcl-eval`` is not installed.
      FileNotFoundError: the installed version lacks one of the files.
    """
    splits, found = accepted_rows(seed=seed, length=length)
    provenance = {
        "data_source": DATA_SOURCE,
        "source": f"bfcl-eval {importlib.metadata.version('bfcl-eval')} from PyPI, "
        "https://github.com/ShishirPatil/gorilla",
        "license": "Apache-2.0",
        "settings": {"seed": seed, "validation_share": VALIDATION_SHARE},
        **found,
    }
    return parquet.write(out_dir, splits, provenance)
