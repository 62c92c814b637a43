"""The page on reward accuracy: what is counted, and that it follows from the stored counts."""

from __future__ import annotations

import card_cases
import cards
import page
import pytest

from gdpo_verl.config.components import Component

pytestmark = pytest.mark.slow


def test_a_reward_card_counts_what_each_rule_judges_the_other_way() -> None:
    rules = {"equal": lambda a: a.text == a.truth, "all": lambda a: True, "none": lambda a: False}
    made = cards.Card("Ours", rules)
    made.count(True, "these", [cards.Answer("1", "1"), cards.Answer("2", "1")])
    made.count(False, "the others", iter([cards.Answer("3", "4")]))
    made.count(False, "nothing", [])
    text = cards.tables(made.rows)
    assert "| right answers rejected | of | equal | all | none |" in text
    assert "| these | 2 | 1 | 0 | 2 |" in text
    assert "**Wrong answers rewarded**: 0 of 1 kinds (1 answers)." in text


def test_the_page_of_reward_cards_follows_from_the_committed_counts() -> None:
    rows = page.read_rows(page.ROOT / "docs/evidence/reward_cards.csv")
    text = cards.PAGE.read_text(encoding="utf-8")
    for title in {row["reward"] for row in rows}:
        own = cards.tables([row for row in rows if row["reward"] == title])
        assert f"<!-- {title} -->\n\n{own}\n\n<!-- /{title} -->" in text
    assert f"<!-- Cases -->\n\n{card_cases.cases_text()}\n\n<!-- /Cases -->" in text


def test_a_case_is_paid_by_the_components_that_it_names() -> None:
    components = [Component("right", -3, 3), Component("form", 0, 1)]
    for expected, paid in (
        ({"right": 3, "form": 1, "parse_error": "NONE"}, card_cases.PAID),
        ({"right": 3}, card_cases.PAID),
        ({"right": 3, "form": 0}, card_cases.PARTLY),
        ({"right": 0}, card_cases.PARTLY),
        ({"right": -3, "form": None}, card_cases.REFUSED),
        ({"form": None}, card_cases.UNSCORED),
    ):
        assert card_cases.paid(expected, components) == paid
