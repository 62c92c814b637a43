"""A judge's reply, read: what ``docs/judge_cases.jsonl`` promises, and odd replies."""

import json
import math
from pathlib import Path

import pytest

from gdpo_verl.rewards.judge import Judge

CASES = Path(__file__).parents[2] / "docs" / "judge_cases.jsonl"
FIVE = [1, 2, 3, 4, 5]


def token(**logprobs):
    """A token with its alternatives, the first of them chosen."""
    tops = [{"token": name, "logprob": value} for name, value in logprobs.items()]
    return {"token": tops[0]["token"], "top_logprobs": tops}


def answer(text, *tokens):
    """A choice of a chat completion; of each token its alternatives with their probabilities."""
    content = []
    for each in tokens:
        logprobs = {name: math.log(p) for name, p in each.items()}
        content.append(token(**logprobs))
    return {"message": {"content": text}, "logprobs": {"content": content} if tokens else None}


def value_of(scale, choice):
    return Judge.read({"question": "{response}", "scale": scale}).value_of(choice)


@pytest.mark.parametrize("line", CASES.open(encoding="utf-8"))
def test_a_reply_of_three_layouts_has_a_value_and_no_other_has(line):
    case = json.loads(line)
    scale, word = case["scale"], case["expected"]
    value = None if word is None else scale.index(word) / (len(scale) - 1)
    choice = answer(case["answer"], *case.get("probabilities", ()))
    choice["finish_reason"] = case.get("finish_reason", "stop")
    expected = case.get("value", value)
    assert value_of(scale, choice) == (expected and pytest.approx(expected, abs=1e-12))


FORCED = -9999.0  # what vLLM and OpenAI write for a token that was imposed


ODD = [
    {"4": FORCED, "5": -0.1},
    {"4": -0.5, "5": FORCED},
    {"4": -math.inf, "1": -math.inf},
    {"4": math.nan},
    {"4": -0.1, "5": math.nan},
    {"4": math.inf},
    {"4": 1e5},
    {"4": None},
]
OF_TOKENS = [{"content": [token(**logprobs)]} for logprobs in ODD]


@pytest.mark.parametrize(
    "logprobs",
    [
        *OF_TOKENS,
        {"content": []},
        {"content": [{"token": None, "top_logprobs": []}]},
        {"content": [{"token": "4"}]},
        {"content": [{"token": "4", "top_logprobs": [7]}]},
        {"tokens": ["4"], "top_logprobs": [{"4": -0.1}]},  # as of completions
        None,
    ],
    ids=str,
)
def test_where_the_probabilities_tell_nothing_the_text_decides(logprobs):
    choice = {"message": {"content": "4"}, "logprobs": logprobs}
    assert value_of(FIVE, choice) == 0.75
