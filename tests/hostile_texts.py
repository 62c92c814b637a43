"""Texts of any size that are slow to read.

Calls are as slow as they get at the length up to which they are read; a megabyte of them is
refused. The rest is what regular expressions, or a walk from each tag to the end, would be slow on.
"""

from __future__ import annotations

from collections.abc import Callable

from gdpo_verl.rewards.tool_text import LONGEST

Make = Callable[[int], str]

THOUGHT = "<think>Look it up.</think>"
ONE = '{"name": "weather", "parameters": {"city": "Paris", "days": 1}}'
START, END = f"{THOUGHT}\n<tool_call>\n", "\n</tool_call>"
VALUE = START + '{"name": "weather", "parameters": {"city": '
FIVE = [ONE.replace("1", str(days)) for days in range(1, 6)]
TRUTH = f"<tool_call>\n{chr(10).join(FIVE)}\n</tool_call>\n<response>So.</response>"
TWENTY = [f'{{"name": "weather", "parameters": {{"city": {i}, "days": {i}}}}}' for i in range(20)]
LONG_TRUTH = f"<tool_call>\n{chr(10).join(TWENTY)}\n</tool_call>"


def filled(unit: str, start: str = START, end: str = END) -> Make:
    return lambda size: start + unit * ((size - len(start) - len(end)) // len(unit)) + end


def counted(unit: str, start: str = START, end: str = END) -> Make:
    """As `filled`, with another number in each copy of the unit."""

    def make(size: int) -> str:
        return start + "".join(unit % i for i in range(size // len(unit % 12345))) + end

    return make


def names_of_one_hash(size: int) -> str:
    """Numbers for names, which the published rules take."""
    names = ((2**61 - 1) * (i + 1) for i in range(size // 36))
    return START + "\n".join(f'{{"name":{name}}}' for name in names) + END


def read(make: Make) -> Make:
    return lambda size: make(min(size, LONGEST))


SHORTEST = '{"name":"","parameters":{}}\n'
SHARED = '{"name":"weather","parameters":{"city":%d}}\n'
NEAR = '{"name":"weather","parameters":{"city":%d,"days":7}}\n'
DEEP = "[" * 900 + "]" * 900 + ","
WORST: dict[str, Make] = {
    "near calls that are read": read(counted(NEAR)),
    "lists 900 deep that are read": read(filled(DEEP, VALUE + "[", "1]}}" + END)),
    "lines of no calls that are read": read(filled("5\n")),
    "names of one hash that are read": read(names_of_one_hash),
    "unclosed calls": filled("<tool_call>", "", ""),
    "ends of thought and newlines": filled("</think>" + "\n" * 999, "<think>", ""),
    "seams": filled("</think>\n<tool_call>\n", "<think>", END),
    "responses": filled("<response>", f"{THOUGHT}\n", ""),
    "opening brackets": filled("<", "", ""),
    "newlines": filled("\n", THOUGHT, f"x{START}{ONE}{END}"),
    "special tokens": filled("<|im_end|> ", "x", ""),
    "special tokens and a letter": filled("<|im_end|> ", "x", "x</s>"),
    "spaces between tokens": filled(" ", "x<|im_end|>", "<|im_end|>"),
    "answer of commas": filled(",999", f"{THOUGHT}\n<answer>1", "</answer>"),
    "answers": filled("<answer>", "", ""),
    "boxes": filled("\\boxed{", "", ""),
    "boxes of blanks": filled("\\boxed" + " " * 900, "", ""),
    "blanks before a backtick": filled(" ", "```", "`"),
    "fences of other languages": counted("```x%d\n```\n", "", ""),
    "indented fences": filled(" " * 99 + "```\n", "", ""),
}
