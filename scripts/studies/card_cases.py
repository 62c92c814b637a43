"""Count the cases: what each recipe's reward must return, and how a judge's words are parsed."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable
from typing import Any

from page import ROOT, markdown_table, read_lines

from gdpo_verl.config.components import Component, declared_components

PAID, PARTLY, REFUSED, UNSCORED = "in full", "in part", "nothing", "not scored"


def paid(expected: dict[str, Any], components: Iterable[Component]) -> str:
    """Return the expected share of the components that a case names."""
    named = {each: expected[each.name] for each in components if each.name in expected}
    scored = {each: value for each, value in named.items() if value is not None}
    if not scored:
        return UNSCORED
    if all(value == each.high for each, value in scored.items()):
        return PAID
    if all(value == each.low for each, value in scored.items()):
        return REFUSED
    return PARTLY


def groups(cases: Iterable[dict[str, Any]]) -> str:
    """List the subjects of the cases, most frequent first; a subject is `why` up to its colon."""
    counts = Counter(case["why"].partition(": ")[0] for case in cases)
    large = [f"{why} ({count})" for why, count in counts.most_common() if count > 2]
    others = sum(count for count in counts.values() if count <= 2)
    return "; ".join([*large, f"others ({others})"])


def cases_text() -> str:
    """Write the table of the rewards of each recipe's cases, and the subjects of all cases."""
    columns = (PAID, PARTLY, REFUSED, UNSCORED)
    rows = []
    about = []
    for file in sorted((ROOT / "recipes").glob("*/cases.jsonl")):
        recipe = file.parent.name
        reward = importlib.import_module(f"gdpo_verl.rewards.{recipe}")
        components = declared_components(reward.compute_score)
        cases = read_lines(file)
        counts = Counter(paid(case["expected"], components) for case in cases)
        numbers = (len(cases), *(counts[column] for column in columns))
        rows.append([recipe, *map(str, numbers)])
        about.append(f"- **{recipe}**: {groups(cases)}.")
    replies = read_lines(ROOT / "docs" / "judge_cases.jsonl")
    unscored = sum(reply["expected"] is None for reply in replies)
    judge = f"**A judge's replies**, {len(replies)}, {unscored} of them not scored"
    about.append(f"- {judge}: {groups(replies)}.")
    return "\n".join([markdown_table(["recipe", "cases", *columns], rows), "", *about])
