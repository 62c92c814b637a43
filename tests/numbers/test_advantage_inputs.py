"""The estimator's arguments: which values are accepted, and which are rejected by name."""

import copy
import inspect
import math

import numpy as np
import pytest
import torch
from by_hand import NAN, PAIRS, TWO_GROUPS, WHITEN, S, by_row, close, lengths

from gdpo_verl import apply_conditions, gdpo_advantages, group_normalize, grpo_advantages
from gdpo_verl.advantage import tokens
from gdpo_verl.config import GdpoConfig

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool], ids=str)
def test_the_result_has_the_dtype_of_float_rewards(dtype):
    rewards, mask = TWO_GROUPS.to(dtype), lengths(3, 1, 1, 1)
    result_dtype = dtype if dtype in FLOATS else torch.float32
    # bfloat16 has eight bits of precision: 1.55 is off by at most 0.004.
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 4e-3}.get(dtype, 1e-5)
    found = gdpo_advantages(rewards, PAIRS, mask)
    assert found.dtype == result_dtype
    close(by_row(found, mask), [0.44281, -0.88561, 1.10702, -1.54983], tolerance)
    control = grpo_advantages(rewards, PAIRS, mask)
    assert control.dtype == result_dtype
    close(by_row(control, mask), [S, -S, S, -S], tolerance)
    normalized = group_normalize(rewards, PAIRS)
    assert normalized.dtype == result_dtype
    close(normalized, [[S, 0.0], [-S, 0.0], [S, S], [-S, -S]], tolerance)


@pytest.mark.parametrize(
    "group_ids",
    [
        ["b", "a", "b", "a"],
        [(1, "x"), None, (1, "x"), None],
        np.array(["b", "a", "b", "a"], dtype=object),
        torch.tensor([0.5, 0.25, 0.5, 0.25]),
    ],
)
def test_group_ids_may_be_anything_hashable_in_any_order(group_ids):
    rewards = torch.tensor([[1.0], [5.0], [2.0], [3.0]])
    # The groups contain the rewards 1, 2 and 5, 3.
    close(group_normalize(rewards, group_ids), [[-S], [S], [S], [-S]])


@pytest.mark.parametrize("function", [group_normalize, gdpo_advantages, grpo_advantages])
def test_defaults_of_the_function_are_those_of_the_configuration(function):
    parameters, settings = inspect.signature(function).parameters, GdpoConfig()
    for name in {"epsilon", "scale", "whiten"} & parameters.keys():
        assert parameters[name].default == getattr(settings.estimator, name)
    assert settings.chosen_variant.whiten == "token"


def test_inputs_are_never_modified():
    rewards = torch.tensor([[1.0, NAN], [0.0, 2.0], [NAN, NAN], [3.0, 1.0]], dtype=torch.float64)
    given = {"rewards": rewards, "group_ids": torch.tensor([1, 1, 0, 1])}
    given |= {"response_mask": torch.ones(4, 3).double(), "weights": [0.5, 2.0]}
    before = copy.deepcopy(given)
    conditions = {"a": {"on": "b", "at_least": 1.0}}
    for whiten in WHITEN:
        gdpo_advantages(**given, whiten=whiten).fill_(8)
    grpo_advantages(**given).fill_(8)
    group_normalize(rewards, given["group_ids"]).fill_(8)
    apply_conditions(rewards, ["a", "b"], conditions).fill_(8)
    apply_conditions(rewards, ["a", "b"], {}).fill_(8)
    torch.testing.assert_close(given, before, rtol=0, atol=0, equal_nan=True)
    assert conditions == {"a": {"on": "b", "at_least": 1.0}}


GOOD = {"rewards": TWO_GROUPS, "group_ids": PAIRS, "response_mask": torch.ones(4, 3)}
ONES = torch.ones(4, 1).double()
NESTED = torch.nested.nested_tensor(list(ONES.unbind()))
# For each argument, values that are accepted and values that are rejected.
BAD = {
    "rewards": [
        (torch.zeros(4, 1), torch.zeros(4)),
        (torch.zeros(4, 1), torch.zeros(4, 0)),
        (torch.full((4, 2), NAN), torch.full((4, 2), math.inf)),
        (torch.zeros(4, 1), [[0.0]] * 4),
        (ONES.bool(), ONES * 1j),
        (ONES, ONES.to_sparse()),
        # With rewards beyond 1e300, sums overflow.
        (ONES * 1e300, ONES * 9e307),
    ],
    "group_ids": [
        ([(0,), (1,)] * 2, [[0], [1]] * 2),
        (torch.ones(4), torch.tensor(1)),
        (torch.ones(4), list(torch.ones(4))),
        (range(4), iter(range(4))),
        ([0, 1, 0, 1], [0, 1, 0, 1, 0]),
        (torch.ones(4), torch.ones(4, 2)),
    ],
    "response_mask": [
        (ONES, torch.ones(4)),
        (torch.ones(4, 0), torch.ones(3, 2)),
        (ONES.int(), ONES / 2),
        (ONES, [[1]] * 4),
        (ONES, ONES.to_sparse()),
        (ONES, NESTED),
    ],
    "weights": [
        ([1.0, 0.0], [1.0]),
        ((0.0, -1e-9), (0.0, 0.0)),
        ([1e300, 1.0], [math.inf, 1.0]),
        (None, [NAN, 1.0]),
        (np.array([1.0, 2.0]), np.ones((2, 2))),
        ((0.5, 2), ([0.5], [2, 1])),
        ([2**70, 1], [1, "1"]),
    ],
    "epsilon": [(0.0, -1e-6), (np.float32(0.5), "1e-6"), (1e300, math.inf), (1, NAN)],
}


@pytest.mark.parametrize(
    ("name", "valid", "invalid"), [(name, *pair) for name, pairs in BAD.items() for pair in pairs]
)
@pytest.mark.parametrize("function", [gdpo_advantages, grpo_advantages])
def test_bad_input_is_rejected_by_its_name(function, name, valid, invalid):
    assert function(**GOOD | {name: valid}).isfinite().all()
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        function(**GOOD | {name: invalid})


def test_the_result_has_no_gradient():
    rewards, mask = TWO_GROUPS.clone().requires_grad_(), torch.ones(4, 1).requires_grad_()
    weights = torch.ones(2, requires_grad=True)
    for function in (gdpo_advantages, grpo_advantages):
        found = function(rewards, PAIRS, mask, weights=weights)
        assert not found.requires_grad
    assert not group_normalize(rewards, PAIRS).requires_grad


def test_an_unknown_whitening_is_rejected():
    with pytest.raises(ValueError, match=r"^whiten: expected one of \['token', 'sequence', 'none'"):
        gdpo_advantages(**GOOD, whiten="Token")


def test_a_weighted_sum_beyond_float64_is_rejected():
    rewards = torch.tensor([[1e250], [0.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"^weights: with \[1e\+100\] the sum of row 0"):
        grpo_advantages(rewards, [0, 0], torch.ones(2, 1), weights=[1e100])
    close(gdpo_advantages(rewards, [0, 0], torch.ones(2, 1), weights=[1e100])[:, 0], [S, -S])


# ---------------------------------------------------------------- masks


MASK_DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
]


@pytest.mark.parametrize("rows", [1, 3, 5], ids=lambda rows: f"{rows} rows a block")
def test_tokens_are_counted_over_blocks_even_beyond_the_range_of_the_masks_dtype(rows, monkeypatch):
    # There are 303 tokens. uint8 ends at 255, and bfloat16 has no odd number above 256.
    mask = lengths(303, 101, 101, 101)
    monkeypatch.setitem(tokens.BLOCK, "cpu", rows * mask.shape[1])
    # In units of s the mean is 1/3, as with the lengths 3, 1, 1, 1, but var = 101·(34/3)/605.
    expected = torch.tensor([2, -4, 5, -7]) / 3 / math.sqrt(101 * 34 / 3 / 605)
    for dtype in (torch.bool, *MASK_DTYPES):
        found = gdpo_advantages(TWO_GROUPS, PAIRS, mask.to(dtype))
        assert found.dtype == torch.float32
        close(by_row(found, mask), expected)


@pytest.mark.parametrize("dtype", MASK_DTYPES, ids=str)
@pytest.mark.parametrize("place", [(0, 0), (7, 63)])
def test_a_mask_value_other_than_0_or_1_is_found_wherever_it_is(dtype, place, monkeypatch):
    monkeypatch.setitem(tokens.BLOCK, "cpu", 1)  # one block for each row
    rewards, groups, mask = TWO_GROUPS.repeat(2, 1), PAIRS * 2, torch.ones(8, 64).to(dtype)
    wrong = [2]
    if dtype.is_floating_point:
        step = torch.finfo(dtype).eps
        wrong += [1 - step / 2, 1 + step, 0.5, -1.0, torch.finfo(dtype).tiny, math.inf, NAN]
    else:
        # Powers of two whose low bytes are zero, or whose squares are zero modulo 2^64.
        wrong += [2**bits for bits in (8, 16, 32) if 2**bits <= torch.iinfo(dtype).max]
        wrong += [-1] * (torch.iinfo(dtype).min < 0)
    assert gdpo_advantages(rewards, groups, mask).isfinite().all()
    for value in wrong:
        mask[place] = value
        with pytest.raises(ValueError, match=r"^response_mask: expected only 0 and 1"):
            gdpo_advantages(rewards, groups, mask)


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_masked_tokens_are_0_without_a_sign_even_if_other_tokens_overflow(mask_dtype, dtype):
    # Weights of 1e39 and more overflow each of these dtypes. Kept tokens then have the largest
    # number, and masked tokens have 0 instead of inf · 0.
    rewards = torch.tensor([[1.0], [0.0]]).to(dtype)
    mask = torch.tensor([[1, 0], [1, 0]]).to(mask_dtype)
    for weight, largest in ((1.0, S), (1e39, torch.finfo(dtype).max)):
        found = gdpo_advantages(rewards, [0, 0], mask, weights=[weight], whiten="none")
        close(found / largest, [[1.0, 0.0], [-1.0, 0.0]], 4e-3)
        assert found.signbit().tolist() == [[False, False], [True, False]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs two devices")
def test_the_result_is_on_the_device_of_the_mask():
    mask = lengths(3, 1, 1, 1)
    expected = gdpo_advantages(TWO_GROUPS, PAIRS, mask)
    for rewards, device in ((TWO_GROUPS, "cuda"), (TWO_GROUPS.cuda(), "cpu")):
        found = gdpo_advantages(rewards, PAIRS, mask.to(device))
        assert found.device.type == device
        close(found.cpu(), expected.double(), 1e-6)
