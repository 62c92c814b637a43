"""Data sets with rubrics: prompts, each with its own list of weighted criteria, for a judge.

    {"question": "…", "reference_answer": "…", "rubric": [{"title": "Names a cause",
     "description": "Essential Criteria: Names the most likely cause.", "weight": 5}]}

Two layouts are read: that of ScaleAI/RaR-Medicine and ScaleAI/RaR-Science, and that of HealthBench,
whose `rubrics` are a list of {criterion, points, tags}. The criteria become `extra_info.rubric`,
where the judge reads them (`gdpo_verl.rewards.rubric`).

A negative weight has two meanings in published data sets. The criterion "Recommends an antibiotic"
describes a *failure*: meeting it is bad. The criterion "Avoids recommending an antibiotic" is good
when it is met. Its weight has to become positive, because a negative weight would punish good
responses. In HealthBench every criterion with negative points describes a failure.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.rows import BadRow, Row, check_messages, make_row, text_of
from gdpo_verl.lab.tasks.source import Record, open_source
from gdpo_verl.rewards.rubric import criteria_fault

DATA_SOURCE = "rubrics"
POLARITIES = ("text", "failure", "avoided")
"""The values of ``--negative``: the meaning of a criterion with a negative weight."""
_LEAD = re.compile(r"\A\s*(\w+ criteria:)?\s*((the )?(response|answer)\s+)?", re.IGNORECASE)
_AVOIDED = re.compile(r"(avoid|refrain|(should|must) (not|never))", re.IGNORECASE)
_NEGATED = re.compile(r"\b(not|never|no|without|avoid\w*|refrain\w*|lack\w*)\b|n't", re.IGNORECASE)


def polarity_of(text: str) -> str:
    """Return "avoided" or "failure", judging by the text of a criterion; "" if it is unclear.

    >>> polarity_of("Pitfall Criteria: Avoids recommending surgery.")
    'avoided'
    >>> polarity_of("Recommends surgery."), polarity_of("Fails to name the cause.")
    ('failure', 'failure')
    >>> polarity_of("Does not mention surgery.")
    ''
    """
    statement = text[_LEAD.match(text).end() :]  # type: ignore[union-attr]  # it matches any text
    if _AVOIDED.match(statement):
        return "avoided"
    return "" if _NEGATED.search(statement) else "failure"


def convert(record: Record, negative: str, used: Counter[str]) -> Row:
    """Convert a row to verl's columns.

    Args:
      record: the row.
      negative: one of `POLARITIES`.
      used: counts the criteria with a negative weight by their meaning.

    Raises:
      BadRow: the row has no criteria, or the meaning of a negative weight is unclear.
    """
    values = record.values
    if "rubrics" in values:
        criteria = _criteria(values["rubrics"], "", "criterion", "points")
        negative = "failure"
        messages = check_messages(values.get("prompt"))
        truth = ""
    else:
        criteria = _criteria(values.get("rubric"), "title", "description", "weight")
        messages = [{"role": "user", "content": text_of(values, "question")}]
        truth = str(values.get("reference_answer") or "")
    polarities = [_with_sign(criterion, negative) for criterion in criteria]
    if not any(criterion["weight"] for criterion in criteria):
        raise BadRow("rubric", "expected a criterion with a weight, found only weights of 0")
    used.update(filter(None, polarities))
    info = {**record.place, "rubric": criteria}
    return make_row(DATA_SOURCE, messages, truth, ability="rubrics", extra_info=info)


def _with_sign(criterion: dict[str, Any], negative: str) -> str:
    """Make a negative weight positive if meeting the criterion is good; return the polarity.

    The result is "" for a weight of 0 or more.
    """
    if criterion["weight"] >= 0:
        return ""
    text = criterion["criterion"]
    polarity = polarity_of(text) if negative == "text" else negative
    if not polarity:
        raise BadRow(
            "polarity",
            f"the criterion {text!a:.120} has the weight {criterion['weight']:g}, and its text "
            "does not say whether meeting it is good or bad. Give --negative failure if it is bad "
            "in this data set, or --negative avoided if it is good",
        )
    if polarity == "avoided":
        criterion["weight"] = -criterion["weight"]
    return polarity


def _criteria(rubric: Any, name: str, text: str, weight: str) -> list[dict[str, Any]]:
    """Return the criteria of a rubric, each with a distinct name, its text and its weight.

    Args:
      rubric: the rubric, as the row contains it.
      name, text, weight: the keys in this rubric. A criterion without a name is named by its text.
    """
    if not isinstance(rubric, list) or not all(isinstance(item, Mapping) for item in rubric):
        raise BadRow("rubric", f"expected a list of criteria, found {rubric!a:.100}")
    criteria: list[dict[str, Any]] = []
    for item in rubric:
        title = str(item.get(name) or item.get(text) or "")[:80]
        names = [criterion["name"] for criterion in criteria]
        number = 2
        distinct = title
        while distinct in names:
            distinct = f"{title} ({number})"
            number += 1
        criteria.append({"name": distinct, "criterion": item.get(text), "weight": item.get(weight)})
    fault = criteria_fault(criteria)
    if fault:
        raise BadRow("rubric", fault)
    return [criterion | {"weight": float(criterion["weight"])} for criterion in criteria]


def prepare(
    out_dir: Path, *, source: str | None = None, negative: str | None = None, **options: Any
) -> dict[str, Any]:
    """Write the rows of a data set with rubrics; `build` explains the options."""
    if source is None:
        raise ValueError(
            "--from: expected a data set with rubrics, such as ScaleAI/RaR-Medicine, found none"
        )
    used: Counter[str] = Counter()
    chosen = negative or POLARITIES[0]
    about = {
        "data_source": DATA_SOURCE,
        "published": "given by the user",
        "negative": {"setting": chosen, "criteria": used},
    }
    return build(
        out_dir,
        open_source(source),
        partial(convert, negative=chosen, used=used),
        about=about,
        **options,
    )
