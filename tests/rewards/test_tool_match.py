"""The score of calls against those asked for: by hand and by property."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tool_call import ASKED, ONE, block, call, calling

from gdpo_verl.rewards import tool_match
from gdpo_verl.rewards.tool_call import correctness_reward


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=1, max_size=4
        )
    )
)
def test_the_pairs_have_the_largest_sum_of_all(gains):
    chosen = tool_match._assign(gains)
    assert len(dict(chosen)) == len({column for _, column in chosen}) == len(chosen)
    rows = [[*row, *[0] * len(gains)] for row in gains]  # a row may have no column
    every = itertools.permutations(range(len(rows[0])), len(rows))
    best = max(sum(row[j] for row, j in zip(rows, one, strict=True)) for one in every)
    assert sum(rows[i][j] for i, j in chosen) == best


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
def test_of_many_calls_each_takes_the_first_best_unused_one(strict):
    asked = block(call("f", a=1, b=1), call("f", a=1, b=2), call("f", a=[3]))
    # The 1st matches call 300 with 1 + 2. Then call 0, the first with a=1, matches the 2nd with
    # 1/2 + 1, and call 299 the 3rd with 1 + 1. S = 3/301 (names) + 6.5, M = 1 + 3 + 3 + 2.
    calls = [call("f", a=1), *[call("f", a=2)] * 298, call("f", a=[3]), call("f", b=1, a=1)]
    result = correctness_reward(calling(*calls), asked, strict=strict)
    # Strict: of 301 calls 3 are used, and each other one costs 1 + 1.
    assert result == pytest.approx(6 * (3 / 301 + 6.5) / (9 + 2 * 298 * strict) - 3)


@pytest.mark.parametrize(
    ("junk", "strict", "published"),
    [
        # Two parameters are asked for, M = 4; J(parameter names) = 2 / (2 + junk). Strict: M
        # grows by 1 for each junk parameter beyond two.
        (2, 6 * 3.5 / 4 - 3, 6 * 3.5 / 4 - 3),
        (6, 6 * 3.25 / 8 - 3, 6 * 3.25 / 4 - 3),
        (5000, 6 * (3 + 2 / 5002) / 5002 - 3, 6 * (3 + 2 / 5002) / 4 - 3),
    ],
)
def test_junk_parameters_do_not_pay(junk, strict, published):
    line = call(city="Paris", days=1, **{f"junk{i}": 0 for i in range(junk)})
    answer = calling(line)
    assert correctness_reward(answer, ASKED) == pytest.approx(strict)
    assert correctness_reward(answer, ASKED, strict=False) == pytest.approx(published)


@pytest.mark.parametrize("position", ["first", "last"])
def test_the_score_falls_with_every_sprayed_call(position):
    for count in range(100):
        lines = [call(f"tool_{i}", a=1) for i in range(count)]
        lines.insert(0 if position == "first" else count, ONE)
        # S = 1/(1+k) + 3; M = 4, and 2 more for every sprayed call of one parameter.
        expected = 6 * (1 / (1 + count) + 3) / (4 + 2 * count) - 3
        assert correctness_reward(calling(*lines), ASKED) == pytest.approx(expected)
    published = correctness_reward(calling(*lines), ASKED, strict=False)
    assert published == pytest.approx(1.5, abs=0.02)


def test_only_unused_calls_beyond_the_number_asked_cost():
    asked = block(call("f", a=1), call("g", a=1))
    wrong, costly = call("x"), call("y", a=1, b=2, c=3)
    # M = 5. The first unused call stands in for the missing g, the second adds 1 + 3.
    # S = 1/4 (names) + 2.
    answer = calling(call("f", a=1), wrong, costly)
    assert correctness_reward(answer, asked) == pytest.approx(6 * 2.25 / 9 - 3)
    answer = calling(call("f", a=1), costly)
    assert correctness_reward(answer, asked) == correctness_reward(answer, asked, strict=False)
