"""The estimator against the equations on random batches, and changes that have no effect."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pytest
import torch
from by_hand import NAN, WHITEN, close, exactly_zero
from hypothesis import given, settings
from hypothesis import strategies as st
from test_conformance import conformance

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.conformance import vectors


class Batch(NamedTuple):
    rewards: list[list[float]]
    groups: list[int]
    mask: list[list[int]]
    weights: list[float]

    def advantages(self, whiten):
        return gdpo_advantages(
            torch.tensor(self.rewards, dtype=torch.float64),
            self.groups,
            torch.tensor(self.mask),
            weights=self.weights,
            whiten=whiten,
        )


@st.composite
def batches(draw, amplitudes=False):
    """Draw groups of 1 to 5 responses in any order, unscored rewards, and masks with holes."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    ids = [group for group, size in enumerate(sizes) for _ in range(size)]
    groups = draw(st.permutations(ids))
    count = draw(st.integers(1, 3))
    scales = [10 ** draw(st.floats(-3, 6)) if amplitudes else 1.0 for _ in range(count)]
    offsets = [draw(st.integers(-5, 5)) for _ in range(count)]
    reward = st.one_of(st.integers(-4, 4), st.integers(0, 1), st.just(NAN))
    rewards, mask = [], []
    for _ in groups:
        columns = zip(scales, offsets, strict=True)
        rewards.append([scale * (offset + draw(reward)) for scale, offset in columns])
        mask.append([draw(st.integers(0, 1)) for _ in range(4)])
    weight = st.sampled_from([1.0, 0.1, 0.3, -0.7, 2.0])
    return Batch(rewards, list(groups), mask, [draw(weight) for _ in range(count)])


def advantages_by_the_equations(batch, whiten):
    """Compute advantages with the decimals that make the vectors; tiny variation counts as none."""
    table = np.array(batch.rewards)
    rewards = np.where(np.isnan(table), None, table).tolist()
    unit = 1.0 if whiten == "none" else max(map(abs, batch.weights))
    weights = [weight / unit for weight in batch.weights]
    sums = conformance.combined(rewards, batch.groups, weights, Decimal("1e-6"))
    exact = conformance.combined(rewards, batch.groups, weights, Decimal(0))
    shares = [sum(kept) for kept in batch.mask]
    if whiten == "sequence":
        shares = [min(tokens, 1) for tokens in shares]
    if whiten == "none":
        values = [float(value or 0) for value in sums]
    elif any(conformance.spread(each, shares)[1] < Decimal("1e-8") for each in (sums, exact)):
        values = [0.0] * len(sums)
    else:
        values = conformance.whitened(sums, shares, vectors()["profiles"]["tokens"])
    return torch.tensor(values, dtype=torch.float64)[:, None] * torch.tensor(batch.mask)


@settings(max_examples=300, deadline=None)
@given(batches(amplitudes=True), st.sampled_from(WHITEN))
def test_the_estimator_agrees_with_the_equations_at_any_amplitude(batch, whiten):
    expected = advantages_by_the_equations(batch, whiten)
    close(batch.advantages(whiten), expected, 1e-8)


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-2])
@pytest.mark.parametrize("size", [10.0, 0.1, 1e-3])
@pytest.mark.parametrize("whiten", ["token", "sequence"])
def test_components_that_cancel_give_zero_at_any_size_and_epsilon(size, epsilon, whiten):
    correct = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    rewards = torch.stack([size * correct, 1 - correct], dim=1)
    given = {"whiten": whiten, "epsilon": epsilon}
    assert exactly_zero(gdpo_advantages(rewards, [0] * 4, torch.ones(4, 3), **given))
    # With unequal weights a part of the first component remains: ±0.866.
    found = gdpo_advantages(rewards, [0] * 4, torch.ones(4, 3), weights=[2.0, 1.0], **given)
    assert found.abs().min() > 0.8


@settings(max_examples=50, deadline=None)
@given(batches(), st.booleans())
def test_one_component_without_whitening_is_grpo(batch, scale):
    rewards = torch.tensor(batch.rewards, dtype=torch.float64)[:, :1]
    mask = torch.tensor(batch.mask)
    found = gdpo_advantages(rewards, batch.groups, mask, whiten="none", scale=scale)
    assert torch.equal(found, grpo_advantages(rewards, batch.groups, mask, scale=scale))
