"""Write overrides in Hydra's grammar, with the quotation marks that they need."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

# A JSON string that is the same text for Hydra without its quotation marks.
_NAME = re.compile(r'"(?!(?:true|false|null|nan|inf)")([a-z_]\w*)"', re.ASCII | re.IGNORECASE)


def quoted(path: Path | str) -> str:
    """Return a path or another text as one value of Hydra, in quotation marks if needed."""
    from hydra.core.override_parser.types import Quote, QuotedString

    if re.fullmatch(r"[\w/.+-]+", str(path), re.ASCII):
        return str(path)
    return QuotedString(str(path), Quote.single).with_quotes()


def override(key: str, value: Any, *, replaces: bool = False) -> str:
    """Return an override, quoted for a shell, that sets a key or adds it to the configuration.

    Hydra merges a mapping with the mapping of the configuration. It accepts only some names as keys
    of a mapping, and does not merge a mapping with a list. In these cases the mapping is written as
    a JSON text, which replaces the present value. `gdpo_verl.config.parsing` reads mappings and
    JSON texts.

    >>> print(override("algorithm.gdpo_reward_weights", {"format": 0.5}))
    '++algorithm.gdpo_reward_weights={format: 0.5}'
    >>> print(override("algorithm.gdpo_reward_weights", {"格式": 0.5}))
    '++algorithm.gdpo_reward_weights="{\\"格式\\": 0.5}"'

    Args:
      key: the full key.
      value: the new value, which must be a value of JSON.
      replaces: True if the configuration may have a list instead of a mapping.
    """
    from hydra.core.override_parser.types import Quote, QuotedString

    text = json.dumps(value, ensure_ascii=False)
    word = _NAME.sub(r"\1", text)
    if replaces or '"' in word:
        word = QuotedString(text, Quote.double).with_quotes()
    return shlex.quote(f"++{key}={word}")
