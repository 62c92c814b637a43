"""The explorer's units: what the unit of one reward does to the other."""

from __future__ import annotations

import pytest

from gdpo_verl.explain import toy, units


def test_the_unit_moves_grpo_and_leaves_gdpo_alone():
    gdpo = [units.averages(unit, toy.GDPO) for unit in (1.0, 30.0)]
    assert gdpo[0].other.mean == pytest.approx(gdpo[1].other.mean, abs=1e-3)
    grpo = [units.averages(unit, toy.GRPO) for unit in (1.0, 30.0)]
    assert grpo[0].other.mean - grpo[1].other.mean > 0.2
    assert grpo[1].first.mean > grpo[0].first.mean


def test_a_weight_that_undoes_the_unit_gives_grpo_at_unit_one():
    undone, plain = units.averages(10.0, units.weighted(0.1)), units.averages(1.0, toy.GRPO)
    assert undone.other.mean == pytest.approx(plain.other.mean, abs=1e-3)
    assert undone.first.mean == pytest.approx(plain.first.mean, abs=1e-3)


@pytest.mark.parametrize(
    ("tuned", "told"),
    [(0.5, "does not make up"), (0.7, "as well as GDPO"), (0.9, "GRPO is ahead")],
)
def test_the_sentence_follows_the_worse_of_the_two_skills(monkeypatch, tuned, told):
    values = {toy.GDPO: (0.8, 0.7), units.weighted(0.1): (0.95, tuned)}
    monkeypatch.setattr(
        units,
        "averages",
        lambda unit, method: units.Averages(*(toy.Figure(v, 0.0) for v in values[method])),
    )
    sentence = units.weight_sentence(10.0, 0.1)
    assert told in sentence
    assert "the weight 0.1 and the unit 10 are one factor, 1: " in sentence


def test_the_sentence_of_a_unit_holds_the_table_s_numbers():
    _, rows = units.table()
    unit, *figures = rows[units.UNITS.index(10.0)]
    sentence = units.unit_sentence(10.0)
    assert unit == "10"
    assert all(figure in sentence for figure in figures)
