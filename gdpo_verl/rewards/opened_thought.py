"""A thought that the prompt itself opens, as the chat templates of many reasoning models do."""

from __future__ import annotations

THINK = "<think>"


def opened_thought(prompt: str) -> str:
    """The end of a prompt that opens the answer's thought; '' when the answer opens its own.

    The policy's answer then starts inside the thought and holds no opening tag.

    >>> opened_thought("<|assistant|>\\n<think>\\n"), opened_thought("<think>\\n\\n</think>\\n")
    ('<think>\\n', '')
    """
    _, tag, rest = prompt.rpartition(THINK)
    return tag + rest if not rest.strip() else ""
