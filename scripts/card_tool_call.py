"""The card of the tool-calling reward, its correctness alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from card import Answer, Card, others
from verl.utils.reward_score import rlla

from gdpo_verl.rewards.tool_call import HIGHEST, correctness_reward, parse_ground_truth
from gdpo_verl.tasks import bfcl

Calls = list[dict[str, Any]]
THOUGHT = "<think>The user needs it.</think>"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tool calling")
    group.add_argument("--toolrl", help="ToolRL's rlla_sft.json")


def card(args: argparse.Namespace) -> Card:
    rules = {
        "strict": lambda a: correctness_reward(a.text, a.truth) == HIGHEST,
        "strict=False (published)": lambda a: (
            correctness_reward(a.text, a.truth, strict=False) == HIGHEST
        ),
        "verl rlla": lambda a: verls(a) == HIGHEST,
    }
    made = Card("Tool calling", "correctness 3, the highest", rules)
    if args.toolrl:
        rows = [row["output"] for row in json.loads(Path(args.toolrl).expanduser().read_text())]
        asked = [row for row in rows if parse_ground_truth(row).calls]
        made.sources.append(
            f"ToolRL: {len(rows):,} dialogues with full answers, of which {len(asked):,} call."
        )
        made.right("ToolRL: its own answers", [Answer(row, row) for row in asked])
        count(made, "ToolRL", [parse_ground_truth(row).calls for row in asked])
    accepted = list(accepted_calls())
    made.sources.append(
        f"bfcl-eval {version('bfcl-eval')}: the possible answers of {len(accepted):,} single-turn "
        "questions; the first of each is the ground truth."
    )
    count(made, "BFCL", [first for first, _ in accepted])
    made.right("BFCL: the last possible answer, where it is another", [
        written(last, first) for first, last in accepted if first != last
    ])  # fmt: skip
    made.notes += [
        "The formats are written from the documentation of the models' chat templates and of "
        "vLLM's tool parsers. Qwen's and Hermes' is the one asked for, but for `arguments` and a "
        "block for each call; the others are not what the prompt asks for, and no rule reads them.",
        "The last possible answer differs by values that the leaderboard accepts; these rewards "
        "know one ground truth.",
        f"verl {version('verl')}; where its rule raises, it paid nothing.",
    ]
    return made


def verls(answer: Answer) -> float:
    rule = rlla.customize_correctness_reward_tool
    messages, truths = [[{"content": answer.text.strip()}]], [answer.truth]
    try:
        return float(rule(messages, truths, 0, 3.0, -3.0, False)[0])
    except Exception:
        return -3.0


def accepted_calls() -> Iterator[tuple[Calls, Calls]]:
    """The first and the last possible answer of each question of BFCL."""
    for category in bfcl.CATEGORIES:
        for _, _, accepted in bfcl.read(category):
            backwards = [
                {name: {key: values[::-1] for key, values in given.items()}}
                for call in accepted
                for name, given in call.items()
            ]
            yield as_calls(bfcl.first_answer(accepted)), as_calls(bfcl.first_answer(backwards))


def as_calls(pairs: list[tuple[str, dict[str, Any]]]) -> Calls:
    return [{"name": name, "parameters": parameters} for name, parameters in pairs]


def count(made: Card, name: str, rows: list[Calls]) -> None:
    for form, write in FORMATS.items():
        made.right(f"{name}: {form}", (Answer(f"{THOUGHT}\n{write(r)}", asked(r)) for r in rows))
    pairs = [(row, other) for row, other in zip(rows, others(rows), strict=True) if row != other]
    made.wrong(f"{name}: another row's calls", (written(other, row) for row, other in pairs))
    for attack, spoil in ATTACKS.items():
        made.wrong(f"{name}: {attack}", (
            written(spoil(row), row) for row in rows if lines(spoil(row)) != lines(row)
        ))  # fmt: skip
    everything = [call for row in rows[:40] for call in row]
    made.wrong(f"{name}: the calls of 40 rows", (written(everything, row) for row in rows[:40]))
    thoughts = (Answer(f"<think>{asked(row)}</think>", asked(row)) for row in rows)
    made.wrong(f"{name}: right in the thought alone", thoughts)


def written(calls: Calls, truth: Calls) -> Answer:
    return Answer(f"{THOUGHT}\n{asked(calls)}", asked(truth))


def lines(calls: Calls, parameters: str = "parameters", separator: str = "\n") -> str:
    """A JSON object for each call, the parameters under a key of one's choice."""
    return separator.join(
        json.dumps({"name": call["name"], parameters: call["parameters"]}, ensure_ascii=False)
        for call in calls
    )


def asked(calls: Calls) -> str:
    return f"<tool_call>\n{lines(calls)}\n</tool_call>"


def one_a_block(calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{lines([call], 'arguments')}\n</tool_call>" for call in calls)


def deepseek(calls: Calls) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{call['name']}\n```json\n"
        f"{json.dumps(call['parameters'])}\n```<｜tool▁call▁end｜>"
        for call in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


FORMATS: dict[str, Callable[[Calls], str]] = {
    "the form asked for": asked,
    "pretty-printed": lambda calls: (
        "<tool_call>\n" + "\n".join(json.dumps(c, indent=2) for c in calls) + "\n</tool_call>"
    ),
    "one JSON list": lambda calls: f"<tool_call>\n{json.dumps(calls)}\n</tool_call>",
    "Qwen, Hermes": one_a_block,
    "Qwen, with its end token": lambda calls: one_a_block(calls) + "<|im_end|>",
    "Llama": lambda calls: "<|python_tag|>" + lines(calls, separator="; ") + "<|eom_id|>",
    "Mistral": lambda calls: "[TOOL_CALLS][" + lines(calls, "arguments", ", ") + "]</s>",
    "DeepSeek": deepseek,
}


def with_values(calls: Calls, change: Callable[[Any], Any]) -> Calls:
    return [
        {**call, "parameters": {key: change(value) for key, value in call["parameters"].items()}}
        for call in calls
    ]


ATTACKS: dict[str, Callable[[Calls], Calls]] = {
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
