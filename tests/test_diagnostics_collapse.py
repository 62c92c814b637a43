"""Distinct advantages: by hand, and the paper's counts of groups told apart."""

from __future__ import annotations

import itertools

import pytest
import torch
from test_diagnostics import NAN, collapse
from torch import Tensor

from gdpo_verl.advantage import decoupled_sum, grpo_scalars
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


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.0, 2.0]], ids=["(0, 1)", "(0, 2)"])
def test_grpo_gives_one_reward_and_two_the_same_advantages(values: list[float]) -> None:
    # The paper's example: two binary rewards, two rollouts.
    rewards = torch.tensor([[0.0, 0.0], [min(values[1], 1.0), values[1] - 1.0]])
    found = grpo_scalars(rewards, [0, 0])
    torch.testing.assert_close(
        found, torch.tensor([-0.7071, 0.7071], dtype=torch.float64), atol=1e-4, rtol=0
    )
    expected = 0.7071 * values[1]
    torch.testing.assert_close(
        decoupled_sum(rewards, [0, 0]),
        torch.tensor([-expected, expected], dtype=torch.float64),
        atol=1e-4,
        rtol=0,
    )


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


#
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
    ("size", "grpo", "grpo_without_std", "gdpo"),
    [
        (2, 2, 3, 3),
        (3, 4, 6, 6),
        (4, 7, 10, 14),
        (6, 16, 21, 38),
        (8, 29, 36, 81),
        (10, 46, 55, 145),
    ],
    ids=lambda value: None,
)
def test_groups_told_apart_with_two_binary_rewards(
    size: int, grpo: int, grpo_without_std: int, gdpo: int
) -> None:
    rewards, groups = all_groups(size, 2)
    assert patterns(grpo_scalars(rewards, groups, epsilon=EPSILON), size) == grpo
    assert patterns(grpo_scalars(rewards, groups, scale=False), size) == grpo_without_std
    assert patterns(decoupled_sum(rewards, groups, epsilon=EPSILON), size) == gdpo


@pytest.mark.parametrize(
    ("rewards", "grpo", "gdpo"),
    [(1, 4, 4), (2, 7, 14), (3, 14, 45), (4, 23, 127), (5, 41, 318)],
    ids=lambda value: None,
)
def test_groups_told_apart_with_more_rewards_and_four_rollouts(
    rewards: int, grpo: int, gdpo: int
) -> None:
    table, groups = all_groups(4, rewards)
    assert patterns(grpo_scalars(table, groups, epsilon=EPSILON), 4) == grpo
    assert patterns(decoupled_sum(table, groups, epsilon=EPSILON), 4) == gdpo
