"""Real questions: the Berkeley Function-Calling Leaderboard's, from the package ``bfcl-eval``.

    question   {"id": "simple_python_0", "question": [[{"role": "user", "content": "…"}]],
                "function": [{"name": "calculate_triangle_area", "parameters": {…}, …}]}
    answers    [{"calculate_triangle_area": {"base": [10], "height": [5], "unit": ["units", ""]}}]

https://github.com/ShishirPatil/gorilla, Apache-2.0. All single-turn Python questions with accepted
answers. The ground truth takes the first answer listed for each argument, and a row is kept only if
the leaderboard's own checker accepts it; the others are listed, with its reason, in the provenance.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks import prompt
from gdpo_verl.lab.tasks.rows import BadRow, Call, PromptLength, Row, make_row, write_dataset
from gdpo_verl.rewards.bfcl import MODEL, load_module, package

DATA_SOURCE = "bfcl"
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


def _first(value: Any) -> Any:
    """The first of the values that each dict of an answer lists for a key; "" may be left out."""
    if isinstance(value, Mapping):
        listed = {key: each if isinstance(each, list) else [each] for key, each in value.items()}
        return {key: _first(each[0]) for key, each in listed.items() if each and each[0] != ""}
    return [_first(each) for each in value] if isinstance(value, list) else value


def first_answer(accepted: list[dict[str, Any]]) -> list[Call]:
    """Make calls of the first answer listed for each argument.

    >>> first_answer([{"area": {"side": [3, 3.0], "unit": ["", "cm"]}}])
    [('area', {'side': 3})]
    """
    return [(name, _first(arguments)) for call in accepted for name, arguments in call.items()]


def tool_block(function: Mapping[str, Any]) -> str:
    """A function of the leaderboard, as a prompt names it."""
    schema = function["parameters"]
    required = schema.get("required", [])
    parameters = {
        name: details if name in required else {**details, "optional": True}
        for name, details in schema["properties"].items()
    }
    return prompt.tool_block(function["name"], function["description"], parameters)


def read_questions(category: str) -> Iterator[tuple[str, dict[str, Any], list[dict[str, Any]]]]:
    """Read (file name, question, accepted answers) of each question in a category."""
    name = f"BFCL_v4_{category}.json"
    data = package() / "data"
    questions = (data / name).read_text(encoding="utf-8").splitlines()
    answers = (data / "possible_answer" / name).read_text(encoding="utf-8").splitlines()
    accepted = {answer["id"]: answer["ground_truth"] for answer in map(json.loads, answers)}
    for question in map(json.loads, questions):
        yield name, question, accepted[question["id"]]


def accepted_rows(
    *, seed: int = 0, length: PromptLength | None = None
) -> tuple[dict[str, list[Row]], list[dict[str, Any]]]:
    """Make the rows of train and validation, and list the rejected questions."""
    checker = load_module("eval_checker.ast_eval.ast_checker")
    splits: dict[str, list[Row]] = {"train": [], "validation": []}
    rejected: list[dict[str, Any]] = []
    for category in CATEGORIES:
        for file, question, accepted in read_questions(category):
            calls = first_answer(accepted)
            output = [{name: arguments} for name, arguments in calls]
            language = checker.Language.PYTHON
            # Of the answers that are listed first it refuses a few; none of them could be rewarded.
            verdict = checker.ast_checker(
                question["function"], output, accepted, language, category, MODEL
            )
            turns = [(turn["role"], turn["content"]) for turn in question["question"][0]]
            messages = prompt.messages([tool_block(f) for f in question["function"]], turns)
            try:
                if not verdict["valid"]:
                    raise BadRow("checker", "; ".join(map(str, verdict["error"])))
                if length:
                    length.check(messages)
            except BadRow as error:
                reason = {"kind": error.kind, "reason": str(error)}
                rejected.append({"file": file, "row": question["id"], **reason})
                continue
            # By its text, so that the same text never stands in both.
            text = "\n".join(text for _, text in turns)
            digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
            share = int.from_bytes(digest[:8], "big") / 2**64
            split = "validation" if share < VALIDATION_SHARE else "train"
            names = " and ".join(dict.fromkeys(name for name, _ in calls))
            truth = prompt.reference_answer(f"use {names}", calls)
            info = {"index": len(splits[split]), "split": split}
            info |= {"id": question["id"], "category": category}
            row = make_row(DATA_SOURCE, messages, truth, ability="tool_call", extra_info=info)
            splits[split].append(row)
    return splits, rejected


def prepare(out_dir: Path, *, seed: int = 0, length: PromptLength | None = None) -> dict[str, Any]:
    """Write the accepted questions, split nine to one by ``seed``, and return their provenance."""
    splits, rejected = accepted_rows(seed=seed, length=length)
    version = importlib.metadata.version("bfcl-eval")
    provenance = {
        "data_source": DATA_SOURCE,
        "source": f"bfcl-eval {version} from PyPI, https://github.com/ShishirPatil/gorilla",
        "license": "Apache-2.0",
        "settings": {"seed": seed, "validation_share": VALIDATION_SHARE},
        "rejected": rejected,
    }
    return write_dataset(out_dir, splits, provenance)
