"""Metrics, report and explorer mean one thing by "the same advantage"."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from gdpo_verl.diagnostics import distinct_advantages
from gdpo_verl.distinct import levels
from gdpo_verl.lab.explain.compare import find_ties
from gdpo_verl.lab.report.groups import ties_split_elsewhere

STEPS = st.lists(st.integers(0, 8), min_size=1, max_size=6)


@given(STEPS)
def test_the_metric_counts_the_levels(steps):
    advantages = [0.7e-4 * step for step in steps]
    counted = distinct_advantages(torch.tensor(advantages, dtype=torch.float64), [0] * len(steps))
    assert counted == max(levels(advantages)) + 1


def test_report_and_explorer_agree_on_neighbours():
    # For GRPO all three are one advantage, from neighbour to neighbour; for GDPO the last is not.
    rewards = [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
    grpo, gdpo = [0.0, 0.9e-4, 1.8e-4], [0.5, 0.5, 0.0]
    assert find_ties(rewards, grpo, gdpo) == [("A", True)] * 3
    assert ties_split_elsewhere(grpo, gdpo) == [True, True, True]
