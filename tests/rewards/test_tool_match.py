"""The score of calls against those asked for: by hand and by property."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tool_call import ASKED, ONE, block, call, calling, verdict

from gdpo_verl.rewards import tool_match
from gdpo_verl.rewards.tool_call import ParseError, correctness_reward

# The calls asked for. The reward is 6·S/M − 3.
ONE_CALL = [ONE]  # of two parameters: M = 1 + (1 + 2) = 4
TWO_CALLS = [call("f", a=1), call("f", a=2)]  # M = 1 + 2 + 2 = 5
TWO_LONG = [call("f", a=1, b=1), call("f", a=1, b=2)]  # M = 1 + 3 + 3 = 7


@pytest.mark.parametrize(
    ("asked", "calls", "strict", "published"),
    [
        pytest.param(ONE_CALL, [call(days=1, city="Paris")], 3.0, 3.0, id="in another order"),
        # S = 1 (names) + 1 (parameter names) + 1 (days equal) = 3.
        pytest.param(ONE_CALL, [call(city="Rome", days=1)], 1.5, 1.5, id="one value wrong"),
        # S = 1 + 1/2 + 1 = 2.5.
        pytest.param(ONE_CALL, [call(city="Paris")], 0.75, 0.75, id="one parameter missing"),
        # S = 1 + 2/3 + 2 = 11/3.
        pytest.param(ONE_CALL, [call(city="Paris", days=1, unit="C")], 2.5, 2.5, id="one too many"),
        # S = 1 + 0 + 0.
        pytest.param(ONE_CALL, [call(town="Paris")], -1.5, -1.5, id="only the name right"),
        pytest.param(ONE_CALL, [call("time", city="Paris", days=1)], -3.0, -3.0, id="another tool"),
        pytest.param(TWO_CALLS, TWO_CALLS[::-1], 3.0, 3.0, id="two in another order"),
        # S = 1 + 2 (a=1) + 1 (parameter names only).
        pytest.param(TWO_CALLS, [call("f", a=1)] * 2, 1.8, 1.8, id="the same one twice"),
        # The right call alone earns the same wherever it is asked for: S = 1/2 (names) + 1 + 1. The
        # wrong one alone: S = 1/2 + 1.
        pytest.param(TWO_CALLS, [call("f", a=1)], 0.0, 0.0, id="the first of two"),
        pytest.param(TWO_CALLS, [call("f", a=2)], 0.0, -1.2, id="the second of two"),
        pytest.param(TWO_CALLS, [call("f", a=2), call("f", a=3)], 1.8, 0.6, id="second and wrong"),
        # In turn, the first asked for takes the first made, one parameter of two: 1 + 1, and leaves
        # 1 + 0. At best it takes the second, 1 + 1, and leaves the other its own: 1 + 2.
        (TWO_LONG, [call("f", a=1, b=2), call("f", a=2, b=1)], 6 * 6 / 7 - 3, 6 * 4 / 7 - 3),
    ],
)
def test_correctness_is_the_share_of_names_and_parameters(asked, calls, strict, published):
    asked, answer = block(*asked), calling(*calls)
    assert verdict(answer, asked) == (1.0, pytest.approx(strict), ParseError.NONE)
    found = verdict(answer, asked, strict=False)
    assert found == (1.0, pytest.approx(published), ParseError.NONE)


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
    ("asked", "given", "equal"),
    [
        ("true", "1", False),
        ("1", "true", False),
        ("1", "1.0", True),
        ("[1, [true]]", "[1, [1]]", False),
        ('{"x": true, "y": 2}', '{"y": 2, "x": true}', True),
        ("[]", "{}", False),
    ],
)
def test_values_are_equal_as_json_values_are(asked, given, equal):
    lines = [f'{{"name": "f", "parameters": {{"a": {value}}}}}' for value in (asked, given)]
    result = verdict(calling(lines[1]), block(lines[0]))
    # Of S = 1 + 1 + 1 and M = 3, an unequal value takes 1 away.
    assert result == (1.0, 3.0 if equal else 1.0, ParseError.NONE)


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
