"""The cases that a recipe's reward promises to judge as they say: ``recipes/NAME/cases.jsonl``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from gdpo_verl.lab.run.composition import recipes_directory

FILES = {file.parent.name: file for file in sorted(recipes_directory().glob("*/cases.jsonl"))}
# A busy machine is no slow program.
SETTINGS = {"code": {"timeout": 60, "deadline": 600}}


def cases_of(recipe: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILES[recipe].open(encoding="utf-8")]


ODD = ["[" * 2000, "9" * 5000, "\0", "\ud800", "²", "\u2028", "\n"]


def near(texts: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of which the beginning is one's and the end another's, and any text."""
    cut = st.tuples(st.sampled_from(texts), st.floats(0, 1))
    start = cut.map(lambda part: part[0][: int(part[1] * len(part[0]))])
    end = cut.map(lambda part: part[0][int(part[1] * len(part[0])) :])
    between = st.text(max_size=5) | st.sampled_from(ODD)
    return st.tuples(start, between, end).map("".join) | st.text(st.characters())
