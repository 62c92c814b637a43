"""The report and the explorer use the same definition of "the same advantage"."""

from gdpo_verl.distinct import levels


def test_advantages_closer_than_the_tolerance_count_as_the_same():
    # The first three count as one advantage, because each is close to its neighbour.
    assert levels([0.0, 0.9e-4, 1.8e-4, 3.0e-4]) == [0, 0, 0, 1]
