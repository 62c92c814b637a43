"""Distinct advantages: by hand, and the paper's counts of groups told apart."""

from __future__ import annotations

import itertools

import pytest
import torch
from test_diagnostics import NAN, collapse
from torch import Tensor

from gdpo_verl.advantage import decompose
from gdpo_verl.diagnostics import distinct_advantages


@pytest.mark.parametrize(
    ("advantages", "groups", "expected"),
    [
        pytest.param([0.5, -0.5, 0.5, -0.5], [0, 0, 0, 0], 2.0, id="one group"),
        # Three in the first, one in the second.
        pytest.param([1.0, 0.0, 2.0, 0.0, 3.0, 0.0], [7, 3, 7, 3, 7, 3], 2.0, id="interleaved"),
        pytest.param([1.0, 1.0, 1.0], ["a", "b", "c"], 1.0, id="groups of one"),
        pytest.param([1.0, 1.0 + 1e-5, 2.0], [0, 0, 0], 2.0, id="1e-5 is noise"),
        pytest.param([1.0, 1.0 + 1e-3, 2.0], [0, 0, 0], 3.0, id="1e-3 is a difference"),
        pytest.param([1.0, NAN, 2.0, NAN], [0, 0, 0, 1], 2.0, id="unscored rows are left out"),
        pytest.param([NAN, NAN], [0, 0], 0.0, id="nothing scored"),
        pytest.param([], [], 0.0, id="nothing"),
    ],
)
def test_distinct_advantages_by_hand(
    advantages: list[float], groups: list[object], expected: float
) -> None:
    found = distinct_advantages(torch.tensor(advantages, dtype=torch.float64), groups)
    assert found == expected


def test_collapse_is_grpos_count_below_gdpos() -> None:
    # Each row earns one of two rewards, or none. GRPO sees sums 1, 1, 1, 0: two advantages.
    # GDPO sees z1 = 1.5, -0.5, -0.5, -0.5 and z2 = (-1, 1, 1, -1)·0.866: three.
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]])
    assert collapse(rewards, ["a"] * 4) == {
        "gdpo/distinct_advantages/gdpo": 3.0,
        "gdpo/distinct_advantages/grpo": 2.0,
    }
    # Weights that differ keep GRPO from adding them to the same sum.
    weighted = collapse(rewards, ["a"] * 4, weights=[1.0, 0.5])
    assert weighted["gdpo/distinct_advantages/grpo"] == 3.0


@pytest.mark.parametrize("size", [1.0, 1e6], ids=["weights of 1", "weights of a million"])
def test_rewards_that_cancel_have_collapsed_under_gdpo(size: float) -> None:
    # z2 = -z1 but for the epsilons: nothing is left to tell apart. The sums ±3 + (0 or 1)
    # are -2 and 3, which GRPO does tell apart.
    rewards = torch.tensor([[3.0, 0.0], [-3.0, 1.0], [3.0, 0.0], [-3.0, 1.0]])
    assert collapse(rewards, [0] * 4, weights=[size, size]) == {
        "gdpo/distinct_advantages/gdpo": 1.0,
        "gdpo/distinct_advantages/grpo": 2.0,
    }


def test_collapse_leaves_rows_without_a_score_out_on_both_sides() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, NAN], [NAN, NAN]])
    found = collapse(rewards, [0, 0, 0])
    assert found == {"gdpo/distinct_advantages/gdpo": 2.0, "gdpo/distinct_advantages/grpo": 2.0}


def test_collapse_reads_scale_and_epsilon() -> None:
    # Scaled, ±s and ∓s cancel; centred, ±5 and ∓1/2 do not.
    rewards = torch.tensor([[10.0, 0.0], [0.0, 1.0]])
    assert collapse(rewards, [0, 0])["gdpo/distinct_advantages/gdpo"] == 1.0
    centred = collapse(rewards, [0, 0], scale=False)
    assert centred["gdpo/distinct_advantages/gdpo"] == 2.0
    # Under a huge epsilon all advantages are closer than the tolerance.
    alike = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert set(collapse(alike, [0, 0]).values()) == {2.0}
    assert set(collapse(alike, [0, 0], epsilon=1e9).values()) == {1.0}


# How many *groups* an estimator can tell apart: distinct unordered sets of advantages over
# all groups of G rollouts with K binary rewards, before whitening. It is another quantity
# than `distinct_advantages`, which counts within a group. The default epsilon would move
# groups of different deviation apart in the sixth decimal.

EPSILON = 1e-12


def patterns(advantages: Tensor, size: int) -> int:
    """Distinct groups, each as the sorted advantages of its rollouts to six decimals."""
    groups = advantages.reshape(-1, size).sort(dim=1).values
    return len((groups * 1e6).round().to(torch.int64).unique(dim=0))


def all_groups(size: int, rewards: int) -> tuple[Tensor, Tensor]:
    """Every unordered group of `size` rollouts: rewards (B, K) and group ids (B,)."""
    rollouts = list(itertools.product([0.0, 1.0], repeat=rewards))
    rows = [*itertools.combinations_with_replacement(rollouts, size)]
    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, rewards)
    return table, torch.arange(len(rows)).repeat_interleave(size)


@pytest.mark.parametrize(
    ("size", "rewards", "grpo", "grpo_without_std", "gdpo"),
    [
        (2, 2, 2, 3, 3),
        (3, 2, 4, 6, 6),
        (4, 2, 7, 10, 14),
        (6, 2, 16, 21, 38),
        (8, 2, 29, 36, 81),
        (10, 2, 46, 55, 145),
        (4, 1, 4, None, 4),
        (4, 3, 14, None, 45),
        (4, 4, 23, None, 127),
        (4, 5, 41, None, 318),
    ],
)
def test_groups_told_apart(
    size: int, rewards: int, grpo: int, grpo_without_std: int | None, gdpo: int
) -> None:
    table, groups = all_groups(size, rewards)
    found = decompose(table, groups, epsilon=EPSILON)
    assert patterns(found.grpo, size) == grpo
    assert patterns(found.combined, size) == gdpo
    if grpo_without_std is not None:
        assert patterns(decompose(table, groups, scale=False).grpo, size) == grpo_without_std
