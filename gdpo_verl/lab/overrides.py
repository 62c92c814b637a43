"""Overrides in Hydra's grammar: the one place that quotes them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

# A name in JSON that Hydra reads as the same text without its quotation marks.
_NAME = re.compile(r'"(?!(?:true|false|null|nan|inf)")([a-z_]\w*)"', re.ASCII | re.IGNORECASE)


def quoted(path: Path | str) -> str:
    """A path or another text as Hydra reads it whole, in quotation marks where it needs them."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if re.fullmatch(r"[\w/.+-]+", str(path), re.ASCII):
        return str(path)
    return QuotedString(str(path), Quote.single).with_quotes()


def override(key: str, value: Any, *, replaces: bool = False) -> str:
    """Return the word for a shell that sets a key, whether or not the configuration has it.

    Hydra merges a mapping with the one that is there. It reads few names as keys of a mapping, and
    merges none with a list. Then the mapping is written as text, in JSON, which replaces what is
    there; `gdpo_verl.config.parsing` reads both.

    >>> print(override("algorithm.gdpo_reward_weights", {"format": 0.5}))
    '++algorithm.gdpo_reward_weights={format: 0.5}'
    >>> print(override("algorithm.gdpo_reward_weights", {"格式": 0.5}))
    '++algorithm.gdpo_reward_weights="{\\"格式\\": 0.5}"'

    Args:
      value: the new value, which JSON can hold.
      replaces: the configuration may have a list in place of a mapping.
    """
    from hydra.core.override_parser.types import Quote, QuotedString

    text = json.dumps(value, ensure_ascii=False)
    word = _NAME.sub(r"\1", text)
    if replaces or '"' in word:
        word = QuotedString(text, Quote.double).with_quotes()
    return shlex.quote(f"++{key}={word}")
