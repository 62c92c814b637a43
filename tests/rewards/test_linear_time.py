"""One megabyte of any part costs each parser of responses seconds, not minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from gdpo_verl.rewards import code, gsm8k, tool_call, tool_turns
from gdpo_verl.rewards.code_same import same_lines, same_text
from gdpo_verl.rewards.judge_text import named_word

pytestmark = pytest.mark.slow

CALLS = '<think>a</think>\n<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>'
BOUGHT = {"calls": 1, "tool_rewards": [1.0]}
READERS: dict[str, Callable[[str], Any]] = {
    "code": lambda text: code.find_code(text, "f"),
    "a block of code": lambda text: code.find_code(f"```python\n{text}", "f"),
    "a function": lambda text: code.find_code(f"```python\ndef f(a):\n    {text}\n```", "f"),
    "printed": lambda text: same_text(text + "1", text + "1.0"),
    "printed, published": lambda text: same_lines(text + "1", text + "1.0"),
    "gsm8k": lambda text: gsm8k.compute_score("", text, "4"),
    "gsm8k, an answer": lambda text: gsm8k.compute_score("", f"<answer>{text}</answer>", "4"),
    "gsm8k, published": lambda text: gsm8k.compute_score("", text, "#### 4", strict=False),
    "tool_turns": lambda text: tool_turns.compute_score("", text, "4", BOUGHT),
    "tool_call": lambda text: tool_call.compute_score("", text, CALLS),
    "tool_call, a call": lambda text: tool_call.compute_score(
        "", f"<think>a</think>\n<tool_call>\n{text}\n</tool_call>", CALLS
    ),
    "tool_call, published": lambda text: tool_call.compute_score("", text, CALLS, strict=False),
    "judge": lambda text: named_word(text, ["1", "2", "3"], cut=False),
}
PARTS = [
    "(", "[", "{", '{"a":', '"', "'", '"""', "\\", "\\'", '\\"', "#", "# a\n", "#\n", ";", "f =",
    "async def f(\n", "def f(x):\n ", "def f():\n ...\n", "f = f\n", "```\n", "```python\n", "a```",
    "~~~\n", "- ", "1. ", "<", "</", "<think>", "</think>", "`</think>`", "<answer>", "</answer>",
    "<answer>4</answer>", "<tool_call>\n", "</tool_call>\n", "<response>", "<tool_response>",
    '<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>\n', "<|im_end|> ", "<|", "</s>",
    " ", "\n", " \n", "\t", "\r", "1", "1,", "1.", "4/", "-", "$", "*", "a", "a ", "é", "\ud800",
    "Rating: ", '{"rating": ', "####", "#### 1\n", "|", ":", ".", "{,}",
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_megabyte_is_read_in_seconds(reader: Callable[[str], Any]) -> None:
    for part in PARTS:
        text = part * (1_000_000 // len(part))
        begun = time.process_time()
        reader(text)
        assert time.process_time() - begun < 3, part
