"""A rubric for a judge: its numbered criteria, and the verdicts in a reply.

A rubric is a list of criteria for a prompt. One request asks the judge about all criteria of a
response. The reply has one verdict for each criterion, and nothing else. The judge sees the texts
of the criteria, but not their weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gdpo_verl.rewards.thought import assistant_text, behind_thought

# The largest number of tokens of a verdict in JSON, such as `"12": false, `, in any tokenizer.
TOKENS_OF_VERDICT = 10
_PAIR = re.compile(r'"(\d{1,4})"\s*:\s*(true|false)\s*[,}]')
_LINE = re.compile(r"\s*(\d{1,4})\s*[:.)]\s*(true|false|yes|no)[\s.]*", re.IGNORECASE)


def criteria_fault(rubric: Any) -> str:
    """Describe what is wrong with the criteria of a row; the text is empty if nothing is wrong.

    Args:
      rubric: a list of ``{"name": text, "criterion": text, "weight": number}``.
    """
    # This module imports torch, which takes long and is not needed to list the data sets.
    from gdpo_verl.advantage.checks import is_number

    wanted = "expected a list of {name, criterion, weight} with distinct names"
    if not isinstance(rubric, Sequence) or isinstance(rubric, str) or not rubric:
        return f"{wanted}, found {rubric!r}"
    for entry in rubric:
        fits = isinstance(entry, Mapping) and is_number(entry.get("weight", 1))
        if not fits or not entry.get("name") or not entry.get("criterion"):
            return f"{wanted}, found {entry!r}"
    names = [entry["name"] for entry in rubric]
    return "" if len(set(names)) == len(names) else f"{wanted}, found the names {names}"


def numbered_criteria(rubric: Sequence[Mapping[str, Any]]) -> str:
    """Return the texts of the criteria, each on its own line and with its number, from 1."""
    lines = []
    for number, entry in enumerate(rubric, start=1):
        text = " ".join(str(entry["criterion"]).split())
        lines.append(f"{number}. {text}")
    return "\n".join(lines)


def verdict_schema(number: int) -> dict[str, Any]:
    """Return the JSON schema for the verdicts on `number` criteria."""
    names = [str(place) for place in range(1, number + 1)]
    return {
        "type": "object",
        "properties": {name: {"type": "boolean"} for name in names},
        "required": names,
        "additionalProperties": False,
    }


def verdicts_of(reply: str, rubric: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the verdicts of a reply, as the value of a component by criterion.

    A criterion without a verdict, or with two different verdicts, is None (*not scored*). If the
    reply was cut off within its last verdict, this criterion is None, too. Verdicts with other
    numbers are ignored.

    Args:
      reply: a text such as ``{"1": true, "2": false}``, or lines such as ``1: yes``.
      rubric: the criteria.

    >>> rubric = [{"name": "cites", "criterion": "It cites a source.", "weight": 2}]
    >>> verdicts_of('{"1": true, "2": true}', rubric)
    {'cites': {'value': 1.0, 'weight': 2.0}}
    >>> verdicts_of("It does cite one.", rubric)
    {'cites': {'value': None, 'weight': 2.0}}
    """
    text = (behind_thought(assistant_text(reply)) or "").strip(" \t\r\n`").removeprefix("json")
    if text.lstrip().startswith("{"):
        answers = _PAIR.findall(text)
    else:
        lines = [_LINE.fullmatch(line) for line in text.splitlines()]
        answers = [line.groups() for line in lines if line]
    by_number: dict[int, set[bool]] = {}
    for number, word in answers:
        by_number.setdefault(int(number), set()).add(word.lower() in ("true", "yes"))
    graded: dict[str, Any] = {}
    for place, entry in enumerate(rubric, start=1):
        verdicts = list(by_number.get(place, ()))
        value = float(verdicts[0]) if len(verdicts) == 1 else None
        graded[entry["name"]] = {"value": value, "weight": float(entry.get("weight", 1))}
    return graded
