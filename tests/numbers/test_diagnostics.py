"""The metrics against numbers worked out by hand."""

import math

import pytest
import torch

from gdpo_verl.advantage import EstimatorSettings, Gate, decompose, find_variant
from gdpo_verl.diagnostics import (
    collapse_metrics,
    component_metrics,
    contribution_metrics,
    coverage_metrics,
    distinct_advantages,
    influence_metrics,
    outcome_metrics,
    parse_error_metrics,
    variant_metrics,
)

NAN = math.nan


def statistics(key, *expected):
    """Return a component's mean, deviation, minimum, maximum, constant groups and unscored rows."""
    rewards = [f"rewards/{key}/{name}" for name in ("mean", "std", "min", "max")]
    names = [*rewards, f"gdpo/{key}/constant_groups", f"gdpo/{key}/unscored"]
    return {name: pytest.approx(value) for name, value in zip(names, expected, strict=True)}


def test_component_metrics_by_hand():
    integers = component_metrics(torch.tensor([[1], [0]]), [0, 0], ["format"])
    assert integers["rewards/format/mean"] == 0.5
    # Groups a (rows 0, 2), b (rows 1, 3) and c (row 4).
    rewards = torch.tensor([[1.0, 2.0], [0.0, NAN], [0.0, 2.0], [0.0, NAN], [3.0, -1.0]])
    found = component_metrics(rewards, ["a", "b", "a", "b", "c"], ["format", "length"])
    assert found == {
        # The first component is 1, 0, 0, 0, 3: mean 4/5, var = (10 - 16/5)/4 = 1.7; constant in b
        # and c.
        **statistics("format", 0.8, math.sqrt(1.7), 0.0, 3.0, 2 / 3, 0.0),
        # The second is 2, 2, -1: mean 1, var = (1 + 1 + 4)/2 = 3; constant in a and c, unscored in
        # b.
        **statistics("length", 1.0, math.sqrt(3), -1.0, 2.0, 1.0, 2 / 5),
    }


def test_statistics_of_a_component_that_only_one_row_or_no_row_has():
    found = component_metrics(torch.tensor([[NAN], [0.25]]), [0, 0], ["length"])
    assert found == statistics("length", 0.25, 0.0, 0.25, 0.25, 1.0, 0.5)
    for rows in (2, 0):
        rewards, ranges = torch.full((rows, 1), NAN), {"length": (0.0, 1.0)}
        found = component_metrics(rewards, [0] * rows, ["length"], ranges=ranges)
        assert found == {"gdpo/length/unscored": 1.0}
        # A batch without rows has the weight 0 in the mean over mini-batches.
        assert found["gdpo/length/unscored"].weight == rows


def test_saturation_by_hand():
    # The mean of scored rows is 1. Saturation is (1 + 3)/6, and (1 - 0)/0.5 if the reward leaves
    # its range.
    rewards = torch.tensor([[3.0], [NAN], [-1.0]])
    for ends, expected in (((-3.0, 3.0), 2 / 3), ((0.0, 0.5), 2.0)):
        found = component_metrics(rewards, [0] * 3, ["r"], ranges={"r": ends})
        assert found["gdpo/r/saturation"] == pytest.approx(expected, abs=1e-12)


# Groups a (rows 0, 1) and b (rows 2, 3). In a group of two different values z = ±s, where s = 1/√2.
# Format has z = s, -s, 0, 0, and length has z = -s, s, s, -s.
PULLING = [[1.0, 0.0], [0.0, 5.0], [1.0, 2.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("rewards", "groups", "weights", "shares", "conflicts"),
    [
        # The terms have the sizes 2s and 4s, and opposite signs in rows 0 and 1.
        (PULLING, "aabb", [1.0, 1.0], [1 / 3, 2 / 3], 0.5),
        # The terms are 3s, -3s, 0, 0 and s, -s, -s, s: now the signs agree.
        (PULLING, "aabb", [3e6, -1e6], [0.6, 0.4], 0.0),
        (PULLING, "aabb", [0.0, 2.0], [0.0, 1.0], 0.0),
        # The terms have the sizes 2s and 4e-5·s. A term of s·1e-5 is below the tolerance of 1e-4,
        # and s·1e-3 is above it.
        (PULLING, "aabb", [1, 1e-5], [1 / 1.00002, 2e-5 / 1.00002], 0.0),
        # This term is above the tolerance.
        (PULLING, "aabb", [1, 1e-3], [1 / 1.002, 2e-3 / 1.002], 0.5),
        # There is one group. f is 1, 0, unscored, unscored: ±s. l is 0, unscored, 1, unscored: -s
        # in row 0, and s in row 2. Only row 0 has both rewards, and they have opposite signs.
        ([[1.0, 0.0], [0.0, NAN], [NAN, 1.0], [NAN, NAN]], "aaaa", [1, 1], [0.5, 0.5], 0.25),
        # f and l have the same z = ±s, the constant c has 0, and h has the opposite signs.
        ([[1, 4, 2, 0], [0, 3, 2, 1]], "aa", [1] * 4, [1 / 3, 1 / 3, 0, 1 / 3], 1.0),
        # Nothing varies.
        ([[NAN, NAN], [NAN, NAN]], "aa", [1, -2], [0, 0], 0.0),
        ([[1.0, NAN], [NAN, 0.0]], "aa", [1, -2], [0, 0], 0.0),
        (torch.zeros(0, 2), "", [1, -2], [0, 0], 0.0),
    ],
)
def test_shares_and_conflicts_by_hand(rewards, groups, weights, shares, conflicts):
    table = torch.as_tensor(rewards, dtype=torch.float64)
    keys = ["format", "length", "constant", "heavy"][: table.shape[1]]
    settings = EstimatorSettings(weights=weights, epsilon=0.0)
    found = contribution_metrics(decompose(table, groups, settings=settings), keys)
    names = [f"gdpo/{key}/advantage_share" for key in keys]
    expected = dict(zip(names, shares, strict=True)) | {"gdpo/sign_conflicts": conflicts}
    assert found == pytest.approx(expected, abs=1e-12)


def test_influence_and_noise_by_hand():
    # In a, z is s and -s for f, and 0 for l. In b, both have s and -s, with s² = 1/2. Unscored rows
    # do not count.
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0], [NAN, NAN]])
    exact = EstimatorSettings(epsilon=0.0)
    found = decompose(rewards, "aabbb", settings=exact)
    metrics = influence_metrics(found, found.combined.nan_to_num(5.0), ["f", "l"])
    assert {name: float(value) for name, value in metrics.items()} == {
        # (2 · s·s + 2 · 2s·s) / 4 and (2 · 2s·s) / 4 over the four rows.
        "gdpo/f/influence": pytest.approx(0.75, abs=1e-12),
        "gdpo/l/influence": pytest.approx(0.5, abs=1e-12),
        # Variances 2s² = 1 and 2·(2s)² = 4.
        "gdpo/noise_floor": pytest.approx(2.5, abs=1e-12),
    }
    assert [value.weight for value in metrics.values()] == [4, 4, 2]
    # GRPO's advantage of a sum in which f and a heavier l have opposite signs.
    grpo = decompose(torch.tensor(PULLING), "aabb", settings=exact)
    against = influence_metrics(grpo, grpo.grpo, ["f", "l"])
    assert against["gdpo/f/influence"] < 0 < against["gdpo/l/influence"]
    turned = EstimatorSettings(weights=[2.0, -2.0], epsilon=0.0)
    weighted = decompose(rewards, "aabbb", settings=turned)
    assert influence_metrics(weighted, weighted.grpo, ["f", "l"])["gdpo/noise_floor"] == (
        pytest.approx((4 * 1 + 0) / 2, abs=1e-12)
    )
    nothing = decompose(torch.full((2, 1), NAN), [0, 0])
    assert [*influence_metrics(nothing, nothing.grpo, ["f"]).values()] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("rewards", "groups", "failed", "expected"),
    [
        # Among a, b and c only b has a single row. Row 3 has no score, and rows 1 and 2 have one of
        # two.
        (
            [[1.0, 2.0], [NAN, 0.0], [1.0, NAN], [NAN, NAN], [0.0, 0.0]],
            ["a", "b", "a", "c", "c"],
            3,
            [1 / 3, 1 / 5, 3 / 8],
        ),
        ([[1.0, 1.0]] * 2, [0, 0], 0, [0.0, 0.0, 0.0]),
        # No rows.
        ([], [], 8, [0.0, 0.0, 1.0]),
    ],
)
def test_coverage_by_hand(rewards, groups, failed, expected):
    table = torch.tensor(rewards, dtype=torch.float64).reshape(-1, 2)
    names = ["gdpo/singleton_groups", "gdpo/unscored_rows", "gdpo/failed_sessions"]
    found = coverage_metrics(decompose(table, groups), failed)
    assert found == pytest.approx(dict(zip(names, expected, strict=True)))


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        # No reward function returns it.
        ([None, None], {}),
        # All responses can be read.
        ([0, 0], {"share": 0.0}),
        # Of four rows with a code, two have 4 and one has 1. The row with None is left out.
        ([4, 0, None, 1, 4], {"share": 0.75, "code_4": 0.5, "code_1": 0.25}),
    ],
)
def test_parse_errors_by_hand(codes, expected):
    expected = {f"gdpo/parse_error/{name}": share for name, share in expected.items()}
    assert parse_error_metrics(codes) == pytest.approx(expected)


def phantom(rewards, groups, **options):
    return outcome_metrics(decompose(rewards, groups, settings=EstimatorSettings(**options)), 0)


def test_phantom_groups_have_a_constant_outcome_and_another_reward_that_varies():
    # The outcome is constant in a (other rewards vary), in b (nothing varies) and in d (a single
    # row). It varies in c, and in e it is scored for one of two rows.
    rewards = torch.tensor(
        [[0, 1], [0, 2], [1, 5], [1, 5], [1, 0], [0, 0], [1, 1], [1, 1], [NAN, 2]],
        dtype=torch.float64,
    )
    groups = [0, 0, 1, 1, 2, 2, 3, 4, 4]
    assert phantom(rewards, groups) == {"gdpo/phantom_groups": pytest.approx(2 / 5)}
    assert phantom(rewards, groups, gate=Gate(0)) == {
        "gdpo/phantom_groups": 0.0,
        "gdpo/gated_groups": pytest.approx(4 / 5),
    }
    # b, d and e are solved, so that a gate for failures does not close them.
    failed = phantom(rewards, groups, gate=Gate(0, "failed"))
    assert failed["gdpo/gated_groups"] == pytest.approx(1 / 5)
    assert phantom(rewards, groups, weights=[1.0, 0.0]) == {"gdpo/phantom_groups": 0.0}
    assert outcome_metrics(decompose(rewards, groups), None) == {}


def test_a_variant_is_compared_with_gdpo_and_grpo():
    rewards = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0]], dtype=torch.float64)
    counts = torch.ones(4)
    conflicts = find_variant("gd2po").with_settings({"hard": True})
    settings = EstimatorSettings(variant=conflicts)
    found = variant_metrics(decompose(rewards, [0] * 4, counts, settings))
    # Two of four rows have rewards of opposite signs. The others are a and -a, as under GDPO and
    # GRPO.
    assert found["gdpo/variant/gd2po/zero_rows"] == 0.5
    assert found["gdpo/variant/gd2po/agrees_with_gdpo"] == pytest.approx(1.0)
    assert found["gdpo/variant/gd2po/agrees_with_grpo"] == pytest.approx(1.0)
    assert variant_metrics(decompose(rewards, [0] * 4, counts)) == {}


# ---------------------------------------------------------------- distinct advantages


@pytest.mark.parametrize(
    ("advantages", "groups", "expected"),
    [
        # The first group has three advantages, and the second has one.
        ([1.0, 0.0, 2.0, 0.0, 3.0, 0.0], [7, 3, 7, 3, 7, 3], 2.0),
        # A difference of 1e-5 counts as noise.
        ([1.0, 1.0 + 1e-5, 2.0], [0, 0, 0], 2.0),
        # The report and the explorer use the same definition (tests/lab/test_distinct.py).
        ([0.0, 0.9e-4, 1.8e-4], [0, 0, 0], 1.0),
        # A difference of 1e-3 counts.
        ([1.0, 1.0 + 1e-3, 2.0], [0, 0, 0], 3.0),
        # Unscored rows are left out.
        ([1.0, NAN, 2.0, NAN], [0, 0, 0, 1], 2.0),
        # Nothing is scored.
        ([NAN, NAN], [0, 0], 0.0),
        ([], [], 0.0),
    ],
)
def test_distinct_advantages_by_hand(advantages, groups, expected):
    found = distinct_advantages(torch.tensor(advantages, dtype=torch.float64), groups)
    assert found == expected


@pytest.mark.parametrize(
    ("rewards", "options", "gdpo", "grpo"),
    [
        # Each row earns one of two rewards, or none. The sums for GRPO are 1, 1, 1, 0: two
        # advantages. For GDPO z1 = 1.5, -0.5, -0.5, -0.5 and z2 = (-1, 1, 1, -1)·0.866: three
        # advantages.
        ([[1, 0], [0, 1], [0, 1], [0, 0]], {}, 3, 2),
        # z2 = -z1 except for the epsilons, so that GDPO distinguishes nothing. GRPO distinguishes
        # the sums -2 and 3.
        ([[3, 0], [-3, 1]] * 2, {"weights": [1e6, 1e6]}, 1, 2),
        # Without deviations the scale of the weights does not matter.
        ([[0, 1], [1, 1], [0, 0], [2, 1]], {"weights": [1e-3, 1e-3], "scale": False}, 4, 4),
    ],
)
def test_a_group_collapses_if_grpo_has_fewer_distinct_advantages_than_gdpo(
    rewards, options, gdpo, grpo
):
    table = torch.tensor(rewards, dtype=torch.float64)
    settings = EstimatorSettings(**options)
    found = collapse_metrics(decompose(table, [0] * len(rewards), settings=settings))
    name = "gdpo/distinct_advantages"
    assert found == {f"{name}/gdpo": gdpo, f"{name}/grpo": grpo}
