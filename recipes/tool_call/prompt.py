"""The prompt and the reference answer of a tool-calling row.

The layout is that of the tool-calling task in the paper of GDPO (https://arxiv.org/abs/2601.05242,
after ToolRL), with shorter texts. The system message lists the tools and describes the output
format. The user message contains the dialogue so far.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpo_verl.rewards.thought import END_THINK, THINK
from gdpo_verl.rewards.tool_text import CLOSE as CALL_CLOSE
from gdpo_verl.rewards.tool_text import OPEN as CALL_OPEN

HEADER = """\
You are an assistant that solves the user's task by calling tools.

**Available Tools**
You can use these tools:
"""

FOOTER = """
**Steps for Each Turn**
1. Think: find the tool that fits the request.
2. Call: give its name and its parameters.

**Output Format**
<think> your thoughts </think>
<tool_call>
{"name": "tool name", "parameters": {"parameter name": "value"}}
</tool_call>

**Important Notes**
1. Always think first, and write nothing outside the tags.
2. Several calls are several lines, each a JSON object of its own."""

HISTORY = "**Dialogue Records History**"

_TOOLS = re.compile(r"^1\. Name: .*^Parameters: [^\n]*\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class PromptFrame:
    """The fixed texts of a system message, before and after the tools."""

    header: str = HEADER
    footer: str = FOOTER


def parse_frame(system: str) -> PromptFrame | None:
    """Read the fixed texts of a system message, also of ToolRL's; None if it lists no tools.

    >>> parse_frame("Tools:\\n1. Name: f\\nDescription: d\\nParameters: {}\\n\\nThink first.")
    PromptFrame(header='Tools:\\n', footer='\\nThink first.')
    """
    tools = _TOOLS.search(system)
    return PromptFrame(system[: tools.start()], system[tools.end() :]) if tools else None


def tool_block(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """Return the three lines that describe a tool, without the number in front of them."""
    # Each field is one line, as in ToolRL's data. Descriptions from other data have several lines.
    one_line = " ".join(description.split())
    schema = json.dumps(parameters, ensure_ascii=False)
    return f". Name: {name}\nDescription: {one_line}\nParameters: {schema}\n"


def turn(role: str, text: str) -> str:
    """Return a turn of the dialogue as a line of the history."""
    return f"<{role}> {text} </{role}>"


def messages(
    tool_blocks: Sequence[str], history: Sequence[str], frame: PromptFrame = PromptFrame()
) -> list[dict[str, str]]:
    """Return the prompt of one row.

    Args:
      tool_blocks: the description of each tool, from `tool_block`.
      history: the lines of the dialogue so far, from `turn`.
      frame: the fixed texts of the system message.
    """
    tools = "".join(f"{number}{block}" for number, block in enumerate(tool_blocks, start=1))
    return [
        {"role": "system", "content": f"{frame.header}{tools}{frame.footer}"},
        {"role": "user", "content": "\n".join([HISTORY, *history])},
    ]


def reference_answer(thought: str, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the ground truth: a thought, and a line for each call (name, parameters)."""
    objects = [{"name": name, "parameters": parameters} for name, parameters in calls]
    lines = "\n".join(json.dumps(value, ensure_ascii=False) for value in objects)
    return f"{THINK} {thought} {END_THINK}\n{CALL_OPEN}\n{lines}\n{CALL_CLOSE}"
