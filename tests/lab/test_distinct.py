"""Report and explorer mean one thing by "the same advantage"."""

from gdpo_verl.lab.explain.compare import find_ties
from gdpo_verl.lab.report.groups import ties_split_elsewhere


def test_report_and_explorer_agree_on_neighbours():
    # For GRPO all three are one advantage, from neighbour to neighbour; for GDPO the last is not.
    rewards = [(1.0, 0.0), (0.0, 1.0), (0.5, 0.5)]
    grpo, gdpo = [0.0, 0.9e-4, 1.8e-4], [0.5, 0.5, 0.0]
    assert find_ties(rewards, grpo, gdpo) == [("A", True)] * 3
    assert ties_split_elsewhere(grpo, gdpo) == [True, True, True]
