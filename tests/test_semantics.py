"""docs/semantics.md is true: the other implementations' formulas, and our setting for each.

Each formula is written out in float64 Python from the page's table. s is the unbiased
deviation over the batch of the combined advantages before the last step. Where the page says
that two agree, random batches away from the degenerate cases show by how much; where it says
that they differ, one small batch shows how.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from gdpo_verl import gdpo_advantages, group_normalize
from gdpo_verl.advantage import Whiten

NAN = math.nan
Rows = list[list[float]]

# Six rewards 1, 0, 0, 1, 1, 0 in one group, and rewards of constant sum on them: 6c - 3 deviates
# by six times as much as 1 - c, so that a group epsilon leaves a remainder.
CANCELLING: Rows = [[6 * c - 3, 1 - c] for c in (1.0, 0.0, 0.0, 1.0, 1.0, 0.0)]
TWO_GROUPS: Rows = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
PAIRS = [0, 0, 1, 1]


def ours(
    rewards: Rows,
    groups: Sequence[int],
    *,
    weights: Sequence[float] | None = None,
    whiten: Whiten = "sequence",
    epsilon: float = 1e-6,
    scale: bool = True,
    lengths: Sequence[int] | None = None,
) -> list[float]:
    """One advantage a row, from our public function in float64."""
    tokens = torch.tensor([1] * len(rewards) if lengths is None else lengths)
    mask = torch.arange(int(tokens.max())) < tokens[:, None]
    raw = torch.tensor(rewards, dtype=torch.float64)
    result: Tensor = gdpo_advantages(
        raw, groups, mask, weights=weights, whiten=whiten, epsilon=epsilon, scale=scale
    )
    return [float(value) for value in result[:, 0]]


# ---------------------------------------------------------------- the peers, from the table


def members(groups: Sequence[int], row: int) -> list[int]:
    return [other for other, group in enumerate(groups) if group == groups[row]]


def z_with_epsilon(column: Sequence[float], groups: Sequence[int], epsilon: float) -> list[float]:
    """(r - mean) / (std + epsilon) over the scored rows of the group; NaN becomes 0."""
    result = []
    for row, reward in enumerate(column):
        scored = [column[other] for other in members(groups, row) if column[other] == column[other]]
        if reward != reward or len(scored) < 2:
            result.append(0.0)
        else:
            deviation = statistics.stdev(scored) + epsilon
            result.append((reward - statistics.fmean(scored)) / deviation)
    return result


def z_of_verl(column: Sequence[float], groups: Sequence[int]) -> list[float]:
    """As above with 1e-6, but a group of one has mean 0 and deviation 1."""
    normalized = z_with_epsilon(column, groups, 1e-6)
    return [
        reward / (1 + 1e-6) if len(members(groups, row)) == 1 else normalized[row]
        for row, reward in enumerate(column)
    ]


def z_of_nemo(
    column: Sequence[float], groups: Sequence[int], leave_one_out: bool = False
) -> list[float]:
    """Scaled only where std > 0; left out: the row itself, from its mean and deviation."""
    result = []
    for row, reward in enumerate(column):
        base = [column[i] for i in members(groups, row) if not (leave_one_out and i == row)]
        if len(members(groups, row)) < 2:
            result.append(0.0)
            continue
        if any(value != value for value in base):
            result.append(NAN)
            continue
        std = statistics.stdev(base) if len(base) > 1 else 0.0
        result.append((reward - statistics.fmean(base)) / (std + 1e-6 if std > 0 else 1.0))
    return result


def combine(
    rewards: Rows, weights: Sequence[float], normalize: Callable[[list[float]], list[float]]
) -> list[float]:
    columns = [normalize(list(column)) for column in zip(*rewards, strict=True)]
    return [
        sum(w * z for w, z in zip(weights, row, strict=True)) for row in zip(*columns, strict=True)
    ]


def standardize(values: Sequence[float], epsilon: float) -> list[float]:
    """(a - mean) / (std + epsilon) over the rows that are not NaN; NaN rows become 0."""
    live = [value for value in values if value == value]
    mean, deviation = statistics.fmean(live), statistics.stdev(live) + epsilon
    return [(value - mean) / deviation if value == value else 0.0 for value in values]


def trl(rewards: Rows, groups: Sequence[int], weights: Sequence[float]) -> list[float]:
    sums = combine(rewards, weights, lambda column: z_with_epsilon(column, groups, 1e-4))
    unscored = [all(reward != reward for reward in row) for row in rewards]
    sums = [NAN if skip else total for skip, total in zip(unscored, sums, strict=True)]
    return standardize(sums, 1e-4)


def trl_fork(rewards: Rows, groups: Sequence[int], weights: Sequence[float]) -> list[float]:
    filled = [[0.0 if reward != reward else reward for reward in row] for row in rewards]
    sums = combine(filled, weights, lambda column: z_with_epsilon(column, groups, 1e-4))
    return standardize(sums, 1e-4)


def axolotl_async(rewards: Rows, groups: Sequence[int], weights: Sequence[float]) -> list[float]:
    sums = combine(rewards, weights, lambda column: z_with_epsilon(column, groups, 1e-4))
    return standardize(sums, 1e-4)


def axolotl_streaming(
    rewards: Rows, groups: Sequence[int], weights: Sequence[float]
) -> list[float]:
    sums = combine(rewards, weights, lambda column: z_with_epsilon(column, groups, 1e-4))
    return z_with_epsilon(sums, groups, 1e-4)


def ms_swift(rewards: Rows, groups: Sequence[int], weights: Sequence[float]) -> list[float]:
    sums = combine(rewards, weights, lambda column: z_with_epsilon(column, groups, 1e-8))
    return standardize(sums, 1e-8)


def nemo(
    rewards: Rows, groups: Sequence[int], weights: Sequence[float], leave_one_out: bool = False
) -> list[float]:
    sums = combine(rewards, weights, lambda column: z_of_nemo(column, groups, leave_one_out))
    if any(total != total for total in sums):
        return [NAN] * len(sums)
    if statistics.stdev(sums) > 0:
        return standardize(sums, 0.0)
    return [total - statistics.fmean(sums) for total in sums]


def verl(
    rewards: Rows, groups: Sequence[int], weights: Sequence[float], lengths: Sequence[int]
) -> list[float]:
    sums = combine(rewards, weights, lambda column: z_of_verl(column, groups))
    tokens = [total for total, n in zip(sums, lengths, strict=True) for _ in range(n)]
    mean, deviation = statistics.fmean(tokens), math.sqrt(statistics.variance(tokens) + 1e-8)
    return [(total - mean) / deviation for total in sums]


# ---------------------------------------------------------------- where they agree


class Batch(NamedTuple):
    rewards: Rows
    groups: list[int]
    weights: list[float]
    lengths: list[int]


def random_batch(seed: int, group_size: int = 4) -> Batch:
    """Six interleaved groups, three normal components that deviate by about 1, 30 and 0.5."""
    draw = random.Random(seed)
    groups = [group for group in range(6) for _ in range(group_size)]
    draw.shuffle(groups)
    rewards = [[draw.gauss(2.0, sigma) for sigma in (1.0, 30.0, 0.5)] for _ in groups]
    return Batch(rewards, groups, [1.0, 0.5, -2.0], [draw.randint(1, 9) for _ in groups])


def deviation(batch: Batch, epsilon: float) -> float:
    """s, of which the page's factors are functions."""
    return statistics.stdev(
        combine(batch.rewards, batch.weights, lambda c: z_with_epsilon(c, batch.groups, epsilon))
    )


def close(found: Sequence[float], expected: Sequence[float], *, relative: float) -> None:
    # 1e-12 for advantages that happen to be near 0.
    assert list(found) == pytest.approx(list(expected), rel=relative, abs=1e-12)


SEEDS = pytest.mark.parametrize("seed", range(5))


@SEEDS
@pytest.mark.parametrize("peer", [trl, trl_fork, axolotl_async], ids=lambda peer: peer.__name__)
def test_over_sequences_with_epsilon_1e_4_it_is_trl_up_to_1e_4_of_the_deviation(
    peer: Callable[..., list[float]], seed: int
) -> None:
    batch = random_batch(seed)
    found = ours(batch.rewards, batch.groups, weights=batch.weights, epsilon=1e-4)
    theirs = peer(batch.rewards, batch.groups, batch.weights)
    s = deviation(batch, 1e-4)
    close(found, theirs, relative=1e-4 / s)
    factor = (s + 1e-4) / math.sqrt(s**2 + 1e-8)
    close(found, [factor * advantage for advantage in theirs], relative=1e-8)
    assert factor - 1 > 0.9e-4 / s  # the bound is no larger than it has to be


@SEEDS
def test_over_sequences_with_epsilon_1e_8_it_is_ms_swift_to_1e_7(seed: int) -> None:
    batch = random_batch(seed)
    found = ours(batch.rewards, batch.groups, weights=batch.weights, epsilon=1e-8)
    close(found, ms_swift(batch.rewards, batch.groups, batch.weights), relative=1e-7)


@SEEDS
def test_over_sequences_it_is_nemo_rl_to_1e_7(seed: int) -> None:
    batch = random_batch(seed)
    found = ours(batch.rewards, batch.groups, weights=batch.weights)
    close(found, nemo(batch.rewards, batch.groups, batch.weights), relative=1e-7)


@SEEDS
def test_without_the_std_it_is_nemo_rl_leaving_one_out_of_groups_of_two(seed: int) -> None:
    # What is left out leaves one row, which has no deviation: ±|r1 - r2|, twice what centring
    # gives, and whitening takes the 2 out.
    batch = random_batch(seed, group_size=2)
    found = ours(batch.rewards, batch.groups, weights=batch.weights, scale=False)
    theirs = nemo(batch.rewards, batch.groups, batch.weights, leave_one_out=True)
    close(found, theirs, relative=1e-7)


@SEEDS
def test_by_default_it_is_verl_to_1e_8(seed: int) -> None:
    batch = random_batch(seed)
    rewards, groups, weights, lengths = batch
    found = ours(rewards, groups, weights=weights, whiten="token", lengths=lengths)
    # The 1e-8 beside the variance is in units of the weights in verl, of the largest one here.
    close(found, verl(rewards, groups, weights, lengths), relative=1e-8)


@SEEDS
def test_over_sequences_the_mean_is_already_zero_and_only_the_scale_changes(seed: int) -> None:
    rewards, groups, weights, _ = random_batch(seed)
    before = ours(rewards, groups, weights=weights, whiten="none")
    after = ours(rewards, groups, weights=weights, whiten="sequence")
    assert statistics.fmean(before) == pytest.approx(0.0, abs=1e-12)
    close([a / after[0] for a in after], [b / before[0] for b in before], relative=1e-9)


# ---------------------------------------------------------------- where they differ


def test_the_worked_example_tells_the_implementations_apart() -> None:
    ones, lengths = [1.0, 1.0], [3, 1, 1, 1]
    # sqrt(3/10) and twice that; TRL divides by s + 1e-4 with s = sqrt(5/3).
    assert ms_swift(TWO_GROUPS, PAIRS, ones) == pytest.approx(
        [0.54772, -0.54772, 1.09545, -1.09545], 1e-5
    )
    assert nemo(TWO_GROUPS, PAIRS, ones) == pytest.approx(
        [0.54772, -0.54772, 1.09545, -1.09545], 1e-5
    )
    assert trl(TWO_GROUPS, PAIRS, ones) == pytest.approx(
        [0.54768, -0.54768, 1.09536, -1.09536], 1e-5
    )
    found = verl(TWO_GROUPS, PAIRS, ones, lengths)
    assert found == pytest.approx([0.44281, -0.88561, 1.10702, -1.54983], 1e-5)


def test_axolotl_streaming_whitens_each_group_and_undoes_the_decoupling() -> None:
    found = axolotl_streaming(TWO_GROUPS, PAIRS, [1.0, 1.0])
    assert found == pytest.approx([0.7071, -0.7071, 0.7071, -0.7071], abs=1e-4)
    assert ours(TWO_GROUPS, PAIRS)[2] == pytest.approx(2 * ours(TWO_GROUPS, PAIRS)[0], rel=1e-5)


def test_over_tokens_a_dead_group_is_pushed_and_over_sequences_it_is_not() -> None:
    rewards, groups = [[r] for r in (0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0)], [0] * 4 + [1] * 4
    lengths = [1, 1, 1, 1, 1, 4, 1, 4]
    theirs = verl(rewards, groups, [1.0], lengths)
    assert theirs[0] == pytest.approx(-0.567, abs=5e-4)
    over_tokens = ours(rewards, groups, whiten="token", lengths=lengths)
    assert over_tokens == pytest.approx(theirs, rel=1e-9)
    assert ours(rewards, groups, lengths=lengths)[:4] == pytest.approx([0.0] * 4, abs=1e-15)


@pytest.mark.parametrize(
    ("peer", "size"),
    [
        # 6c - 3 deviates by 3.28634, 1 - c by 0.54772, and z is ±0.91287 before the epsilons. They
        # leave 0.91287 e (1/0.54772 - 1/3.28634) = 1.38889 e, which deviates by sqrt(6/5) of that:
        # 1.38889 e / (1.52145 e + e).
        pytest.param(trl, 0.55083, id="TRL"),
        pytest.param(ms_swift, 0.55083, id="ms-swift"),
        # Nothing is added: all of the remainder is blown up to sqrt(5/6).
        pytest.param(nemo, math.sqrt(5 / 6), id="NeMo-RL"),
    ],
)
def test_cancelling_rewards_leave_advantages_of_order_one_elsewhere_and_zero_here(
    peer: Callable[..., list[float]], size: float
) -> None:
    found = peer(CANCELLING, [0] * 6, [1.0, 1.0])
    assert [abs(advantage) for advantage in found] == pytest.approx([size] * 6, abs=1e-3)
    assert set(ours(CANCELLING, [0] * 6)) == {0.0}


def test_cancelling_rewards_are_small_in_verl_and_zero_here() -> None:
    # A remainder of about 1e-6 over sqrt(1e-8).
    found = verl(CANCELLING, [0] * 6, [1.0, 1.0], [1] * 6)
    assert 1e-3 < max(map(abs, found)) < 0.02
    assert set(ours(CANCELLING, [0] * 6, whiten="token")) == {0.0}


UNSCORED_ROW: Rows = [[1.0, 0.0], [0.0, 0.0], [NAN, NAN], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
UNSCORED_COMPONENT: Rows = [[1.0, 0.0], [0.0, NAN], [1.0, 1.0], [0.0, 0.0]]
THREES = [0, 0, 0, 1, 1, 1]


def test_an_unscored_row_is_out_of_the_batch_statistics_in_trl_and_here() -> None:
    found = ours(UNSCORED_ROW, THREES, epsilon=1e-4)
    assert found == pytest.approx(trl(UNSCORED_ROW, THREES, [1.0, 1.0]), abs=2e-4)
    assert found[2] == 0.0


@pytest.mark.parametrize(
    ("peer", "epsilon"), [(ms_swift, 1e-8), (axolotl_async, 1e-4)], ids=["ms-swift", "axolotl"]
)
def test_elsewhere_an_unscored_row_widens_the_batch_by_one(
    peer: Callable[..., list[float]], epsilon: float
) -> None:
    # Six rows count instead of five, with the same sum of squares: sqrt(5/4).
    theirs = peer(UNSCORED_ROW, THREES, [1.0, 1.0])
    found = ours(UNSCORED_ROW, THREES, epsilon=epsilon)
    assert theirs == pytest.approx([math.sqrt(5 / 4) * value for value in found], abs=2e-4)


def test_one_unscored_component_is_left_out_of_its_group_in_trl_ms_swift_and_here() -> None:
    weights = [1.0, 1.0]
    found = ours(UNSCORED_COMPONENT, [0] * 4, epsilon=1e-8)
    assert found == pytest.approx(ms_swift(UNSCORED_COMPONENT, [0] * 4, weights), rel=1e-6)
    found = ours(UNSCORED_COMPONENT, [0] * 4, epsilon=1e-4)
    assert found == pytest.approx(trl(UNSCORED_COMPONENT, [0] * 4, weights), abs=2e-4)


def test_the_trl_fork_counts_an_unscored_component_as_reward_zero() -> None:
    theirs = trl_fork(UNSCORED_COMPONENT, [0] * 4, [1.0, 1.0])
    zeros = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
    assert ours(zeros, [0] * 4, epsilon=1e-4) == pytest.approx(theirs, abs=2e-4)
    found = ours(UNSCORED_COMPONENT, [0] * 4, epsilon=1e-4)
    assert max(abs(a - b) for a, b in zip(found, theirs, strict=True)) > 0.1


def test_in_nemo_rl_one_nan_poisons_the_batch_and_here_it_does_not() -> None:
    assert all(math.isnan(value) for value in nemo(UNSCORED_ROW, THREES, [1.0, 1.0]))
    assert all(math.isfinite(value) for value in ours(UNSCORED_ROW, THREES))


@pytest.mark.parametrize("peer", [trl, ms_swift, nemo], ids=["TRL", "ms-swift", "NeMo-RL"])
def test_a_group_of_one_is_zero_over_sequences_and_counts_in_the_batch(
    peer: Callable[..., list[float]],
) -> None:
    # s, -s and 0 over three rows: ±1.
    rewards, groups = [[50.0], [1.0], [0.0]], [0, 1, 1]
    assert peer(rewards, groups, [1.0]) == pytest.approx([0.0, 1.0, -1.0], abs=2e-4)
    assert ours(rewards, groups) == pytest.approx([0.0, 1.0, -1.0], abs=2e-6)


def test_a_group_of_one_keeps_its_raw_reward_in_verl_and_is_zero_here() -> None:
    rewards, groups = [[50.0], [1.0], [0.0]], [0, 1, 1]
    theirs = verl(rewards, groups, [1.0], [1, 1, 1])
    assert theirs == pytest.approx([1.15435, -0.55269, -0.60166], abs=1e-5)
    found = ours(rewards, groups, whiten="token")
    assert found == pytest.approx([0.0, 1.0, -1.0], abs=2e-6)


@pytest.mark.parametrize(
    ("epsilon", "worst"),
    [(1e-8, 0.925), (1e-6, 0.826), (1e-4, 0.0705)],
    ids=["1e-8 as ms-swift", "1e-6 as verl", "1e-4 as TRL"],
)
def test_an_epsilon_does_not_silence_the_rounding_of_a_constant_group(
    epsilon: float, worst: float
) -> None:
    column = torch.full((7,), 100.1)
    total = torch.zeros(())
    for reward in column:  # a sum in float32, one after the other
        total = total + reward
    rounding = column - total / 7
    z = rounding / ((rounding.square().sum() / 6).sqrt() + epsilon)
    assert float(z.abs().max()) == pytest.approx(worst, abs=1e-3)
    assert not bool(group_normalize(column[:, None], [0] * 7, epsilon=epsilon).any())


def test_nemo_rl_loses_a_deviation_far_from_zero_in_float32_and_here_it_is_kept() -> None:
    column = torch.tensor([5000.0, 5001.0, 5000.0, 5001.0])
    variance = (column.square().mean() - column.mean().square()) * 4 / 3
    assert float(variance) <= 0
    # Mean 5000.5, unbiased deviation sqrt(1/3): 0.5 sqrt(3).
    expected = torch.tensor([[-0.866025], [0.866025], [-0.866025], [0.866025]])
    found = group_normalize(column[:, None], [0] * 4)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0.0)


def test_no_setting_is_nemo_rl_leaving_one_out_of_larger_groups() -> None:
    rewards, groups = [[r] for r in (1.0, 0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 5.0)], [0] * 4 + [1] * 4
    theirs = nemo(rewards, groups, [1.0], leave_one_out=True)
    # The others of the first row are all 0, so it stays at 1 - 0 where the rest is scaled.
    for scale in (True, False):
        found = ours(rewards, groups, scale=scale)
        assert max(abs(a - b) for a, b in zip(found, theirs, strict=True)) > 0.1
