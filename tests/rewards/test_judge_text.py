"""A judge's reply in words: what ``docs/judge_cases.jsonl`` promises, and the time of any text."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gdpo_verl.rewards.judge import Judge

CASES = Path(__file__).parents[2] / "docs" / "judge_cases.jsonl"


def value_of(scale: list[Any], text: str, finish_reason: str = "stop") -> float | None:
    judge = Judge.read({"question": "{response}", "scale": scale})
    return judge.value_of({"message": {"content": text}, "finish_reason": finish_reason})


@pytest.mark.parametrize("line", CASES.open(encoding="utf-8"))
def test_a_reply_has_the_value_that_a_person_would_take(line: str) -> None:
    case = json.loads(line)
    scale, word = case["scale"], case["expected"]
    value = None if word is None else scale.index(word) / (len(scale) - 1)
    assert value_of(scale, case["answer"], case.get("finish_reason", "stop")) == value


@pytest.mark.parametrize(
    "part",
    ["1,", "1, ", "1 ", "1 (", "1 or ", "1.", "1", "4 because ", "not ", "n't ", "<", "</a", "- ",
     "so ", "max", "out of a ", "is", "a.", "\n", "\n1. ", "x ", "[", "?", "*", "\ud800", "but "],
)  # fmt: skip
def test_reading_any_text_takes_linear_time(part: str) -> None:
    def seconds(length: int) -> float:
        text = part * (length // len(part)) + "4"
        begun = time.process_time()
        value_of([1, 2, 3, 4, 5], text)
        return time.process_time() - begun

    seconds(1000)  # compiles
    small = min(seconds(5_000) for _ in range(3))
    assert seconds(40_000) < 24 * small + 0.1  # 64 times as long, were it quadratic
