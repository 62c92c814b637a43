"""The pairs of calls with those asked for; recipes/tool_call/cases.jsonl has scores."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tool_call import block, call, calling

from gdpo_verl.rewards import tool_match
from gdpo_verl.rewards.tool_call import correctness_reward

ROW = st.tuples(*[st.integers(0, 5)] * 4)


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=4), st.integers(1, 4))
def test_the_pairs_have_the_largest_sum_of_all(rows, width):
    gains = np.array(rows)[:, :width]
    chosen = tool_match._best_pairs(gains.tolist())
    assert len({row for row, _ in chosen}) == len(chosen)
    assert len({column for _, column in chosen}) == len(chosen)
    padded = np.pad(gains, ((0, 0), (0, len(gains))))  # a row may have no column
    places = range(len(gains))
    every = itertools.permutations(range(padded.shape[1]), len(gains))
    best = max(padded[places, one].sum() for one in every)
    assert sum(gains[row, column] for row, column in chosen) == best


@pytest.mark.parametrize("strict", [True, False])
def test_of_many_calls_each_takes_the_first_best_unused_one(strict):
    asked = block(call("f", a=1, b=1), call("f", a=1, b=2), call("f", a=[3]))
    # The 1st matches call 300 with 1 + 2. Then call 0, the first with a=1, matches the 2nd with
    # 1/2 + 1, and call 299 the 3rd with 1 + 1. S = 3/301 (names) + 6.5, M = 1 + 3 + 3 + 2.
    calls = [call("f", a=1), *[call("f", a=2)] * 298, call("f", a=[3]), call("f", b=1, a=1)]
    result = correctness_reward(calling(*calls), asked, strict=strict)
    # Strict: of 301 calls 3 are used, and each other one costs 1 + 1.
    assert result == pytest.approx(6 * (3 / 301 + 6.5) / (9 + 2 * 298 * strict) - 3)
