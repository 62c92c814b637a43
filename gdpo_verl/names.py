"""Names that a user writes: the known one that is nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


def did_you_mean(word: Any, known: Iterable[Any]) -> str:
    """' Did you mean …?' when a known word is close, else the empty string."""
    close = difflib.get_close_matches(str(word), [str(name) for name in known], n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
