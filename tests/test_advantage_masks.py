"""Response masks: any dtype, holes, blocks of rows, and what is no mask."""

from __future__ import annotations

import math

import pytest
import torch
from advantages import NAN, PAIRS, TWO_GROUPS, S, by_row, close, lengths

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.advantage import tokens


def test_masks_may_have_holes() -> None:
    # The tokens of the second group are those of lengths 3, 1, 1, 1 in another place.
    mask = torch.tensor([[1, 0, 1, 1], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask)
    expected = torch.tensor([0.44281, -0.88561, 1.10702, -1.54983])
    close(found, expected[:, None].double() * mask)


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64],
    ids=str,
)
def test_the_mask_may_have_any_dtype(dtype: torch.dtype) -> None:
    # 303 tokens: uint8 ends at 255, and bfloat16 has no odd number above 256.
    mask = lengths(303, 101, 101, 101)
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask.to(dtype))
    assert found.dtype == torch.float32
    # In units of s as with lengths 3, 1, 1, 1: mean 1/3, but var = 101·(34/3)/605.
    expected = torch.tensor([2, -4, 5, -7]) / 3 / math.sqrt(101 * 34 / 3 / 605)
    close(by_row(found, mask), expected)


MASK_DTYPES = [
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
]


@pytest.mark.parametrize("dtype", MASK_DTYPES, ids=str)
@pytest.mark.parametrize("place", [(0, 0), (3, 4), (7, 63)], ids=["first", "middle", "last"])
def test_whatever_is_not_0_or_1_is_found_anywhere_in_the_mask(
    dtype: torch.dtype, place: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tokens.BLOCK, "cpu", 1)  # one row
    rewards, groups, mask = TWO_GROUPS.repeat(2, 1), PAIRS * 2, torch.ones(8, 64).to(dtype)
    wrong: list[float] = [2]
    if dtype.is_floating_point:
        step = torch.finfo(dtype).eps
        wrong += [1 - step / 2, 1 + step, 0.5, -1.0, torch.finfo(dtype).tiny, math.inf, NAN]
    else:
        # Powers of two whose low bytes, or whose squares modulo 2^64, are zero.
        wrong += [2**bits for bits in (8, 16, 32) if 2**bits <= torch.iinfo(dtype).max]
        wrong += [-1] * (torch.iinfo(dtype).min < 0)
    assert bool(gdpo_advantages(rewards, groups, mask).isfinite().all())
    for value in wrong:
        mask[place] = value
        with pytest.raises(ValueError, match=r"^response_mask: expected only 0 and 1"):
            gdpo_advantages(rewards, groups, mask)


@pytest.mark.parametrize("dtype", [torch.bool, *MASK_DTYPES], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5], ids=lambda rows: f"{rows} rows a block")
def test_no_row_of_any_block_is_lost(
    rows: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = lengths(3, 1, 1, 1)
    monkeypatch.setitem(tokens.BLOCK, "cpu", rows * mask.shape[1])
    found = gdpo_advantages(TWO_GROUPS, PAIRS, mask.to(dtype))
    close(by_row(found, mask), [0.44281, -0.88561, 1.10702, -1.54983])


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_masked_tokens_have_no_sign_and_are_0_beside_overflow(
    mask_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    # Weights of 1e39 and more overflow each of these: the largest number, and 0, not inf · 0.
    rewards = torch.tensor([[1.0], [0.0]]).to(dtype)
    mask = torch.tensor([[1, 0], [1, 0]]).to(mask_dtype)
    for weight, largest in ((1.0, S), (1e39, torch.finfo(dtype).max)):
        found = gdpo_advantages(rewards, [0, 0], mask, weights=[weight], whiten="none")
        close(found / largest, [[1.0, 0.0], [-1.0, 0.0]], 4e-3)
        assert found.signbit().tolist() == [[False, False], [True, False]]


def test_a_mask_of_negative_zeros_is_a_mask_of_zeros() -> None:
    mask = torch.tensor([[1.0, -0.0], [1.0, -0.0]])
    found = grpo_advantages(torch.tensor([[1.0], [0.0]]), [0, 0], mask)
    close(found, [[S, 0.0], [-S, 0.0]])
    assert not bool(found[:, 1].signbit().any())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs two devices")
def test_the_result_is_on_the_masks_device() -> None:
    mask = lengths(3, 1, 1, 1)
    expected = gdpo_advantages(TWO_GROUPS, PAIRS, mask)
    for rewards, device in ((TWO_GROUPS, "cuda"), (TWO_GROUPS.cuda(), "cpu")):
        found = gdpo_advantages(rewards, PAIRS, mask.to(device))
        assert found.device.type == device
        close(found.cpu(), expected.double(), 1e-6)


FLOAT8 = [dtype for dtype in vars(torch).values() if str(dtype).startswith("torch.float8_e")]


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_masks_of_eight_bits_are_read_or_refused_by_name(dtype: torch.dtype) -> None:
    try:
        mask = torch.ones(2, 3).to(dtype)
    except (RuntimeError, NotImplementedError):
        pytest.skip("torch converts nothing to it")
    rewards = torch.tensor([[1.0], [0.0]])
    expected = gdpo_advantages(rewards, [0, 0], torch.ones(2, 3))
    assert torch.equal(gdpo_advantages(rewards, [0, 0], mask), expected)
    with pytest.raises(ValueError, match=r"^response_mask: expected only 0 and 1"):
        gdpo_advantages(rewards, [0, 0], torch.full((2, 3), 2.0).to(dtype))
