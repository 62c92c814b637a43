"""The variants: their properties, their limits, which are GDPO, and bad input.

Their numbers for the example, worked out by hand, are conformance vectors
(scripts/dev/conformance.py).

The example has two groups of four, r1 = 1 0 1 0 | 1 1 0 0 and r2 = 0 0 2 1 | 3 0 0 1. The unbiased
deviations are 1/sqrt(3) for r1 in both groups, and sqrt(11/12) = .95743 and sqrt(2) = 1.41421 for
r2. The deviations of the population are 1/2 in both groups, and .82916 and 1.22474. The rewards
minus their means are ±.5 for r1, and for r2 -.75 -.75 1.25 .25 in the first group and 2 -1 -1 0 in
the second.
"""

import logging
import math

import by_hand
import pytest
import torch
from by_hand import NAN
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.advantage import VARIANTS, EstimatorSettings, Gate, decompose, find_variant

R1 = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]
R2 = [0.0, 0.0, 2.0, 1.0, 3.0, 0.0, 0.0, 1.0]
EXAMPLE = torch.tensor([R1, R2], dtype=torch.float64).T
GROUPS = [0] * 4 + [1] * 4
RANGES = [(0.0, 1.0), (0.0, 3.0)]
OTHERS = [name for name in VARIANTS if name != "gdpo"]


def advantages(rewards, groups=GROUPS, **options):
    """Return one advantage for each response; each response has one token."""
    return gdpo_advantages(rewards, groups, torch.ones(len(rewards), 1), **options)[:, 0]


def close(found, expected, tolerance=6e-6):
    by_hand.close(found, expected, tolerance)


def needs(name, components=2):
    """Return the arguments that a variant needs."""
    return {"ranges": [(-10.0, 10.0)] * components} if VARIANTS[name].needs_ranges else {}


def with_first(*values):
    """Return the example with another first reward in its second group."""
    changed = EXAMPLE.clone()
    changed[4:, 0] = torch.tensor(values)
    return changed


def test_tchebycheff_uses_only_scored_components():
    # r1 is not scored, so that only r2 counts.
    some = EXAMPLE[:4].clone()
    some[:, 0] = NAN
    # With r2 alone the distances are 1 1 1/3 2/3, which is GRPO on r2.
    alone = advantages(some[:, 1:], [0] * 4, variant="tchebycheff", ranges=RANGES[1:])
    close(advantages(some, [0] * 4, variant="tchebycheff", ranges=RANGES), alone, 1e-12)
    close(alone, grpo_advantages(some[:, 1:], [0] * 4, torch.ones(4, 1))[:, 0], 1e-5)
    # If r2 has half the weight, the worst distances of the first group are 1/2 1 1/6 1.
    half = {"weights": [1.0, 0.5], "rho": 0.0, "ranges": RANGES}
    worst = torch.tensor([[-1 / 2], [-1], [-1 / 6], [-1]], dtype=torch.float64)
    weighted = advantages(EXAMPLE[:4], [0] * 4, variant="tchebycheff", **half)
    close(weighted, grpo_advantages(worst, [0] * 4, torch.ones(4, 1))[:, 0], 1e-9)
    # These sums differ only by rounding: .1 + .2 and .3 of the range.
    equal = torch.tensor([[0.9, 0.8, 0.7], [0.7, 0.9, 0.8]], dtype=torch.float64)
    unit = [(0.0, 1.0)] * 3
    assert not advantages(equal, [0, 0], variant="tchebycheff", ranges=unit).any()


def test_dara_raises_the_reward_that_varies_in_fewer_groups():
    # r1 varies in one of two groups, so that its factor is sqrt(1 / .5) = 1.41421. For r2 it is 1.
    constant = with_first(1, 1, 1, 1)
    asymmetric = [0.26195, -1.29522, 1.81775, -0.51732, 0.98649, -0.59343, -0.59343, -0.06679]
    symmetric = [0.30607, -1.39244, 1.75456, -0.66819, 0.98063, -0.49032, -0.49032, 0.0]
    close(advantages(constant, variant="dara"), asymmetric)
    close(advantages(constant, variant="dara", symmetric=True), symmetric)
    # Only groups in which a reward is scored count: r2 varies in one of two groups, and r1 in all
    # four.
    first = [1.0, 0.0] * 4
    second = [1.0, 0.0, 1.0, 1.0, NAN, NAN, NAN, NAN]
    pairs = [row // 2 for row in range(8)]
    rewards = torch.tensor([first, second], dtype=torch.float64).T
    found = advantages(rewards, pairs, variant="dara", whiten="none", epsilon=0.0)
    close(found[:3], [by_hand.S * (1 + 2**0.5), -2 * by_hand.S, by_hand.S], 1e-6)


def test_the_gate_excludes_a_group_from_the_advantages_and_from_the_whitening():
    failed, solved = with_first(0, 0, 0, 0), with_first(1, 1, 1, 1)
    left = [0.05124, -1.02230, 1.34599, -0.37493, 0.0, 0.0, 0.0, 0.0]
    close(advantages(failed, gate=0), left)
    close(advantages(solved, gate=0), left)
    close(advantages(failed, gate=Gate(0, "failed")), left)
    close(advantages(solved, gate=Gate(0, "failed")), advantages(solved), 0.0)
    assert float(advantages(failed)[4]) > 0.5  # a phantom group: no response has succeeded
    # In a group whose outcome is not scored, the outcome is not constant.
    unscored = with_first(NAN, NAN, NAN, NAN)
    close(advantages(unscored, gate=0), advantages(unscored), 0.0)


@pytest.mark.parametrize("name", OTHERS)
def test_the_gate_closes_for_every_variant(name):
    found = advantages(with_first(0, 0, 0, 0), gate=0, variant=name, **needs(name))
    assert bool((found[4:] == 0).all())
    alone = advantages(EXAMPLE[:4], [0] * 4, variant=name, **needs(name))
    if name not in ("sa_mrpo", "saw", "dara"):  # their weights depend on the whole batch
        close(found[:4], alone, 1e-12)


TABLES = st.integers(0, 2**31 - 1)
IDS = [row // 4 for row in range(20)]


def random_batch(seed, k=3):
    """Draw rewards from 0 to 3 in five groups of four, `IDS`."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (20, k), generator=generator).double()


@settings(max_examples=25, deadline=None)
@given(TABLES, st.integers(1, 5))
def test_mgda_gives_the_shortest_combination(seed, k):
    rewards = random_batch(seed, k=k)
    rewards[:, 0] = 2.0  # the first reward varies nowhere
    rewards[:, -1] = 3 * rewards[:, k // 2]  # the last reward repeats another one
    found = advantages(rewards, IDS, variant="mgda", epsilon=0.0)
    z = decompose(rewards, IDS, settings=EstimatorSettings(epsilon=0.0)).normalized
    # A point of a convex set is its shortest point if no other point is nearer in its direction.
    for column in z[:, z.any(dim=0)].unbind(dim=1):
        assert float(column @ found) >= float(found @ found) - 1e-9


@settings(max_examples=40, deadline=None)
@given(TABLES)
def test_at_the_ends_of_its_settings_a_variant_is_gdpo_or_what_its_page_says(seed):
    rewards, groups = random_batch(seed), IDS

    def weighted(**options):
        return advantages(rewards, groups, weights=[1.0, 0.5, 2.0], **options)

    gdpo = weighted()
    saturated = weighted(variant="sa_mrpo", gamma=0.0, ranges=[(-1e9, 1e9)] * 3)
    # the deviation of the batch is that of the population
    close(saturated, gdpo * math.sqrt(20 / 19), 2e-5)
    close(weighted(variant="gd2po", tau=0.0), gdpo, 1e-12)
    close(weighted(variant="dara", w_max=1.0), gdpo, 1e-12)
    close(weighted(variant="mo_grpo"), weighted(whiten="none"), 0.0)
    hard = advantages(rewards, groups, variant="gd2po", hard=True)
    close(advantages(rewards, groups, variant="gd2po", tau=1.0), hard, 0.0)
    close(advantages(rewards, groups, variant="rvpo", k=1e-6), advantages(rewards, groups), 1e-4)
    large = find_variant("rvpo").with_settings({"k": 1e6})
    settings = EstimatorSettings(whiten="none", variant=large)
    smallest = decompose(rewards, groups, settings=settings)
    close(smallest.advantage, smallest.normalized.amin(dim=1), 1e-5)
    # Far from zero the ratio of deviation and mean is nearly 0, and the same for every reward.
    one = rewards[:, :1]
    for name in ("saw", "dara"):
        close(advantages(one, groups, variant=name), advantages(one, groups), 1e-12)
    # All rewards vary equally.
    scaled = torch.stack([EXAMPLE[:, 1], 7.0 * EXAMPLE[:, 1].flip(0)], dim=1)
    close(advantages(scaled, variant="saw"), advantages(scaled), 1e-12)


@settings(max_examples=40, deadline=None)
@given(TABLES)
def test_with_one_component_each_variant_is_what_its_page_says(seed):
    one = random_batch(seed, k=1)
    centred = one - one.reshape(-1, 4, 1).mean(dim=1).repeat_interleave(4, dim=0)
    deviation = one.reshape(-1, 4).std(dim=1, correction=0).repeat_interleave(4)
    # CorrGRPO is Dr.GRPO up to its epsilon, and DVAO is GRPO with the deviation of the population.
    close(advantages(one, IDS, variant="corr_grpo"), centred[:, 0], 1e-5)
    grpo = (centred[:, 0] / deviation).where(deviation > 1e-9, 0.0)
    close(advantages(one, IDS, variant="dvao"), grpo, 1e-9)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(seed=TABLES)
def test_the_order_of_rows_and_of_components_does_not_matter(name, seed):
    rewards = random_batch(seed)
    options = {"variant": name, **needs(name, 3)}
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=generator) for n in rewards.shape)
    moved = advantages(rewards[rows][:, columns], [IDS[row] for row in rows], **options)
    close(moved, advantages(rewards, IDS, **options)[rows], 1e-9)


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=15, deadline=None)
@given(seed=TABLES)
def test_the_scale_of_a_reward_and_of_its_range_does_not_matter(name, seed):
    rewards = random_batch(seed)

    def in_units(*units):
        options = {"ranges": [(-unit, 5 * unit) for unit in units]} if needs(name) else {}
        scaled = rewards * torch.tensor(units, dtype=torch.float64)
        return advantages(scaled, IDS, variant=name, epsilon=0.0, **options)

    one = in_units(1.0, 1.0, 1.0)
    for size in (1e-300, 1e299):  # at the ends of float64
        found = in_units(size, size, size)
        assert bool(found.isfinite().all())
        if name != "corr_grpo":  # its advantages are in reward units
            close(found, one, 1e-9)
    if name not in ("dvao", "corr_grpo"):  # these variants give the larger reward more weight
        close(in_units(30.0, 1.0, 0.1), one, 1e-9)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("factor", [1e-250, 10.0, 1e250])
def test_a_common_factor_of_the_weights_changes_only_the_size(name, factor):
    one = advantages(EXAMPLE, variant=name, weights=[1.0, 1.0], **needs(name))
    found = advantages(EXAMPLE, variant=name, weights=[factor, factor], **needs(name))
    if name in ("mo_grpo", "corr_grpo"):
        found = found / factor
    close(found, one, 1e-9)


@pytest.mark.parametrize("name", VARIANTS)
def test_constant_groups_singletons_padding_and_unscored_rewards(name):
    third = torch.tensor([[0.3, 5.0]] * 7)  # in floating point the mean of seven times .3 is not .3
    single, unscored = torch.tensor([[1.0, 2.0]]), torch.full((2, 2), NAN)
    some = torch.tensor([[NAN, 1.0], [1.0, NAN], [0.0, 3.0]])
    rewards = torch.cat([EXAMPLE.float(), third, single, unscored, some])
    groups = [*GROUPS, *[2] * 7, 3, 0, 4, *[5] * 3]
    mask = by_hand.lengths(3, 1, 2, 3, 1, 2, 3, 1, 2, 0, *[2] * 11)
    options = {"variant": name, **needs(name)}
    found = gdpo_advantages(rewards, groups, mask, whiten="none", **options)
    assert bool(found.isfinite().all())
    assert not bool(found[mask == 0].any())
    # a constant group, a group of one, and a group in which nothing is scored
    assert not bool(found[8:18].any())
    assert bool(found[18:21, 0].any())
    whitened = gdpo_advantages(rewards, groups, mask, **options)
    assert bool(whitened.isfinite().all())
    assert not bool(whitened[16:18].any())
    # An unscored row changes nothing for the other rows.
    alone = gdpo_advantages(rewards[:16], groups[:16], mask[:16], whiten="none", **options)
    if name not in ("sa_mrpo", "saw", "dara"):
        close(found[:16], alone.double(), 1e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_component_that_is_never_scored_changes_nothing(name):
    nobody = torch.full((len(EXAMPLE), 1), NAN)
    found = advantages(torch.cat([EXAMPLE, nobody], dim=1), variant=name, **needs(name, 3))
    close(found, advantages(EXAMPLE, variant=name, **needs(name)), 1e-8)


@pytest.mark.parametrize("name", VARIANTS)
def test_one_kept_response_or_none_and_an_empty_batch_do_not_fail(name):
    opposite = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    groups = [0, 0, 0, 0, 1]
    assert bool(advantages(opposite, groups, variant=name, **needs(name)).isfinite().all())
    if name == "gd2po":
        assert not advantages(opposite[:2], [0, 0], variant=name, hard=True).any()
    empty = gdpo_advantages(torch.zeros(0, 2), [], torch.zeros(0, 5), variant=name, **needs(name))
    assert empty.shape == (0, 5)


def test_corr_grpo_warns_if_correlations_cancel(caplog):
    # With rho = -1 and unequal scales, the formula gives ±.5 * 9 / 1e-6.
    opposite = torch.tensor([[1.0, 0.0], [0.0, 10.0], [1.0, 0.0], [0.0, 10.0]])
    rewards, groups = torch.cat([opposite, EXAMPLE.float()]), [2] * 4 + GROUPS
    with caplog.at_level(logging.WARNING):
        found = advantages(rewards, groups, variant="corr_grpo")
    assert found[:4].tolist() == [0.0] * 4
    assert "in 1 of 3 groups the rewards' correlations add up to 0" in caplog.text
    close(found[4:], advantages(EXAMPLE, variant="corr_grpo"), 1e-6)


def test_a_huge_advantage_raises_a_warning(caplog):
    with caplog.at_level(logging.WARNING):
        advantages(EXAMPLE * 1e4, variant="corr_grpo")
    assert "variant corr_grpo: the largest advantage is 1.49e+04" in caplog.text


SA_MRPO = {"variant": "sa_mrpo", "ranges": [(0, 1), (0, 3)]}


def test_above_its_target_a_reward_has_no_weight_or_the_floor():
    second = advantages(EXAMPLE, weights=[0.0, 1.0], **SA_MRPO)
    close(advantages(EXAMPLE, **SA_MRPO, targets=[0.5, None]), second, 1e-12)
    floor = advantages(EXAMPLE, **SA_MRPO, targets=[0.5, 3.0], targets_floor=1.0)
    close(floor, advantages(EXAMPLE, **SA_MRPO, gamma=0.0), 1e-12)
    close(advantages(EXAMPLE, **SA_MRPO, targets=[1, 3]), advantages(EXAMPLE, **SA_MRPO), 0.0)


PAIRS = [row // 2 for row in range(8)]


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("variant", {"variant": "dvoa"}),
        ("wmax", {"variant": "dara", "wmax": 2.0}),
        ("w_max", {"variant": "dara", "w_max": 0.5}),
        ("symmetric", {"variant": "dara", "symmetric": 1}),
        ("ranges", {"variant": "sa_mrpo"}),
        ("ranges", {"variant": "sa_mrpo", "ranges": [(0, 1), None]}),
        ("ranges", {"variant": "sa_mrpo", "ranges": [(0, 1), (1, 1)]}),
        ("targets", SA_MRPO | {"targets": [1.0, 0.5, 0.5]}),
        ("targets", SA_MRPO | {"targets": [0.0, None]}),
        ("targets", SA_MRPO | {"targets": ["1", None]}),
        ("targets", SA_MRPO | {"targets": {"a": 1.0, "b": 2.0}}),
        ("targets_floor", SA_MRPO | {"targets_floor": 1.5}),
        ("ranges", {"variant": "saw", "ranges": [(0, 1)]}),
        ("weights", {"variant": "rvpo", "weights": [1.0, 2.0]}),
        ("weights", {"variant": "dvao", "weights": [1.0, -1.0]}),
        ("gate", {"gate": 2}),
        ("gate", {"gate": "correctness"}),
        ("gate", {"gate": Gate(0, "never")}),
        ("group_ids", {"variant": "corr_grpo", "groups": PAIRS}),
    ],
)
def test_input_for_which_a_method_is_not_defined_is_rejected(argument, options):
    with pytest.raises(ValueError, match=f"^{argument}: "):
        advantages(EXAMPLE, **options)


def test_one_component_has_no_correlations():
    assert bool(advantages(EXAMPLE[:, :1], PAIRS, variant="corr_grpo").any())


# Groups of two in which the second reward varies, both rewards vary with opposite signs, none
# varies, or a small one varies; and a group of one response.
SILENT = torch.tensor(
    [[1, 3], [1, 1], [1, 0], [0, 3], [1, 1], [1, 1], [1e-6, 1], [0, 1], [1, 2]],
    dtype=torch.float64,
)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {0, 3}),
        ({"weights": [2.0, 1.0]}, {0, 1, 3}),
        ({"weights": [1.0, 0.0]}, {1, 3}),
        ({"gate": Gate(0)}, {3}),
        ({"scale": False}, {0, 1, 3}),
        ({"variant": find_variant("rvpo")}, {0, 1, 3}),
    ],
)
def test_a_group_has_a_signal_if_the_variant_gives_it_an_advantage(options, expected):
    groups = [0, 0, 1, 1, 2, 2, 3, 3, 4]
    found = decompose(SILENT, groups, settings=EstimatorSettings(**options))
    assert found.has_signal.tolist() == [group in expected for group in groups]
