"""When does an estimator help? Train tabular policies with all of them, with equal random numbers.

    python scripts/studies/variants_study.py          # one to two hours on two cores
    python scripts/studies/variants_study.py --page   # write the table from the committed numbers

The policy gradient and its notation are those of gdpo_verl.lab.explain.toy: bits, each 1 with
probability sigmoid(x), four prompts per step. Each seed is a separate batch.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
import torch
from page import ROOT, markdown_table, replace_block
from torch import Tensor

from gdpo_verl.advantage import (
    Decomposition,
    EstimatorSettings,
    Gate,
    apply_conditions,
    decompose,
    find_variant,
)
from gdpo_verl.lab.explain import toy

PROMPTS = 4
SEEDS = 100
STEPS = 150
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": partial(torch.optim.SGD, lr=0.4),
    "Adam": partial(torch.optim.Adam, lr=0.03),
}
STATIC = (1 / 30, 1 / 10, 1 / 4, 1.0, 4.0, 10.0)
BEST = "GRPO, best weight"
Ranges = tuple[tuple[float, float], ...]
Advantage = Callable[[Tensor, Ranges], Tensor]  # of (P, G, K): (P G,)


@dataclass(frozen=True)
class ToyTask:
    """Bits and their rewards: a task of `toy`, with the range of each reward.

    Attributes:
      start: the probability of each bit before training, or those of each prompt.
      outcome: whether the first reward is an outcome to which gates and conditions can refer.
    """

    start: tuple[Any, ...]
    ranges: Ranges
    rewards: Callable[[Tensor, Tensor], Tensor] = lambda bits, draws: bits
    quality: Callable[[Tensor], Tensor] = lambda p: p.mean(1)
    group: int = 8
    outcome: bool = False


def scaled(factor: float, bits: Tensor, draws: Tensor) -> Tensor:
    return bits * torch.tensor([factor, 1.0], dtype=torch.float64)


def noisy(bits: Tensor, draws: Tensor) -> Tensor:
    return torch.cat([bits, (draws[..., :1] < 0.5).to(bits)], -1)


def graded(bits: Tensor, draws: Tensor) -> Tensor:
    """Reward a format, and a correctness from -3 to 3 that needs it and follows from four bits."""
    form = bits[..., :1]
    grade = bits[..., 1:].mean(-1, keepdim=True)
    return torch.cat([form, 6 * form * grade - 3], -1)


ONE = (0.0, 1.0)
UNEQUAL = (0.02, 0.3, 0.8)
HARD = ((0.02, 0.3), (0.05, 0.3), (0.3, 0.5), (0.5, 0.5))  # nearly all rollouts of two fail
TASKS = {
    "equal difficulty": ToyTask((0.3,) * 3, (ONE,) * 3),
    "unequal difficulty": ToyTask(UNEQUAL, (ONE,) * 3),
    "eight rewards": ToyTask((0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8), (ONE,) * 8),
    **{
        f"first reward × {unit:g}": ToyTask((0.3, 0.3), ((0.0, unit), ONE), partial(scaled, unit))
        for unit in (0.1, 1.0, 10.0, 30.0)
    },
    **{
        f"{name} rewards": ToyTask((0.3,) * 3, (ONE,) * 3, toy.Skills(correlation=share).rewards)
        for name, share in (("correlated", 0.7), ("conflicting", -0.5))
    },
    "a noise reward": ToyTask((0.3, 0.3), (ONE,) * 3, noisy),
    "graded [−3, 3] behind a format": ToyTask(
        (0.3,) * 5,
        (ONE, (-3.0, 3.0)),
        graded,
        lambda p: torch.stack([p[..., 0].mean(1), (p[..., 0] * p[..., 1:].mean(2)).mean(1)], dim=1),
    ),
    "length against correctness": ToyTask(
        HARD,
        (ONE, ONE),
        toy.CorrectOrShort(HARD).rewards,
        lambda p: p.prod(2).mean(1)[:, None],  # of correctness, because every policy earns brevity
        outcome=True,
    ),
    **{
        f"unequal difficulty, groups of {size}": ToyTask(UNEQUAL, (ONE,) * 3, group=size)
        for size in (2, 4, 16)
    },
}


def decomposed(r: Tensor, conditioned: bool = False, **settings: Any) -> Decomposition:
    """Decompose rewards of shape (P, G, K); a response has one token."""
    rows = r.flatten(0, 1)
    groups = torch.arange(len(r)).repeat_interleave(r.shape[1])
    names = range(r.shape[2])
    on_first = {name: {"on": 0, "at_least": 1.0} for name in names[1:]}
    counted = apply_conditions(rows, names, on_first if conditioned else {})
    tokens = torch.ones(len(rows))
    return decompose(rows, groups, tokens, EstimatorSettings(**settings), conditioned=counted)


def variant(name: str, own: dict[str, Any] | None = None, **settings: Any) -> Advantage:
    """Return the library's advantages under a variant with its own settings, and others."""
    chosen = find_variant(name).with_settings(own or {})
    return lambda r, ranges: decomposed(r, ranges=ranges, variant=chosen, **settings).advantage


def with_targets(r: Tensor, ranges: Ranges) -> Tensor:
    """Compute SA-MRPO with a target for each reward, nine tenths of its range."""
    targets = [low + 0.9 * (high - low) for low, high in ranges]
    return variant("sa_mrpo", {"targets": targets})(r, ranges)


def grpo(r: Tensor, ranges: Ranges, *, weight: float = 1.0, scale: bool = True) -> Tensor:
    weights = [weight, *[1.0] * (r.shape[2] - 1)]
    return decomposed(r, weights=weights, scale=scale).grpo


def whitened_grpo(r: Tensor, ranges: Ranges) -> Tensor:
    return toy.whiten(grpo(r, ranges).reshape(1, *r.shape[:2])).flatten()


METHODS: dict[str, Advantage] = {
    "GDPO": variant("gdpo"),
    "GRPO": grpo,
    "GRPO, whitened": whitened_grpo,
    "Dr.GRPO": partial(grpo, scale=False),
    "DVAO": variant("dvao"),
    "SA-MRPO": variant("sa_mrpo"),
    "SA-MRPO, targets": with_targets,
    "DARA": variant("dara"),
    "DARA, symmetric": variant("dara", {"symmetric": True}),
    "GD²PO": variant("gd2po"),
    "GD²PO, hard": variant("gd2po", {"hard": True}),
    "SAW": variant("saw"),
    "CorrGRPO": variant("corr_grpo"),
    "MO-GRPO": variant("mo_grpo"),
    "RVPO": variant("rvpo"),
}
OUTCOME: dict[str, Advantage] = {
    "GDPO, gate": variant("gdpo", gate=Gate(0)),
    "GDPO, conditioned": variant("gdpo", conditioned=True),
}

SHOWN = (
    "GDPO",
    "GRPO",
    BEST,
    "Dr.GRPO",
    "DVAO",
    "SA-MRPO",
    "SA-MRPO, targets",
    "DARA",
    "GD²PO",
    "SAW",
    "CorrGRPO",
    "MO-GRPO",
    "RVPO",
)


def train(task: ToyTask, advantage: Advantage, optimiser: str, seeds: int, steps: int) -> Tensor:
    """Compute the mean and the worst quality, averaged over the run: shape (2, seeds)."""
    generator = torch.Generator().manual_seed(0)
    start = torch.tensor(task.start, dtype=torch.float64)
    logits = torch.logit(start.expand(PROMPTS, -1)).repeat(seeds, 1, 1)
    optimizer = OPTIMISERS[optimiser]([logits])
    total = torch.zeros(2, seeds, dtype=torch.float64)
    for _ in range(steps):
        p = logits.sigmoid()
        quality = task.quality(p)
        total += torch.stack([quality.mean(1), quality.amin(1)]) / steps
        bits, rewards = toy.draw(task, p, generator)
        # Each seed is a batch: whitening and comparisons must not see the other seeds.
        a = torch.stack([advantage(batch, task.ranges) for batch in rewards])
        a = a.nan_to_num(0.0).reshape(*rewards.shape[:3], 1)
        # The gradient of the loss, because an optimiser of torch descends.
        logits.grad = -(a * (bits - p[:, :, None])).mean(2)
        optimizer.step()
    return total


def study(case: tuple[str, str]) -> list[dict[str, Any]]:
    """Write a row for each method on one task; GRPO has the weight with the best worst quality."""
    logging.getLogger("gdpo_verl").setLevel(logging.ERROR)  # CorrGRPO warns about every 0 / 0
    optimiser, name = case
    task = TASKS[name]
    methods = METHODS | (OUTCOME if task.outcome else {})
    if task.group < 3:  # correlations of two responses are 1 or -1
        methods = {key: method for key, method in methods.items() if key != "CorrGRPO"}
    qualities = {key: train(task, m, optimiser, SEEDS, STEPS) for key, m in methods.items()}
    static = [train(task, partial(grpo, weight=w), optimiser, SEEDS, STEPS) for w in STATIC]
    qualities[BEST] = max(static, key=lambda quality: float(quality[1].mean()))
    rows = []
    for key, values in qualities.items():
        row = {"optimiser": optimiser, "task": name, "method": key}
        for kind, quality in zip(("mean", "worst"), values, strict=True):
            row[kind] = f"{float(quality.mean()):.3f}"
            # Half of the 95 % interval over the seeds.
            row[f"{kind}_half"] = f"{1.96 * float(quality.std()) / SEEDS**0.5:.3f}"
        rows.append(row)
    return rows


def table(rows: pd.DataFrame) -> str:
    """Write the worst quality over the run minus GDPO's, and GDPO's itself, with Adam."""
    lines = []
    for task, methods in rows[rows["optimiser"] == "Adam"].groupby("task", sort=False):
        worst = dict(zip(methods["method"], methods["worst"], strict=True))
        cells = [task, f"{worst['GDPO']:.3f}"]
        for method in SHOWN[1:]:
            if method not in worst:
                cells.append("–")
                continue
            text = f"{worst[method] - worst['GDPO']:+.2f}"
            cells.append(text.replace("-0.00", "0.00").replace("+0.00", "0.00").replace("-", "−"))
        lines.append(cells)
    return markdown_table(["", *SHOWN], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--page", action="store_true", help="train nothing")
    args = parser.parse_args()
    numbers = ROOT / "docs/evidence/variants.csv"
    if not args.page:
        cases = [(optimiser, task) for optimiser in OPTIMISERS for task in TASKS]
        with ProcessPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            measured = [row for rows in pool.map(study, cases) for row in rows]
        pd.DataFrame(measured).to_csv(numbers, index=False)
    replace_block(ROOT / "docs/evidence/variants.md", "study", table(pd.read_csv(numbers)))


if __name__ == "__main__":
    main()
