"""The bars and rows of the explorer as markup."""

from __future__ import annotations

import re

import pytest
from browser import browser as browser
from explain_pages import HOSTILE, Elements

from gdpo_verl.explain import charts, compare


def test_the_models_text_is_text():
    rollout = compare.Rollout(HOSTILE, (1.0,), 0.5, 0.5, HOSTILE, True)
    markup = charts.block(
        "hostile",
        HOSTILE,
        charts.bars([rollout], texts=[HOSTILE]),
        charts.table([HOSTILE], [[HOSTILE]]),
        charts.folded(HOSTILE, HOSTILE),
        charts.folded(HOSTILE, HOSTILE, preformatted=True),
        charts.heading(2, HOSTILE),
    )
    found = Elements(str(markup))
    assert not {"script", "img"} & found.names
    assert found.text.count(HOSTILE) == 11


def test_bars_are_as_long_as_the_advantages():
    rollouts = [compare.Rollout("a", (1.0,), 2.0, 1.0), compare.Rollout("b", (0.0,), -2.0, -1.0)]
    found = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", charts.bars(rollouts))
    assert found == [("50.00", "50.00"), ("50.00", "25.00"), ("0.00", "50.00"), ("25.00", "25.00")]


def test_a_group_that_teaches_nothing_has_short_bars():
    rollouts = [compare.Rollout("a", (1.0,), 0.0, -0.0004)]
    assert re.findall(r"width:([\d.]+)%", charts.bars(rollouts)) == ["0.00", "0.02"]


def test_a_third_bar_shares_the_scale_of_the_two():
    rollouts = [compare.Rollout("a", (1.0,), 2.0, 1.0), compare.Rollout("b", (0.0,), -2.0, -1.0)]
    markup = charts.bars(rollouts, third=(HOSTILE, [4.0, None]))
    found = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", markup)
    assert found[:3] == [("50.00", "25.00"), ("50.00", "12.50"), ("50.00", "50.00")]
    assert len(found) == 5
    assert Elements(str(markup)).text.count(HOSTILE) == 1


def test_every_answer_gets_the_bar_of_the_chosen_variant():
    pytest.importorskip("marimo")
    from gdpo_verl.explain.sections import answers

    opened = answers.form().value
    assert "data-third" not in answers.show(opened)
    assert answers.show({**opened, "variant": "dvao"}).count("data-third") == 12
    without = {**opened, "weights": dict.fromkeys(opened["weights"], 0.0)}
    assert "No advantages: " in answers.show(without)
