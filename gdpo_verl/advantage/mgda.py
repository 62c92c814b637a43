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

    over the batch, without a batch step. MGDA does this with gradients
    (https://arxiv.org/abs/1810.04650), in place of which z is used here. A reward that varies
    nowhere gets no weight. Two rewards whose z are equally long get the weight 1/2 each, which is
    half of GDPO without whitening. Where the rewards cancel, the result is 0.
    """
    z = d.normalized.nan_to_num(0.0) * d.has_advantage[:, None]
    return (z * shortest(z.T @ z)).sum(dim=1)


def shortest(gram: Tensor) -> Tensor:
    """Return the convex weights of the shortest combination of K vectors.

    `gram` has their products: (K, K) to (K,).
    """
    best = torch.zeros_like(gram[0])
    least = torch.inf
    live = gram.diagonal().nonzero()[:, 0].tolist()
    gram = gram / gram.diagonal().max()
    # On the set of vectors that get a weight, the minimum solves a linear system.
    for size in range(1, len(live) + 1):
        sets = torch.tensor([*combinations(live, size)], device=gram.device)
        part = gram[sets[:, :, None], sets[:, None, :]]
        # Equal vectors make the system singular; then the shortest solution is used.
        alpha = torch.linalg.pinv(part + 1.0, hermitian=True).sum(dim=2)
        alpha = alpha / alpha.sum(dim=1, keepdim=True)
        square = torch.einsum("ni,nij,nj->n", alpha, part, alpha)
        # With a negative weight the combination is not convex; a smaller set has the minimum.
        square = square.where((alpha >= 0).all(dim=1), torch.inf)
        if float(square.min()) < least:
            least = float(square.min())
            found = int(square.argmin())
            best = torch.zeros_like(best).index_put_((sets[found],), alpha[found])
    return best


VARIANT = Variant("mgda", mgda, whiten="none", linear=False, weights="equal", reads_only_z=True)
