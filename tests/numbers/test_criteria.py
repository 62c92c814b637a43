"""Components by criterion: rubrics whose criteria are normalised separately."""

import math

import pytest
import torch
from by_hand import NAN

from gdpo_verl import advantages_of
from gdpo_verl.advantage import VARIANTS
from gdpo_verl.advantage.criteria import rubric_number
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component, declared_components, declares
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.reward_dicts import (
    criteria_as_written,
    graded_criteria,
    read_components,
    with_numbers,
)

UNWHITENED = {"whiten": "none"}


def weighted(value, weight):
    return {"value": value, "weight": weight}


def rubric_advantages(*rubrics, **settings):
    """Return the advantages of one group with only a rubric; without whitening they are its z."""
    rows = [{"rubric": rubric} for rubric in rubrics]
    config = {"gdpo": UNWHITENED | settings}
    return advantages_of(rows, [0] * len(rows), config=config)


def test_a_rubric_of_one_criterion_gives_the_same_z_as_a_reward():
    values = [1.0, 0.0, 0.25, None]
    found = rubric_advantages(*[{"a": weighted(value, 5.0)} for value in values])
    rows = [{"a": value} for value in values]
    expected = advantages_of(rows, [0] * 4, config={"gdpo": UNWHITENED})
    assert found == pytest.approx(expected, abs=1e-5)
    assert found[3] == 0.0


def test_criteria_that_do_not_vary_change_nothing():
    varying = [{"a": 1.0}, {"a": 0.0}, {"a": 0.0}]
    found = rubric_advantages(*[each | {"b": weighted(1.0, 9.0)} for each in varying])
    assert found == rubric_advantages(*varying)
    assert rubric_advantages({"a": 1}, {"a": 1}, {"b": 0}) == [0.0, 0.0, 0.0]


def test_criteria_that_cancel_give_no_noise_of_size_one():
    values = [0.1, 0.7, 0.3, 0.9]
    rubrics = [{"a": value, "b": 10 - 10 * value} for value in values]
    assert rubric_advantages(*rubrics) == [0.0] * 4


def test_a_rare_criterion_with_a_small_weight_counts_if_nothing_else_varies():
    rubrics = [{"a": 1.0, "b": weighted(value, 0.01)} for value in (1.0, 0.0)]
    assert rubric_advantages(*rubrics) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)], rel=1e-3)


def test_without_deviations_decoupling_makes_no_difference():
    rubrics = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": weighted(1.0, 1.0)}, {"a": 1.0, "b": 1.0}]
    rows = [{"rubric": rubric} for rubric in rubrics]
    unscaled = {"norm_adv_by_std_in_grpo": False, "gdpo": UNWHITENED}
    found = advantages_of(rows, [0] * 3, config=unscaled)
    assert found == pytest.approx([-1 / 6, -1 / 6, 1 / 3])


def test_a_failed_condition_counts_as_no_criterion_met():
    # This also holds for pitfalls: the last response fails its condition, and gains nothing by
    # failing.
    condition = {"rubric": {"on": "right", "at_least": 1}}
    rubrics = [{"a": 1.0}, {"a": 0.0}, {"a": weighted(1.0, 1.0)}, None]
    rows = [
        {"right": right, "rubric": rubric}
        for right, rubric in zip((1, 1, 0, 0), rubrics, strict=True)
    ]
    config = {"gdpo": UNWHITENED | {"conditions": condition}, "gdpo_reward_weights": {"right": 0}}
    found = advantages_of(rows, [0] * 4, config=config)
    assert found == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)
    rows[3]["right"] = None
    assert advantages_of(rows, [0] * 4, config=config)[3] == 0.0


def test_conditions_gates_and_the_baseline_use_the_weighted_sum_of_a_rubric():
    rubrics = [{"a": weighted(1.0, 2.0), "b": 1.0}, {"a": weighted(0.0, 2.0), "b": 1.0}]
    rows = [{"rubric": each, "style": style} for each, style in zip(rubrics, (1, 2), strict=True)]
    condition = {"style": {"on": "rubric", "at_least": 0.5}}
    objective = GdpoConfig(conditions=condition).resolve(
        [Component("rubric", by_criterion=True), "style"]
    )
    raw = read_components(rows, objective, ["0", "1"])
    assert raw.tolist() == [[1.0, 1.0], [pytest.approx(1 / 3), 2.0]]
    assert objective.score(raw).tolist() == [2.0, pytest.approx(1 / 3)]
    closed = advantages_of(
        [*rows, {"rubric": {"c": 0}, "style": 1}, {"rubric": {"c": 0}, "style": 2}],
        [0, 0, 1, 1],
        config={"gdpo": {"gate": {"on": "rubric"}}},
    )
    assert closed[2:] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rubric", "number"),
    [
        ({"a": 1, "b": None, "c": weighted(1, -0.5)}, 0.5),
        ({"a": weighted(0.5, 3), "b": False}, 0.375),
        ({"a": weighted(1, -1), "b": weighted(0, -3)}, -0.25),
        ({"a": None, "b": NAN}, NAN),
        ({"a": weighted(1, 0), "b": None}, NAN),
        ({}, NAN),
        (None, NAN),
    ],
    ids=str,
)
def test_verls_dumps_have_the_weighted_sum_of_a_rubric_and_its_criteria_as_text(rubric, number):
    objective = GdpoConfig().resolve([Component("rubric", by_criterion=True)])
    (graded,) = graded_criteria([{"rubric": rubric}], objective, [""])["rubric"]
    assert rubric_number(graded) == pytest.approx(number, nan_ok=True)
    written = with_numbers({"rubric": rubric, "note": "kept"}, objective)
    assert set(written) == {"rubric", "rubric_by_criterion", "note"}
    assert written["rubric"] is None or written["rubric"] == pytest.approx(number)
    (read,) = graded_criteria([written], objective, [""])["rubric"]
    assert criteria_as_written(read) == criteria_as_written(graded)


@pytest.mark.parametrize(
    ("rubric", "fault"),
    [
        ([1.0, 0.0], r"expected a mapping from the name of each criterion to a number, found \["),
        (1.0, "expected a mapping"),
        ({"a": "1"}, "found '1' for 'a'"),
        ({"a": 1, "": 1}, "found 1 for ''"),
        ({1: 1}, "found 1 for 1"),
        ({"a": math.inf}, "found inf for 'a'"),
        ({"a": {"value": 1, "wieght": 2}}, "found {'value': 1, 'wieght': 2} for 'a'"),
        ({"a": {"value": 1, "weight": None}}, "'weight': None} for 'a'"),
        ({"a": weighted(1, 0), "b": weighted(0, 0)}, r"the weights of all criteria are 0: \['a'"),
        ({"a": weighted(1, 2)}, "expected one weight of the criterion 'a' .* found 1, and 2"),
    ],
    ids=str,
)
def test_a_value_that_is_no_rubric_is_named_with_its_row(rubric, fault):
    rows = [{"rubric": {"a": 1}}, {"rubric": rubric}]
    with pytest.raises(ValueError, match=rf"^rewards: 'rubric'.*{fault}") as error:
        advantages_of(rows, [0, 0])
    assert "row 1" in str(error.value)
    undeclared = GdpoConfig().resolve(["rubric"])
    with pytest.raises(ValueError, match=r"declares\(\.\.\., by_criterion=\('rubric',\)\)"):
        read_components(rows[:1], undeclared, ["0"])


def test_five_hundred_criteria_are_graded():
    rubrics = []
    for row in range(4):
        rubrics.append({f"c{place}": float((place + row) % 3) for place in range(500)})
    assert sum(map(abs, rubric_advantages(*rubrics))) > 1


def test_variants_of_raw_rewards_and_per_turn_credit_reject_a_component_by_criterion():
    components = [Component("rubric", -1, 1, by_criterion=True), Component("calls", by_turn=True)]
    for name, variant in VARIANTS.items():
        config = GdpoConfig(variant=name)
        if variant.reads_only_z:
            config.resolve(components[:1])
            continue
        with pytest.raises(ValueError, match=rf"gdpo\.variant: '{name}' uses the raw .*=sum"):
            config.resolve(components[:1])
        GdpoConfig.from_algorithm({"gdpo": {"variant": name, "criteria": "sum"}}).resolve(
            components[:1]
        )
    with pytest.raises(ValueError, match=r"gdpo\.credit: criteria are graded .*answer.*=sum"):
        GdpoConfig().resolve(components)
    GdpoConfig.from_algorithm({"gdpo": {"credit": "answer"}}).resolve(components)
    GdpoConfig.from_algorithm({"gdpo": {"criteria": "sum"}}).resolve(components)


def test_a_component_can_be_declared_by_criterion():
    @declares("right", Component("style", -1, 1), by_criterion=("rubric", "style"))
    def compute_score(): ...

    components = declared_components(compute_score)
    assert [each.name for each in components] == ["right", "style", "rubric"]
    assert [each.by_criterion for each in components] == [False, True, True]
    with pytest.raises(ValueError, match=r"'calls': it is declared by turn and by criterion"):
        declares(by_turn="calls", by_criterion="calls")


def test_the_metrics_of_criteria_are_shares_of_those_that_vary():
    rubrics = [
        {"always": 1, "never": 0, "some": 1, "pitfall": weighted(1, -1)},
        {"always": 1, "never": 0, "some": 0, "pitfall": weighted(0, -1)},
        {"always": 1, "some": None},
        {"always": 0.5},
        None,
    ]
    rows = [{"rubric": each} for each in rubrics]
    objective = GdpoConfig().resolve([Component("rubric", by_criterion=True)])
    graded = graded_criteria(rows, objective, list("abcde"))
    raw = read_components(rows, objective, list("abcde"), graded)
    groups = [0, 0, 0, 1, 1]
    found = objective.decompose(raw, groups, torch.ones(5), 1, graded, list("abcde"))
    metrics = batch_metrics(found, objective)
    name = "gdpo/rubric/criteria"
    assert metrics[f"{name}_met_by_all"] == pytest.approx(2 / 5)
    assert metrics[f"{name}_met_by_none"] == pytest.approx(1 / 5)
    assert metrics[f"{name}_varying"] == pytest.approx(2 / 5)
    # The third response is scored in part, and the fifth is not scored.
    assert metrics["gdpo/rubric/all_criteria_met"] == pytest.approx(2 / 4)
