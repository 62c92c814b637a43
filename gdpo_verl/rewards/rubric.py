"""A rubric for a judge: its numbered criteria, and the verdicts that a reply gives.

All criteria of a response are asked for in one request, and the reply holds one verdict for each
and nothing else. The judge sees the texts of the criteria, and not their weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gdpo_verl.rewards.thought import assistant_text, behind_thought

# Tokens of a verdict in JSON, such as `"12": false, `, in any tokenizer, and of what is around.
TOKENS_OF_VERDICT = 10
_PAIR = re.compile(r'"(\d{1,4})"\s*:\s*(true|false)\s*[,}]')
_LINE = re.compile(r"\s*(\d{1,4})\s*[:.)]\s*(true|false|yes|no)[\s.]*", re.IGNORECASE)


def criteria_fault(rubric: Any) -> str:
    """Say what is wrong with the criteria of a row; '' where nothing is.

    Args:
      rubric: a list of ``{"name": text, "criterion": text, "weight": number}``.
    """
    # It imports torch, which nobody needs who only lists the data sets.
    from gdpo_verl.advantage.checks import is_number

    wanted = "expected a list of {name, criterion, weight} with distinct names"
    if not isinstance(rubric, Sequence) or isinstance(rubric, str) or not rubric:
        return f"{wanted}, found {rubric!r}"
    for each in rubric:
        fits = isinstance(each, Mapping) and is_number(each.get("weight", 1))
        if not fits or not each.get("name") or not each.get("criterion"):
            return f"{wanted}, found {each!r}"
    names = [each["name"] for each in rubric]
    return "" if len(set(names)) == len(names) else f"{wanted}, found the names {names}"


def numbered_criteria(rubric: Sequence[Mapping[str, Any]]) -> str:
    """Return the texts of the criteria, one on a line after its number, from 1."""
    lines = []
    for number, each in enumerate(rubric, start=1):
        text = " ".join(str(each["criterion"]).split())
        lines.append(f"{number}. {text}")
    return "\n".join(lines)


def verdict_schema(number: int) -> dict[str, Any]:
    """Return the JSON schema of the verdicts on this number of criteria."""
    names = [str(place) for place in range(1, number + 1)]
    return {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names},
        "required": names,
        "additionalProperties": False,
    }


def verdicts_of(reply: str, rubric: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a reply says of each criterion, as a component by criterion.

    A criterion without a verdict, or with two different ones, is None, *not scored*. So is the last
    one of a reply that was cut off within it. Verdicts with other numbers do not count.

    Args:
      reply: ``{"1": true, "2": false}``, or lines such as ``1: yes``.

    >>> rubric = [{"name": "cites", "criterion": "It cites a source.", "weight": 2}]
    >>> verdicts_of('{"1": true, "2": true}', rubric)
    {'cites': {'value': 1.0, 'weight': 2.0}}
    >>> verdicts_of("It does cite one.", rubric)
    {'cites': {'value': None, 'weight': 2.0}}
    """
    text = (behind_thought(assistant_text(reply)) or "").strip(" \t\r\n`").removeprefix("json")
    if text.lstrip().startswith("{"):
        found = _PAIR.findall(text)
    else:
        lines = [_LINE.fullmatch(line) for line in text.splitlines()]
        found = [line.groups() for line in lines if line]
    said: dict[int, set[bool]] = {}
    for number, word in found:
        said.setdefault(int(number), set()).add(word.lower() in ("true", "yes"))
    graded: dict[str, Any] = {}
    for place, each in enumerate(rubric, start=1):
        verdicts = list(said.get(place, ()))
        value = float(verdicts[0]) if len(verdicts) == 1 else None
        graded[each["name"]] = {"value": value, "weight": float(each.get("weight", 1))}
    return graded
