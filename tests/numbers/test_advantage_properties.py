"""The estimator against the equations on random batches, and what leaves it unchanged."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import pytest
import torch
from by_hand import NAN, WHITEN, close, exactly_zero
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.advantage import Whiten


class Batch(NamedTuple):
    rewards: list[list[float]]
    groups: list[int]
    mask: list[list[int]]
    weights: list[float]

    def advantages(self, whiten: Whiten) -> Tensor:
        return gdpo_advantages(
            torch.tensor(self.rewards, dtype=torch.float64),
            self.groups,
            torch.tensor(self.mask),
            weights=self.weights,
            whiten=whiten,
        )


@st.composite
def batches(draw: st.DrawFn, amplitudes: bool = False) -> Batch:
    """Groups of 1 to 5 in any order, some rewards unscored, masks with holes or empty."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    groups = draw(st.permutations([group for group, size in enumerate(sizes) for _ in range(size)]))
    count = draw(st.integers(1, 3))
    scales = [10 ** draw(st.floats(-3, 6)) if amplitudes else 1.0 for _ in range(count)]
    offsets = [draw(st.integers(-5, 5)) for _ in range(count)]
    reward = st.one_of(st.integers(-4, 4), st.integers(0, 1), st.just(NAN))
    rewards = [
        [scale * (offset + draw(reward)) for scale, offset in zip(scales, offsets, strict=True)]
        for _ in groups
    ]
    tokens = st.lists(st.integers(0, 1), min_size=4, max_size=4)
    mask = [draw(tokens) for _ in groups]
    weight = st.sampled_from([1.0, 0.1, 0.3, -0.7, 2.0])
    return Batch(rewards, list(groups), mask, [draw(weight) for _ in range(count)])


def column_by_the_equation(
    column: Sequence[float], groups: Sequence[int], epsilon: float = 1e-6
) -> list[float]:
    """Eq. 4 in exact fractions; NaN where not scored."""
    result = []
    for reward, group in zip(column, groups, strict=True):
        peers = [Fraction(r) for r, g in zip(column, groups, strict=True) if g == group and r == r]
        if reward != reward or len(set(peers)) < 2:
            result.append(reward * 0.0)
            continue
        mean = sum(peers) / len(peers)
        variance = sum((r - mean) ** 2 for r in peers) / (len(peers) - 1)
        result.append(float(Fraction(reward) - mean) / (math.sqrt(variance) + epsilon))
    return result


def sums_by_the_equation(batch: Batch, unit: float, epsilon: float) -> list[float]:
    """Eq. 7 with weights in this unit; NaN where nothing is scored."""
    columns = [
        column_by_the_equation(column, batch.groups, epsilon)
        for column in zip(*batch.rewards, strict=True)
    ]
    sums = []
    for row in zip(*columns, strict=True):
        terms = [w / unit * z for w, z in zip(batch.weights, row, strict=True) if z == z]
        sums.append(math.fsum(terms) if terms else NAN)
    return sums


def advantages_by_the_equations(batch: Batch, whiten: Whiten) -> list[list[float]]:
    unit = 1.0 if whiten == "none" else max(map(abs, batch.weights))
    sums = sums_by_the_equation(batch, unit, 1e-6)

    def entries(sums: Sequence[float]) -> list[float]:
        return [
            a
            for a, kept in zip(sums, batch.mask, strict=True)
            for _ in range(sum(kept) if whiten == "token" else int(any(kept)))
            if a == a
        ]

    exact = sums_by_the_equation(batch, unit, 0.0)
    if whiten == "none":
        final = sums
    elif len(entries(sums)) < 2 or any(statistics.stdev(entries(x)) < 1e-4 for x in (sums, exact)):
        final = [0.0] * len(sums)
    else:
        mean, variance = statistics.fmean(entries(sums)), statistics.variance(entries(sums))
        final = [(a - mean) / math.sqrt(variance + 1e-8) for a in sums]
    return [
        [kept * (a if a == a else 0.0) for kept in row]
        for a, row in zip(final, batch.mask, strict=True)
    ]


@settings(max_examples=300, deadline=None)
@given(batches(amplitudes=True), st.sampled_from(WHITEN))
def test_it_agrees_with_the_equations_at_any_amplitude(batch: Batch, whiten: Whiten) -> None:
    expected = advantages_by_the_equations(batch, whiten)
    close(batch.advantages(whiten), expected, 1e-8)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("size", [10.0, 0.1, 1e-3])
@pytest.mark.parametrize("whiten", ["token", "sequence"])
def test_components_that_cancel_give_zero_at_any_size_and_epsilon(
    size: float, epsilon: float, whiten: Whiten
) -> None:
    correct = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    rewards = torch.stack([size * correct, 1 - correct], dim=1)
    given: Any = {"whiten": whiten, "epsilon": epsilon}
    assert exactly_zero(gdpo_advantages(rewards, [0] * 4, torch.ones(4, 3), **given))
    # Unequal weights leave the first component: ±0.866 before whitening, over sequences and after.
    found = gdpo_advantages(rewards, [0] * 4, torch.ones(4, 3), weights=[2.0, 1.0], **given)
    assert found.abs().min() > 0.8


@settings(max_examples=50, deadline=None)
@given(batches(), st.booleans())
def test_one_component_not_whitened_is_grpo(batch: Batch, scale: bool) -> None:
    rewards = torch.tensor(batch.rewards, dtype=torch.float64)[:, :1]
    mask = torch.tensor(batch.mask)
    found = gdpo_advantages(rewards, batch.groups, mask, whiten="none", scale=scale)
    assert torch.equal(found, grpo_advantages(rewards, batch.groups, mask, scale=scale))
