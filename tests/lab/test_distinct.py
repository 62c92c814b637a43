"""Report and explorer mean one thing by "the same advantage"."""

from gdpo_verl.distinct import levels


def test_neighbours_have_the_same_advantage():
    # The first three are one advantage, from neighbour to neighbour.
    assert levels([0.0, 0.9e-4, 1.8e-4, 3.0e-4]) == [0, 0, 0, 1]
