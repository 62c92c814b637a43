"""A function of the user's own, tried on random batches before anything depends on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition, decompose
from gdpo_verl.advantage.variant import Ranges, Variant

_BATCHES, _GROUP, _GROUPS, _TOKENS = 4, 4, 6, 5


def try_variant(
    variant: Variant,
    where: str,
    *,
    weights: Sequence[float],
    ranges: Ranges | None = None,
    epsilon: float = 1e-6,
    scale: bool = True,
) -> None:
    """Call a variant on batches with all that a training brings, and look at the result.

    That is unscored rewards and responses, constant groups, groups of one, and empty responses.

    Args:
      where: the configuration key, for errors.
      weights: one a component.

    Raises:
      ValueError: it raised, returned something else than a finite number for each live response,
        or changed what it was given.
    """
    for rewards in _batches(len(weights)):
        groups = [row // _GROUP for row in range(len(rewards))]
        counts = torch.arange(len(rewards)) % (_TOKENS + 1)
        options = {"weights": weights, "ranges": ranges, "epsilon": epsilon, "scale": scale}
        found = decompose(rewards, groups, counts, variant=variant, **options)  # type: ignore[arg-type]
        untouched = decompose(rewards, groups, counts, **options)  # type: ignore[arg-type]
        try:
            _ = found.advantage  # 0 where masked or left out, whatever the function returns
        except Exception as error:
            raise ValueError(
                f"{where}: {variant.name!r} failed on a random batch of {len(rewards)} responses "
                f"with {len(weights)} component(s): {type(error).__name__}: {error}"
            ) from error
        if _changed(found, untouched):
            raise ValueError(
                f"{where}: {variant.name!r} changed the decomposition that it was given; copy what "
                "it changes (clone)"
            )


def _batches(components: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    for number in range(_BATCHES):
        shape = (_GROUPS * _GROUP + 1, components)  # the last response is alone in its group
        rewards = torch.randint(0, 4, shape, generator=generator).double()
        rewards[:_GROUP] = rewards[0]
        if number % 2:
            rewards[torch.rand(shape, generator=generator) < 0.2] = torch.nan
            rewards[-3] = torch.nan
        yield rewards * 10.0 ** (number - 1)


def _changed(found: Decomposition, untouched: Decomposition) -> bool:
    pairs = (
        (found.rewards, untouched.rewards),
        (found.normalized, untouched.normalized),
        (found.terms, untouched.terms),
        (found.combined, untouched.combined),
    )
    return any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)
