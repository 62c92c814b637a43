"""The first steps of every reward: drop special tokens at the end, leave the thought."""

from __future__ import annotations

import re
from collections import deque

THINK, END_THINK = "<think>", "</think>"
# What chat templates end a turn with: Qwen's <|im_end|>, DeepSeek's in full-width bars, and so on.
_END = r"(?:<[|｜][^\s<>|｜]{1,40}[|｜]>|</s>|<eo[sa]>|<EOS_TOKEN>|\[EOS\]|<end_of_turn>|<turn\|>)"
_AT_END = re.compile(_END + r"\Z")
_SPACE_OR_TOKENS = re.compile(rf"(?:\s+|{_END})+")


def assistant_text(text: str) -> str:
    """The text without the white space around it and the special tokens at its end.

    >>> assistant_text(" So. <|im_end|>\\n<|endoftext|>")
    'So.'
    """
    text = text.strip()
    if not _AT_END.search(text[-50:]):
        return text
    (last,) = deque(_SPACE_OR_TOKENS.finditer(text), maxlen=1)
    return text[: last.start()]


def behind_thought(text: str) -> str | None:
    """The text behind the last `</think>`; None when another thought begins there.

    Without a thought that is the whole text, and where the chat template itself opened
    `<think>`, so that only its end is in the answer, the same as with it.

    >>> behind_thought("<think>2 or 3?</think> It is 3."), behind_thought("<think>2 or")
    (' It is 3.', None)
    """
    rest = text.rpartition(END_THINK)[2]
    return None if THINK in rest else rest


def has_thought(text: str, end: int) -> bool:
    """Return whether a thought that says something reaches from the text's beginning to `end`.

    >>> has_thought("<think>2 + 2</think> 4", 20), has_thought("4", 0)
    (True, False)
    """
    # Without an end, a negative index would count from behind.
    thought = text[len(THINK) : max(0, end - len(END_THINK))]
    return text.startswith(THINK) and bool(thought.strip())


def apart(gap: str) -> bool:
    """Return whether two parts of an answer stand on lines of their own: nothing else is between.

    >>> apart(" \\n"), apart(" "), apart("\\nSo\\n")
    (True, False, False)
    """
    return gap.isspace() and "\n" in gap


def opened_thought(prompt: str) -> str:
    """The end of a prompt that opens the answer's thought, as many chat templates do; else ''.

    >>> opened_thought("<|assistant|>\\n<think>\\n"), opened_thought("<think>\\n\\n</think>\\n")
    ('<think>\\n', '')
    """
    _, tag, rest = prompt.rpartition(THINK)
    return tag + rest if not rest.strip() else ""
