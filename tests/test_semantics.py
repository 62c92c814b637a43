"""docs/semantics.md is true: the other implementations' formulas, and our setting for each.

Each formula is written out in float64 from the page's table. s is the unbiased deviation over the
batch of the combined advantages before the last step. Where the page says that two agree, random
batches away from the degenerate cases show by how much; where it says that they differ, one small
batch shows how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gdpo_verl import gdpo_advantages, group_normalize

NAN = math.nan
Peer = Callable[..., Tensor]


def rows(*values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


TWO_GROUPS = rows([1, 0], [0, 0], [1, 1], [0, 0])
PAIRS, THREES = [0, 0, 1, 1], [0, 0, 0, 1, 1, 1]
# Rewards of constant sum on 1, 0, 0, 1, 1, 0: 6c - 3 deviates by six times as much as 1 - c, so
# that a group epsilon leaves a remainder.
CANCELLING = rows(*([6 * c - 3, 1 - c] for c in (1, 0, 0, 1, 1, 0)))
UNSCORED_ROW = rows([1, 0], [0, 0], [NAN, NAN], [1, 1], [0, 0], [0, 1])
UNSCORED_COMPONENT = rows([1, 0], [0, NAN], [1, 1], [0, 0])


def ours(rewards: Tensor, groups: Sequence[int], **settings: Any) -> Tensor:
    """One advantage a row; whitened over sequences where nothing else is asked."""
    tokens = torch.tensor(settings.pop("lengths", [1] * len(rewards)))
    mask = torch.arange(int(tokens.max())) < tokens[:, None]
    return gdpo_advantages(rewards, groups, mask, **{"whiten": "sequence"} | settings)[:, 0]


# ---------------------------------------------------------------- the peers, from the table


def combined(
    rewards: Tensor, groups: Sequence[int], weights: Sequence[float], z: Callable[[Tensor], Tensor]
) -> Tensor:
    """The weighted sum of what `z` makes of each component in its group."""
    result = torch.empty_like(rewards)
    for group in set(groups):
        own = torch.tensor([each == group for each in groups])
        result[own] = torch.stack([z(column) for column in rewards[own].unbind(1)], 1)
    return result @ rows(weights)[0]


def z_with_epsilon(epsilon: float, column: Tensor) -> Tensor:
    """(r - mean) / (std + epsilon) over the scored rows of the group; NaN becomes 0."""
    scored = column[~column.isnan()]
    if len(scored) < 2:
        return torch.zeros_like(column)
    return ((column - scored.mean()) / (scored.std() + epsilon)).nan_to_num(0.0)


def z_of_nemo(leave_one_out: bool, column: Tensor) -> Tensor:
    """Scaled only where std > 0; left out: the row itself, from its mean and deviation."""
    result = torch.zeros_like(column)
    for row in range(len(column) if len(column) > 1 else 0):
        base = torch.cat([column[:row], column[row + 1 :]]) if leave_one_out else column
        std = float(base.std()) if len(base) > 1 else 0.0
        result[row] = (column[row] - base.mean()) / (std + 1e-6 if std > 0 else 1.0)
    return result


def standardize(values: Tensor, epsilon: float) -> Tensor:
    """(a - mean) / (std + epsilon) over the rows that are not NaN; NaN rows become 0."""
    live = values[~values.isnan()]
    return ((values - live.mean()) / (live.std() + epsilon)).nan_to_num(0.0)


def over_sequences(
    epsilon: float, rewards: Tensor, groups: Sequence[int], weights: Sequence[float]
) -> Tensor:
    """ms-swift with 1e-8; axolotl's own trainer with 1e-4."""
    z = partial(z_with_epsilon, epsilon)
    return standardize(combined(rewards, groups, weights, z), epsilon)


def trl(rewards: Tensor, groups: Sequence[int], weights: Sequence[float]) -> Tensor:
    sums = combined(rewards, groups, weights, partial(z_with_epsilon, 1e-4))
    return standardize(sums.masked_fill(rewards.isnan().all(1), NAN), 1e-4)


def trl_fork(rewards: Tensor, groups: Sequence[int], weights: Sequence[float]) -> Tensor:
    return over_sequences(1e-4, rewards.nan_to_num(0.0), groups, weights)


def nemo(
    rewards: Tensor, groups: Sequence[int], weights: Sequence[float], leave_one_out: bool = False
) -> Tensor:
    sums = combined(rewards, groups, weights, partial(z_of_nemo, leave_one_out))
    if sums.isnan().any():
        return torch.full_like(sums, NAN)
    return standardize(sums, 0.0) if sums.std() > 0 else sums - sums.mean()


def verl(
    rewards: Tensor, groups: Sequence[int], weights: Sequence[float], lengths: Sequence[int]
) -> Tensor:
    def z(column: Tensor) -> Tensor:  # a group of one has mean 0 and deviation 1
        return z_with_epsilon(1e-6, column) if len(column) > 1 else column / (1 + 1e-6)

    sums = combined(rewards, groups, weights, z)
    tokens = sums.repeat_interleave(torch.tensor(lengths))
    return (sums - tokens.mean()) / (tokens.var() + 1e-8).sqrt()


ms_swift, axolotl = partial(over_sequences, 1e-8), partial(over_sequences, 1e-4)

# ---------------------------------------------------------------- where they agree

WEIGHTS = [1.0, 0.5, -2.0]


def random_batch(seed: int, size: int = 4) -> tuple[Tensor, list[int], list[int]]:
    """Six interleaved groups, three normal components that deviate by about 1, 30 and 0.5."""
    generator = torch.Generator().manual_seed(seed)
    groups = (torch.randperm(6 * size, generator=generator) % 6).tolist()
    draws = torch.randn(6 * size, 3, generator=generator, dtype=torch.float64)
    lengths = torch.randint(1, 10, (6 * size,), generator=generator).tolist()
    return 2 + draws * rows([1.0, 30.0, 0.5]), groups, lengths


@pytest.mark.parametrize("seed", range(5))
def test_our_setting_for_each_gives_its_advantages_within_the_pages_bound(seed: int) -> None:
    rewards, groups, lengths = random_batch(seed)

    def close(found: Tensor, expected: Tensor, relative: float) -> None:
        assert_close(found, expected, rtol=relative, atol=1e-12)

    s = float(combined(rewards, groups, WEIGHTS, partial(z_with_epsilon, 1e-4)).std())
    factor = (s + 1e-4) / math.sqrt(s**2 + 1e-8)
    found = ours(rewards, groups, weights=WEIGHTS, epsilon=1e-4)
    for peer in (trl, trl_fork, axolotl):
        close(found, peer(rewards, groups, WEIGHTS), 1e-4 / s)
        close(found, factor * peer(rewards, groups, WEIGHTS), 1e-8)
    assert factor - 1 > 0.9e-4 / s  # the bound is no larger than it has to be
    found = ours(rewards, groups, weights=WEIGHTS, epsilon=1e-8)
    close(found, ms_swift(rewards, groups, WEIGHTS), 1e-7)
    found = ours(rewards, groups, weights=WEIGHTS)
    close(found, nemo(rewards, groups, WEIGHTS), 1e-7)
    # The 1e-8 beside the variance is in units of the weights in verl, of the largest one here.
    found = ours(rewards, groups, weights=WEIGHTS, whiten="token", lengths=lengths)
    close(found, verl(rewards, groups, WEIGHTS, lengths), 1e-8)
    # What is left out leaves one row, which has no deviation: ±|r1 - r2|, twice what centring
    # gives, and whitening takes the 2 out.
    rewards, groups, _ = random_batch(seed, size=2)
    found = ours(rewards, groups, weights=WEIGHTS, scale=False)
    close(found, nemo(rewards, groups, WEIGHTS, leave_one_out=True), 1e-7)


# ---------------------------------------------------------------- where they differ


@pytest.mark.parametrize(
    ("peer", "first", "second"),
    [(ms_swift, 0.54772, 1.09545), (nemo, 0.54772, 1.09545), (trl, 0.54768, 1.09536)],
    ids=["ms-swift", "NeMo-RL", "TRL"],
)
def test_the_worked_example_over_sequences(peer: Peer, first: float, second: float) -> None:
    # sqrt(3/10) and twice that; TRL divides by s + 1e-4 with s = sqrt(5/3).
    expected = rows([first, -first, second, -second])[0]
    assert_close(peer(TWO_GROUPS, PAIRS, [1.0, 1.0]), expected, rtol=1e-5, atol=0)


def test_axolotl_streaming_whitens_each_group_and_undoes_the_decoupling() -> None:
    sums = combined(TWO_GROUPS, PAIRS, [1.0, 1.0], partial(z_with_epsilon, 1e-4))
    found = combined(sums[:, None], PAIRS, [1.0], partial(z_with_epsilon, 1e-4))
    assert_close(found, rows([1, -1, 1, -1])[0] * 0.5**0.5, rtol=0, atol=2e-4)


def test_over_tokens_a_dead_group_is_pushed_and_over_sequences_it_is_not() -> None:
    rewards, groups = rows(*([r] for r in (0, 0, 0, 0, 0, 1, 0, 1))), [0] * 4 + [1] * 4
    lengths = [1, 1, 1, 1, 1, 4, 1, 4]
    theirs = verl(rewards, groups, [1.0], lengths)
    assert float(theirs[0]) == pytest.approx(-0.567, abs=5e-4)
    assert_close(ours(rewards, groups, whiten="token", lengths=lengths), theirs, rtol=1e-9, atol=0)
    assert float(ours(rewards, groups, lengths=lengths)[:4].abs().max()) < 1e-15


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
    peer: Peer, size: float
) -> None:
    found = peer(CANCELLING, [0] * 6, [1.0, 1.0]).abs()
    assert_close(found, torch.full_like(found, size), rtol=0, atol=1e-3)
    assert not ours(CANCELLING, [0] * 6).any()
    # verl: a remainder of about 1e-6 over sqrt(1e-8).
    assert 1e-3 < float(verl(CANCELLING, [0] * 6, [1.0, 1.0], [1] * 6).abs().max()) < 0.02
    assert not ours(CANCELLING, [0] * 6, whiten="token").any()


@pytest.mark.parametrize(
    ("peer", "epsilon", "factor"),
    # Six rows count elsewhere instead of five, with the same sum of squares: sqrt(5/4).
    [(trl, 1e-4, 1.0), (ms_swift, 1e-8, 1.25**0.5), (axolotl, 1e-4, 1.25**0.5)],
    ids=["TRL", "ms-swift", "axolotl"],
)
def test_an_unscored_row_is_out_of_the_batch_in_trl_and_here(
    peer: Peer, epsilon: float, factor: float
) -> None:
    found = ours(UNSCORED_ROW, THREES, epsilon=epsilon)
    theirs = peer(UNSCORED_ROW, THREES, [1.0, 1.0])
    assert_close(theirs, factor * found, rtol=0, atol=2e-4)
    assert found[2] == 0.0
    assert nemo(UNSCORED_ROW, THREES, [1.0, 1.0]).isnan().all()


def test_one_unscored_component_is_left_out_of_its_group_and_zero_in_the_trl_fork() -> None:
    for peer, epsilon in ((ms_swift, 1e-8), (trl, 1e-4)):
        found = ours(UNSCORED_COMPONENT, [0] * 4, epsilon=epsilon)
        assert_close(found, peer(UNSCORED_COMPONENT, [0] * 4, [1.0, 1.0]), rtol=0, atol=2e-4)
    theirs = trl_fork(UNSCORED_COMPONENT, [0] * 4, [1.0, 1.0])
    zeros = ours(UNSCORED_COMPONENT.nan_to_num(0.0), [0] * 4, epsilon=1e-4)
    assert_close(zeros, theirs, rtol=0, atol=2e-4)
    assert float((found - theirs).abs().max()) > 0.1


@pytest.mark.parametrize("peer", [trl, ms_swift, nemo], ids=["TRL", "ms-swift", "NeMo-RL"])
def test_a_group_of_one_is_zero_over_sequences_and_keeps_its_reward_in_verl(peer: Peer) -> None:
    # s, -s and 0 over three rows: ±1.
    rewards, groups, expected = rows([50], [1], [0]), [0, 1, 1], rows([0, 1, -1])[0]
    assert_close(peer(rewards, groups, [1.0]), expected, rtol=0, atol=2e-4)
    for whiten in ("sequence", "token"):
        assert_close(ours(rewards, groups, whiten=whiten), expected, rtol=0, atol=2e-6)
    theirs = verl(rewards, groups, [1.0], [1, 1, 1])
    assert_close(theirs, rows([1.15435, -0.55269, -0.60166])[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("epsilon", "worst"), [(1e-8, 0.925), (1e-6, 0.826), (1e-4, 0.0705)])
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
    assert not group_normalize(column[:, None], [0] * 7, epsilon=epsilon).any()


def test_nemo_rl_loses_a_deviation_far_from_zero_in_float32_and_here_it_is_kept() -> None:
    column = torch.tensor([5000.0, 5001.0, 5000.0, 5001.0])
    assert float(column.square().mean() - column.mean().square()) <= 0
    # Mean 5000.5, unbiased deviation sqrt(1/3): 0.5 sqrt(3).
    expected = torch.tensor([[-0.866025], [0.866025], [-0.866025], [0.866025]])
    assert_close(group_normalize(column[:, None], [0] * 4), expected, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("scale", [True, False])
def test_no_setting_is_nemo_rl_leaving_one_out_of_larger_groups(scale: bool) -> None:
    # The others of the first row are all 0, so it stays at 1 - 0 where the rest is scaled.
    rewards, groups = rows(*([r] for r in (1, 0, 0, 0, 2, 1, 0, 5))), [0] * 4 + [1] * 4
    theirs = nemo(rewards, groups, [1.0], leave_one_out=True)
    assert float((ours(rewards, groups, scale=scale) - theirs).abs().max()) > 0.1
