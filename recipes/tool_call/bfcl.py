"""Questions of the Berkeley Function-Calling Leaderboard (BFCL), from the package ``bfcl-eval``.

    question   {"id": "simple_python_0", "question": [[{"role": "user", "content": "…"}]],
                "function": [{"name": "calculate_triangle_area", "parameters": {…}, …}]}
    answers    [{"calculate_triangle_area": {"base": [10], "height": [5], "unit": ["units", ""]}}]

https://github.com/ShishirPatil/gorilla, Apache-2.0. The rows are all single-turn Python questions
that have accepted answers. The ground truth contains the first listed answer for each argument. A
row is kept only if the leaderboard's own checker accepts its ground truth. The provenance lists the
other rows with the checker's reason.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gdpo_verl.recipes.tool_call import prompt

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.examples import Call
from gdpo_verl.lab.tasks.rows import BadRow, Row, make_row
from gdpo_verl.lab.tasks.source import Record, RecordSource
from gdpo_verl.rewards.bfcl import MODEL, load_module, package

DATA_SOURCE = "bfcl"
REPOSITORY = "https://github.com/ShishirPatil/gorilla"
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
    """Replace each list of accepted values by its first value.

    A key whose first value is "" is left out, because "" marks an optional argument.
    """
    if isinstance(value, Mapping):
        chosen = {}
        for key, accepted in value.items():
            choices = accepted if isinstance(accepted, list) else [accepted]
            if choices and choices[0] != "":
                chosen[key] = _first(choices[0])
        return chosen
    return [_first(item) for item in value] if isinstance(value, list) else value


def first_answer(accepted: list[dict[str, Any]]) -> list[Call]:
    """Return the calls with the first accepted value of each argument.

    >>> first_answer([{"area": {"side": [3, 3.0], "unit": ["", "cm"]}}])
    [('area', {'side': 3})]
    """
    return [(name, _first(arguments)) for call in accepted for name, arguments in call.items()]


def tool_block(function: Mapping[str, Any]) -> str:
    """Return the description of a leaderboard's function for a prompt."""
    schema = function["parameters"]
    required = schema.get("required", [])
    parameters = {
        name: details if name in required else {**details, "optional": True}
        for name, details in schema["properties"].items()
    }
    return prompt.tool_block(function["name"], function["description"], parameters)


def chat(question: Mapping[str, Any], frame: prompt.PromptFrame) -> list[dict[str, str]]:
    """Return the prompt for the first turn of a question."""
    blocks = [tool_block(function) for function in question["function"]]
    history = [prompt.turn(turn["role"], turn["content"]) for turn in question["question"][0]]
    return prompt.messages(blocks, history, frame)


def questions(seed: int = 0) -> Iterator[Record]:
    """Yield every question with its category and accepted answers.

    The seed divides the questions into training and validation, nine to one.
    """
    utils = load_module("utils")
    for category in CATEGORIES:
        entries = utils.load_dataset_entry(category, include_language_specific_hint=False)
        accepted = utils.load_ground_truth_entry(category)
        for question, answer in zip(entries, accepted, strict=True):
            # The split depends on the text, so that equal questions are in the same split.
            text = "\n".join(turn["content"] for turn in question["question"][0])
            digest = hashlib.sha256(f"{seed}:{text}".encode()).digest()
            share = int.from_bytes(digest[:8], "big") / 2**64
            split = "validation" if share < VALIDATION_SHARE else "train"
            values = {"category": category, "accepted": answer["ground_truth"], **question}
            yield Record(f"BFCL_v4_{category}.json", question["id"], split, values)


def convert(record: Record) -> Row:
    """Convert to verl's columns; raise `BadRow` if the checker rejects the ground truth."""
    values = record.values
    category = values["category"]
    calls = first_answer(values["accepted"])
    checker = load_module("eval_checker.ast_eval.ast_checker")
    verdict = checker.ast_checker(
        values["function"],
        [{name: arguments} for name, arguments in calls],
        values["accepted"],
        checker.Language.PYTHON,
        category,
        MODEL,
    )
    if not verdict["valid"]:  # for these few rows, no response could get the full reward
        raise BadRow("checker", "; ".join(map(str, verdict["error"])))
    names = " and ".join(dict.fromkeys(name for name, _ in calls))
    return make_row(
        DATA_SOURCE,
        chat(values, prompt.PromptFrame()),
        prompt.reference_answer(f"use {names}", calls),
        ability="tool_call",
        extra_info={"id": values["id"], "category": category},
    )


def prepare(out_dir: Path, *, seed: int = 0, **options: Any) -> dict[str, Any]:
    """Write the accepted questions and return their provenance; see `build` for the options."""
    package()  # raises an error with a remedy if bfcl-eval is missing
    origin = f"bfcl-eval {importlib.metadata.version('bfcl-eval')} from PyPI, {REPOSITORY}"
    source = RecordSource(questions(seed), {"package": origin})
    about = {"data_source": DATA_SOURCE, "license": "Apache-2.0"}
    return build(out_dir, source, convert, about=about, seed=seed, **options)
