"""The first steps of every reward function: drop special tokens at the end, find the thought.

A thought is the text between `<think>` and `</think>` with which many models begin a response.
"""

from __future__ import annotations

import re
from collections import deque

THINK, END_THINK = "<think>", "</think>"
# The tokens with which chat templates end a turn, such as Qwen's <|im_end|>. DeepSeek's tokens have
# full-width bars.
_END = r"(?:<[|｜][^\s<>|｜]{1,40}[|｜]>|</s>|<eo[sa]>|<EOS_TOKEN>|\[EOS\]|<end_of_turn>|<turn\|>)"
_AT_END = re.compile(_END + r"\Z")
_SPACE_OR_TOKENS = re.compile(rf"(?:\s+|{_END})+")


def assistant_text(text: str) -> str:
    """Return the text without white space around it and special tokens at its end.

    >>> assistant_text(" So. <|im_end|>\\n<|endoftext|>")
    'So.'
    """
    text = text.strip()
    if not _AT_END.search(text[-50:]):
        return text
    (last,) = deque(_SPACE_OR_TOKENS.finditer(text), maxlen=1)
    return text[: last.start()]


def behind_thought(text: str) -> str | None:
    """Return the text after the last `</think>`; None if another thought begins there.

    Without a thought, the result is the complete text. If the chat template has opened `<think>`,
    the response has only the closing tag. The result is then the same as with both tags.

    >>> behind_thought("<think>2 or 3?</think> It is 3."), behind_thought("<think>2 or")
    (' It is 3.', None)
    """
    rest = text.rpartition(END_THINK)[2]
    return None if THINK in rest else rest


def has_thought(text: str, end: int) -> bool:
    """Return whether a thought with content reaches from the beginning of the text to `end`.

    >>> has_thought("<think>2 + 2</think> 4", 20), has_thought("4", 0)
    (True, False)
    """
    # For a text without `</think>`, `end` may be 0. A negative index would then count from the end
    # of the text.
    thought = text[len(THINK) : max(0, end - len(END_THINK))]
    return text.startswith(THINK) and bool(thought.strip())


def apart(gap: str) -> bool:
    """Return whether the text between two parts of a response is white space with a newline.

    >>> apart(" \\n"), apart(" "), apart("\\nSo\\n")
    (True, False, False)
    """
    return gap.isspace() and "\n" in gap


def opened_thought(prompt: str) -> str:
    """Return the end of a prompt that opens the thought, as many chat templates do, else ''.

    >>> opened_thought("<|assistant|>\\n<think>\\n"), opened_thought("<think>\\n\\n</think>\\n")
    ('<think>\\n', '')
    """
    _, tag, rest = prompt.rpartition(THINK)
    return tag + rest if not rest.strip() else ""
