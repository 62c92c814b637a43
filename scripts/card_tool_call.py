"""The card of the tool-calling reward, its correctness alone."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cards import Answer, Card, read_lines, shifted
from verl.utils.reward_score import rlla

from gdpo_verl.rewards.tool_call import HIGHEST, correctness_reward, parse_ground_truth
from gdpo_verl.rewards.tool_text import read
from gdpo_verl.tasks import bfcl

Calls = list[dict[str, Any]]
THOUGHT = "<think>The user needs it.</think>"


# What wrote the published answers, and its folder there.
MODELS = {
    "Hermes 2 Pro (Llama 3 8B)": "NousResearch_Hermes-2-Pro-Llama-3-8B",
    "Hermes 2 Pro (Mistral 7B)": "NousResearch_Hermes-2-Pro-Mistral-7B",
    "Llama 3 8B": "meta-llama_Meta-Llama-3-8B-Instruct",
    "Mistral Large 2407": "mistral-large-2407",
    "DeepSeek Coder 6.7B": "deepseek-ai_deepseek-coder-6.7b-instruct",
}
# A category, and its name in the files of answers.
CATEGORIES = {
    "simple_python": "simple",
    "multiple": "multiple_function",
    "parallel": "parallel_function",
    "parallel_multiple": "parallel_multiple_function",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tool calling")
    group.add_argument("--toolrl", help="ToolRL's rlla_sft.json")
    group.add_argument(
        "--bfcl-results", type=Path, help="2024-08-11/ of github.com/HuanzhiMao/BFCL-Result"
    )


def card(args: argparse.Namespace) -> Card:
    rules = {
        "strict": lambda a: correctness_reward(a.text, a.truth) == HIGHEST,
        "strict=False (published)": lambda a: (
            correctness_reward(a.text, a.truth, strict=False) == HIGHEST
        ),
        "verl rlla": lambda a: verls(a) == HIGHEST,
    }
    made = Card("Tool calling", rules)
    if args.toolrl:
        rows = [row["output"] for row in json.loads(Path(args.toolrl).expanduser().read_text())]
        asked = [row for row in rows if parse_ground_truth(row).calls]
        made.count_right("ToolRL: its own answers", [Answer(row, row) for row in asked])
        count(made, "ToolRL", [parse_ground_truth(row).calls for row in asked])
    accepted = list(accepted_calls())
    count(made, "BFCL", [first for first, _ in accepted])
    made.count_right("BFCL: the last possible answer, where it is another", [
        written(last, first) for first, last in accepted if first != last
    ])  # fmt: skip
    if args.bfcl_results:
        for model, folder in MODELS.items():
            made.count_right(
                f"BFCL: real answers of {model}, called right there",
                real_answers(args.bfcl_results, folder),
            )
    return made


def real_answers(results: Path, folder: str) -> Iterator[Answer]:
    for category, name in CATEGORIES.items():
        file = f"gorilla_openfunctions_v1_test_{name}_result.json"
        answers = read_lines(results / "result" / folder / file)
        failed = read_lines(results / "score" / folder / f"{name}_score.json")[1:]
        wrong = {row["id"] - 1 for row in failed}
        questions = list(bfcl.read_questions(category))
        for number, (row, question) in enumerate(zip(answers, questions, strict=True)):
            if number not in wrong:
                text = f"{THOUGHT}\n{row['result'].strip()}"
                truth = bfcl.first_answer(list(nearest(question[2], read(text).calls)))
                yield Answer(text, asked(as_calls(truth)))


def nearest(accepted: Calls, made: Calls) -> Iterator[dict[str, Any]]:
    """The accepted calls, with the values of the calls that were made in front."""
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
        for _, _, accepted in bfcl.read_questions(category):
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
        made.count_right(
            f"{name}: {form}", (Answer(f"{THOUGHT}\n{write(r)}", asked(r)) for r in rows)
        )
    pairs = [(row, other) for row, other in zip(rows, shifted(rows), strict=True) if row != other]
    made.count_wrong(f"{name}: another row's calls", (written(other, row) for row, other in pairs))
    for attack, spoil in ATTACKS.items():
        made.count_wrong(f"{name}: {attack}", (
            written(spoil(row), row) for row in rows if lines(spoil(row)) != lines(row)
        ))  # fmt: skip
    everything = [call for row in rows[:40] for call in row]
    made.count_wrong(
        f"{name}: the calls of 40 rows", (written(everything, row) for row in rows[:40])
    )
    thoughts = (Answer(f"<think>{asked(row)}</think>", asked(row)) for row in rows)
    made.count_wrong(f"{name}: right in the thought alone", thoughts)
    tags = [with_values(row, lambda value: f"{value}</think>") for row in rows]
    made.count_right(f"{name}: </think> in the values", (
        Answer(f"{THOUGHT} {asked(row)}", asked(row)) for row in tags
    ))  # fmt: skip


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
    "parameters as JSON in a text": lambda calls: asked(
        [{**call, "parameters": json.dumps(call["parameters"])} for call in calls]
    ),
    "OpenAI, a nested function": lambda calls: "\n".join(
        f'<tool_call>\n{{"function": {lines([call], "arguments")}}}\n</tool_call>' for call in calls
    ),
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
