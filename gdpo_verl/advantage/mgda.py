"""MGDA: the weights under which the rewards' normalised advantages cancel the most.

Use it as a baseline: it follows what all rewards agree on.
Assumes: equal weights; up to a dozen components, because all 2^K sets of them are tried.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from gdpo_verl.advantage.decomposition import Decomposition
from gdpo_verl.advantage.variant import Variant


def mgda(d: Decomposition) -> Tensor:
    """Compute the shortest convex combination of the rewards' normalised advantages.

    A_i = sum_k alpha_k z[i, k],  alpha = argmin |sum_k alpha_k z_k|^2, alpha_k >= 0, sum alpha = 1

    The length is taken over the batch, and the result is not whitened. MGDA combines gradients in
    this way (https://arxiv.org/abs/1810.04650); here z takes the place of the gradients. A reward
    that varies nowhere gets no weight. Two rewards whose z have the same length get the weight 1/2
    each, which gives half of GDPO without whitening. If the rewards cancel, the result is 0.
    """
    z = d.normalized.nan_to_num(0.0) * d.has_advantage[:, None]
    return (z * shortest(z.T @ z)).sum(dim=1)


def shortest(gram: Tensor) -> Tensor:
    """Return the weights of the shortest convex combination of K vectors: shape (K,).

    `gram` has the inner products of the vectors: shape (K, K).
    """
    best = torch.zeros_like(gram[0])
    least = torch.inf
    live = gram.diagonal().nonzero()[:, 0].tolist()
    gram = gram / gram.diagonal().max()
    # If the set of vectors with a weight above 0 is known, the minimum solves a linear system.
    # All sets are tried.
    for size in range(1, len(live) + 1):
        sets = torch.tensor([*combinations(live, size)], device=gram.device)
        part = gram[sets[:, :, None], sets[:, None, :]]
        # Equal vectors make the system singular. The pseudo-inverse then gives the solution with
        # the smallest weights.
        alpha = torch.linalg.pinv(part + 1.0, hermitian=True).sum(dim=2)
        alpha = alpha / alpha.sum(dim=1, keepdim=True)
        square = torch.einsum("ni,nij,nj->n", alpha, part, alpha)
        # A combination with a negative weight is not convex, so this set is skipped.
        square = square.where((alpha >= 0).all(dim=1), torch.inf)
        if float(square.min()) < least:
            least = float(square.min())
            shortest_set = int(square.argmin())
            best = torch.zeros_like(best).index_put_((sets[shortest_set],), alpha[shortest_set])
    return best


VARIANT = Variant("mgda", mgda, whiten="none", linear=False, weights="equal", reads_only_z=True)
