"""Reward accuracy of tool calling: dialogues, questions and models' responses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cards import Answer, Card, shifted
from gdpo_verl.recipes.tool_call import bfcl
from page import read_lines

from gdpo_verl.rewards.tool_call import HIGHEST, correctness_reward, parse_ground_truth
from gdpo_verl.rewards.tool_text import read

Calls = list[dict[str, Any]]
THOUGHT = "<think>The user needs it.</think>"
# The models that wrote the published responses, and their folders.
MODELS = {
    "Hermes 2 Pro (Llama 3 8B)": "NousResearch_Hermes-2-Pro-Llama-3-8B",
    "Hermes 2 Pro (Mistral 7B)": "NousResearch_Hermes-2-Pro-Mistral-7B",
}
# A category, and its name in the files of responses.
CATEGORIES = {
    "simple_python": "simple",
    "multiple": "multiple_function",
    "parallel": "parallel_function",
    "parallel_multiple": "parallel_multiple_function",
}


def lines(calls: Calls, parameters: str = "parameters") -> str:
    """Write a JSON object for each call, with the parameters under the given key."""
    return "\n".join(
        json.dumps({"name": call["name"], parameters: call["parameters"]}, ensure_ascii=False)
        for call in calls
    )


def asked(calls: Calls) -> str:
    return f"<tool_call>\n{lines(calls)}\n</tool_call>"


def with_values(calls: Calls, change: Callable[[Any], Any]) -> Calls:
    return [
        {**call, "parameters": {key: change(value) for key, value in call["parameters"].items()}}
        for call in calls
    ]


FORMATS: dict[str, Callable[[Calls], str]] = {
    "the form asked for": asked,
    "pretty-printed": lambda calls: (
        "<tool_call>\n" + "\n".join(json.dumps(c, indent=2) for c in calls) + "\n</tool_call>"
    ),
    "one JSON list": lambda calls: f"<tool_call>\n{json.dumps(calls)}\n</tool_call>",
    "Qwen, Hermes": lambda calls: "\n".join(
        f"<tool_call>\n{lines([call], 'arguments')}\n</tool_call>" for call in calls
    ),
    "parameters as JSON in a text": lambda calls: asked(
        [{**call, "parameters": json.dumps(call["parameters"])} for call in calls]
    ),
    "OpenAI, a nested function": lambda calls: "\n".join(
        f'<tool_call>\n{{"function": {lines([call], "arguments")}}}\n</tool_call>' for call in calls
    ),
}
SPOILT: dict[str, Callable[[Calls], Calls]] = {
    "no values": lambda calls: with_values(calls, lambda value: None),
    "true and false as numbers": lambda calls: with_values(
        calls, lambda value: int(value) if isinstance(value, bool) else value
    ),
    "the last call left out": lambda calls: calls[:-1] or [{"name": "", "parameters": {}}],
    "each call twice": lambda calls: [call for call in calls for _ in range(2)],
    "a junk parameter": lambda calls: [
        {**call, "parameters": {**call["parameters"], "junk": 0}} for call in calls
    ],
}


def make_card(args: argparse.Namespace) -> Card:
    from verl.utils.reward_score import rlla

    def verls(answer: Answer) -> bool:
        given = [[{"content": answer.text.strip()}]], [answer.truth], 0, 3.0, -3.0, False
        # It raises on much that it cannot parse, which gives no reward.
        try:
            return float(rlla.customize_correctness_reward_tool(*given)[0]) == HIGHEST
        except Exception:
            return False

    def ours(answer: Answer, **settings: Any) -> bool:
        return correctness_reward(answer.text, answer.truth, **settings) == HIGHEST

    rules = {
        "strict": ours,
        "strict=False (published)": partial(ours, strict=False),
        "verl rlla": verls,
    }
    card = Card("Tool calling", rules)
    for path in args.toolrl:
        rows = [row["output"] for row in json.loads(path.read_text(encoding="utf-8"))]
        # Rows without calls have nothing to change below.
        known = [(row, found) for row in rows if (found := parse_ground_truth(row).calls)]
        card.count(True, "ToolRL: its own answers", [Answer(row, row) for row, _ in known])
        count_calls(card, "ToolRL", [found for _, found in known])
    count_calls(card, "BFCL", [as_calls(each.values["accepted"]) for each in bfcl.questions()])
    for results in args.bfcl_results:
        for model, folder in MODELS.items():
            name = f"BFCL: real answers of {model}, called right there"
            card.count(True, name, leaderboard_answers(results, folder))
    return card


def count_calls(card: Card, name: str, rows: list[Calls]) -> None:
    for form, write in FORMATS.items():
        texts = (Answer(f"{THOUGHT}\n{write(row)}", asked(row)) for row in rows)
        card.count(True, f"{name}: {form}", texts)
    tags = [with_values(row, lambda value: f"{value}</think>") for row in rows]
    card.count(True, f"{name}: </think> in the values", (written(row, row) for row in tags))
    wrong = {"another row's calls": shifted(rows)}
    wrong |= {attack: list(map(spoil, rows)) for attack, spoil in SPOILT.items()}
    for attack, made in wrong.items():
        # A change that leaves a row as it is, is not an attack.
        pairs = zip(made, rows, strict=True)
        changed = (written(calls, row) for calls, row in pairs if lines(calls) != lines(row))
        card.count(False, f"{name}: {attack}", changed)
    everything = [call for row in rows[:40] for call in row]
    several = (written(everything, row) for row in rows[:40])
    card.count(False, f"{name}: the calls of 40 rows", several)
    thoughts = (Answer(f"<think>{asked(row)}</think>", asked(row)) for row in rows)
    card.count(False, f"{name}: right in the thought alone", thoughts)


def written(calls: Calls, truth: Calls) -> Answer:
    return Answer(f"{THOUGHT}\n{asked(calls)}", asked(truth))


def as_calls(accepted: Calls) -> Calls:
    """Return the first possible answer to a question of BFCL."""
    pairs = bfcl.first_answer(accepted)
    return [{"name": name, "parameters": parameters} for name, parameters in pairs]


def leaderboard_answers(results: Path, folder: str) -> Iterator[Answer]:
    for category, name in CATEGORIES.items():
        file = f"gorilla_openfunctions_v1_test_{name}_result.json"
        answers = read_lines(results / "result" / folder / file)
        # The first line of the scores is their sum; ids count from 1.
        failed = read_lines(results / "score" / folder / f"{name}_score.json")[1:]
        wrong = {row["id"] - 1 for row in failed}
        questions = [
            each.values for each in bfcl.questions() if each.values["category"] == category
        ]
        for number, (row, values) in enumerate(zip(answers, questions, strict=True)):
            if number not in wrong:
                text = f"{THOUGHT}\n{row['result'].strip()}"
                truth = as_calls(list(nearest(values["accepted"], read(text).calls)))
                yield Answer(text, asked(truth))


def nearest(accepted: Calls, made: Calls) -> Iterator[dict[str, Any]]:
    """Return the accepted calls, with the values of the calls that were made first."""
    left = list(made)
    for call in accepted:
        ((name, given),) = call.items()
        # The leaderboard lets models write _ for a point in a name.
        own = next((c for c in left if c["name"] in (name, name.replace(".", "_"))), None)
        if own is not None:
            left.remove(own)
            name, values = own["name"], own["parameters"]
            given = {
                key: sorted(choice, key=lambda value, key=key: value != values.get(key, ""))
                for key, choice in given.items()
            }
        yield {name: given}
