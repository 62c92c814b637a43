"""Overrides in Hydra's grammar: the one place that quotes them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any


def quoted(path: Path | str) -> str:
    """A path or another text as Hydra reads it whole, in quotation marks where it needs them."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if re.fullmatch(r"[\w/.+-]+", str(path), re.ASCII):
        return str(path)
    return QuotedString(str(path), Quote.single).with_quotes()


def override(key: str, value: Any, *, replaces: bool = False) -> str:
    """The word for a shell that sets a key, whether or not the configuration has it.

    Hydra joins a mapping to the one that is there. It reads few names as keys of a mapping, and
    joins none to a list. Then the mapping is written as a text of JSON, which replaces what is
    there; `gdpo_verl.config.parsing` reads both.

    >>> print(override("algorithm.gdpo_reward_weights", {"format": 0.5}))
    '++algorithm.gdpo_reward_weights={format: 0.5}'
    >>> print(override("algorithm.gdpo_reward_weights", {"格式": 0.5}))
    '++algorithm.gdpo_reward_weights="{\\"格式\\": 0.5}"'

    Args:
      value: what JSON can hold, and what the key is to have.
      replaces: there may be a list instead of a mapping.
    """
    from hydra.core.override_parser.types import (
        Override,
        OverrideType,
        Quote,
        QuotedString,
        ValueType,
    )

    element = Override(OverrideType.FORCE_ADD, key, ValueType.ELEMENT, value)
    word = f"++{key}={element.get_value_element_as_str(space_after_sep=True)}"
    if replaces or not _reads(word, value):
        text = QuotedString(json.dumps(value, ensure_ascii=False), Quote.double)
        word = f"++{key}={text.with_quotes()}"
    return shlex.quote(word)


def _reads(word: str, value: Any) -> bool:
    """Return whether Hydra reads this value in an override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        found: Any = OverridesParser.create().parse_override(word).value()
    except HydraException:
        return False
    return bool(found == value)
