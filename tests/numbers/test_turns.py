"""Per-turn credit: the gradient by enumeration, numbers by hand, and settings that are rejected."""

import itertools
import math

import pytest

from gdpo_verl import advantages_of
from gdpo_verl.advantage import VARIANTS
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.reward_dicts import as_written, turn_lists, with_numbers

CENTRED = {"gdpo": {"whiten": "none"}, "norm_adv_by_std_in_grpo": False}
# A policy decides at each of two turns whether it continues. The outcomes are: stop at turn 1;
# continue, and stop at turn 2; continue twice.
WAYS = ((0,), (1, 0), (1, 1))


def trajectory(way, stop, go):
    """Return the rewards of the turns: 0, then `go` for continuing; the turn's value to stop."""
    return [(0.0, go)[turn] if on else stop[turn] for turn, on in enumerate(way)]


def expected_gradient(stop, go, p, size, credit):
    """Return the expected policy gradient of both turns' logits, over all groups of this size."""
    # The policy stops with probability 1 - p, and continues with probability p.
    chance = dict(zip(WAYS, (1 - p, p * (1 - p), p * p), strict=True))
    total = [0.0, 0.0]
    for group in itertools.product(WAYS, repeat=size):
        advantages = credit([trajectory(way, stop, go) for way in group])
        for way, own in zip(group, advantages, strict=True):
            for turn, on in enumerate(way):
                weight = math.prod(chance[each] for each in group) / size
                total[turn] += weight * own[turn] * (on - p)
    return total


def true_gradient(stop, go, p):
    """Return the derivative of E[reward] by each logit.

    It is p (1 - p), times the difference between continuing and stopping, times the probability of
    reaching the turn.
    """
    second = p * go + (1 - p) * stop[1]
    return [p * (1 - p) * (second - stop[0]), p * p * (1 - p) * (go - stop[1])]


def ours(rewards):
    return advantages_of([{"r": each} for each in rewards], [0] * len(rewards), config=CENTRED)


def sum_of_indices(rewards):
    """Return the biased credit: rewards centred at each index, summed over the remaining turns."""
    means = []
    for turn in range(2):
        values = [each[turn] for each in rewards if len(each) > turn]
        means.append(sum(values) / len(values) if values else 0.0)
    found = []
    for each in rewards:
        centred = [reward - mean for reward, mean in zip(each, means, strict=False)]
        found.append([sum(centred[turn:]) for turn in range(len(each))])
    return found


def test_a_baseline_per_index_gives_a_gradient_with_the_wrong_sign():
    assert true_gradient((0.6, 1.0), 1.0, 0.5)[0] == pytest.approx(0.1)
    biased = expected_gradient((0.6, 1.0), 1.0, 0.5, 3, sum_of_indices)
    assert biased[0] == pytest.approx(-0.1)  # the biased credit teaches to stop


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("stop", [(0.6, 1.0), (0.0, 2.0), (1.5, -1.0), (0.3, 0.3)])
def test_the_gradient_of_each_turn_has_the_true_sign(stop, size, p):
    found = expected_gradient(stop, 1.0, p, size, ours)
    true = true_gradient(stop, 1.0, p)
    # For turn 1 the factor is 1 - 1/n, because all n responses reach it.
    assert found[0] == pytest.approx(true[0] * (1 - 1 / size))
    # For turn 2 the factor is the mean of 1 - 1/n over the groups whose n responses reach it.
    reach = [math.comb(size, n) * p**n * (1 - p) ** (size - n) * n / size for n in range(size + 1)]
    factor = sum(share * (1 - 1 / n) for n, share in enumerate(reach) if n) / p
    assert found[1] == pytest.approx(true[1] * factor)


def z(values):
    """Normalise numbers with their mean and unbiased deviation, as on paper."""
    mean = sum(values) / len(values)
    std = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
    return [(v - mean) / (std + 1e-6) if std else 0.0 for v in values]


# Three responses to one prompt, with 2, 3 and 1 turns. Their advantages are conformance vectors
# (`credit to_go`).
CALLS = [[1, 0], [0, 1, 1], [1]]
RIGHT = [1, 0, 0]
UNIT = {"gdpo": {"whiten": "none"}}


def of(config=UNIT, tokens=None, calls=CALLS):
    rewards = [{"calls": c, "right": r} for c, r in zip(calls, RIGHT, strict=True)]
    return advantages_of(rewards, ["a"] * 3, tokens, config=config)


def flat(lists):
    return [value for each in lists for value in each]


def with_right(calls, factor=1.0):
    """Return the normalised calls of each turn plus the normalised `right` of its response."""
    pairs = zip(calls, z(RIGHT), strict=True)
    return [call + factor * right for each, right in pairs for call in each]


def test_credit_per_answer_is_the_credit_of_the_sum_over_turns():
    settings = {"gdpo": {"credit": "answer"}}
    sums = [{"calls": sum(c), "right": r} for c, r in zip(CALLS, RIGHT, strict=True)]
    tokens = [[2, 3], [1, 4, 2], [5]]
    assert of(settings, tokens) == advantages_of(sums, ["a"] * 3, [5, 7, 5])


def test_turns_that_are_not_scored_add_nothing():
    # The returns to go are 1 1 | None None None | 1. At turn 1 they are (1, 1), which do not vary.
    hand = with_right([[0, 0], [0, 0, 0], [0]])
    found = of(calls=[[None, 1], [None, None, float("nan")], [1]])
    assert flat(found) == pytest.approx(hand)
    # A response for which the component is not scored still has its turns.
    found = of(tokens=[[1, 1], [1, 1, 1], [1]], calls=[[None, 1], None, [1]])
    assert flat(found) == pytest.approx(hand)


def test_conditions_and_gates_use_the_sum_over_turns():
    condition = {"calls": {"on": "right", "at_least": 1.0}}
    found = of({"gdpo": {"whiten": "none", "conditions": condition}})
    # Only the first response is right. The returns to go are 1 0 | 0 0 0 | 0.
    first = z([1, 0, 0])
    hand = with_right([[first[0], 0], [first[1], 0, 0], [first[2]]])
    assert flat(found) == pytest.approx(hand)
    # The sums are 1, 2 and 1. `right` counts where at least 2 calls ran.
    condition = {"right": {"on": "calls", "at_least": 2.0}}
    only = of({"gdpo": {"whiten": "none", "conditions": condition}})
    # Only the second sum reaches 2, and this response is not right. So `right` is 0 for all.
    assert flat(only) == pytest.approx(with_right(of(), -1.0))
    # The gate closes a group whose sums are equal, although the turns differ.
    same = [[1, 0], [0, 1, 0], [1]]
    assert flat(of({"gdpo": {"gate": {"on": "calls"}}}, calls=same)) == [0.0] * 6
    assert any(flat(of({}, calls=same)))


def test_a_sum_of_0_does_not_count_as_a_failed_condition():
    condition = {"calls": {"on": "right", "at_least": 0.0}}
    calls = [[1, -1], [0, 1, 1], [1]]
    settings = {"gdpo": {"whiten": "none", "conditions": condition}}
    assert of(settings, calls=calls) == of(calls=calls)


@pytest.mark.parametrize(
    ("config", "tokens", "calls", "found"),
    [
        ({}, [[1, 1], [1, 1], [1]], CALLS, r"2 turns of row 1 for 'calls', found 3"),
        ({}, [2, 3, 1], CALLS, r"token_counts: expected a list for each response"),
        ({}, [[1, 2], [1, -1, 2], [3]], CALLS, r"token_counts: expected whole .* for row 1"),
        ({}, None, [[1, 0], None, [1]], r"token_counts: no list says how many turns row 1 has"),
        ({}, None, [[1, 0], 1.0, [1]], r"expected a list for 'calls'.* for row 1"),
        ({}, None, [[1, "0"], [1], [1]], r"a finite number, None or NaN for 'calls', found '0'"),
        ({"gdpo": {"whiten": "sequence"}}, None, CALLS, r"gdpo\.whiten: whitening over sequences"),
        ({"gdpo": {"variant": "dvao"}}, None, CALLS, r"gdpo\.variant: 'dvao' uses"),
    ],
)
def test_impossible_per_turn_settings_and_rewards_are_rejected(config, tokens, calls, found):
    with pytest.raises(ValueError, match=found):
        of(config, tokens, calls)


def test_only_variants_that_use_nothing_but_z_accept_per_turn_credit():
    taken = [name for name, variant in VARIANTS.items() if variant.reads_only_z]
    assert taken == ["gdpo", "mo_grpo", "rvpo", "mgda"]
    for name in taken:
        lists = of({"gdpo": {"variant": name}})
        assert [len(each) for each in lists] == [2, 3, 1]


@pytest.mark.parametrize("turns", [[1, 0.5, None], [None], [], None], ids=str)
def test_the_text_next_to_a_sum_is_read_as_the_list_that_it_stores(turns):
    objective = GdpoConfig().resolve([Component("calls", by_turn=True)])
    written = with_numbers({"calls": turns}, objective)
    assert written["calls"] == (sum(each or 0 for each in turns) if turns and any(turns) else None)
    (read,) = turn_lists([written], objective, [""])["calls"]
    assert (None if read is None else as_written(read)) == turns


def test_a_declared_component_by_turn_credits_turns_and_has_no_range_for_its_sum():
    objective = GdpoConfig().resolve([Component("calls", 0, 1, by_turn=True)])
    assert objective.ranges == {}
    assert objective.credits_turns
