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

import torch
from page import ROOT, markdown_table, read_rows, replace_block, write_rows
from torch import Tensor

from gdpo_verl.advantage import (
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


def group_ids(r: Tensor) -> Tensor:
    return torch.arange(len(r)).repeat_interleave(r.shape[1])


def variant(
    name: str, gate: int | None = None, conditioned: bool = False, **settings: Any
) -> Advantage:
    """Compute the library's advantages, whitened over responses where it whitens."""
    chosen = find_variant(name)
    # A response here has no tokens.
    whiten = "sequence" if chosen.whiten == "token" else chosen.whiten
    if settings:
        chosen = chosen.with_settings(settings)

    def advantage(r: Tensor, ranges: Ranges) -> Tensor:
        rows = r.flatten(0, 1)
        names = range(r.shape[2])
        on_first = {k: {"on": 0, "at_least": 1.0} for k in names[1:]} if conditioned else {}
        settings = EstimatorSettings(
            ranges=ranges,
            gate=None if gate is None else Gate(gate),
            variant=chosen,
            whiten=whiten,
        )
        counted = apply_conditions(rows, names, on_first)
        tokens = torch.ones(len(rows))
        return decompose(rows, group_ids(r), tokens, settings, conditioned=counted).advantage

    return advantage


def with_targets(r: Tensor, ranges: Ranges) -> Tensor:
    """Compute SA-MRPO with a target for each reward, nine tenths of its range."""
    targets = [low + 0.9 * (high - low) for low, high in ranges]
    return variant("sa_mrpo", targets=targets)(r, ranges)


def grpo(r: Tensor, ranges: Ranges, *, weight: float = 1.0, scale: bool = True) -> Tensor:
    weights = [weight, *[1.0] * (r.shape[2] - 1)]
    settings = EstimatorSettings(weights=weights, scale=scale)
    return decompose(r.flatten(0, 1), group_ids(r), settings=settings).grpo


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
    "DARA, symmetric": variant("dara", symmetric=True),
    "GD²PO": variant("gd2po"),
    "GD²PO, hard": variant("gd2po", hard=True),
    "SAW": variant("saw"),
    "CorrGRPO": variant("corr_grpo"),
    "MO-GRPO": variant("mo_grpo"),
    "RVPO": variant("rvpo"),
}
OUTCOME: dict[str, Advantage] = {
    "GDPO, gate": variant("gdpo", gate=0),
    "GDPO, conditioned": variant("gdpo", conditioned=True),
}

SHOWN = (
    "GDPO",
    "GRPO",
    BEST,
    "Dr.GRPO",
    "DVAO",
    "SA-MRPO",
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


def table(rows: list[dict[str, str]]) -> str:
    """Write the worst quality over the run minus GDPO's, and GDPO's itself, with Adam."""
    adam = [row for row in rows if row["optimiser"] == "Adam"]
    worst = {(row["task"], row["method"]): float(row["worst"]) for row in adam}

    def cell(task: str, method: str) -> str:
        if (task, method) not in worst:
            return "–"
        if method == "GDPO":
            return f"{worst[task, method]:.3f}"
        text = f"{worst[task, method] - worst[task, 'GDPO']:+.2f}"
        return text.replace("-0.00", "0.00").replace("+0.00", "0.00").replace("-", "−")

    tasks = dict.fromkeys(row["task"] for row in rows)
    lines = []
    for task in tasks:
        cells = [cell(task, method) for method in SHOWN]
        lines.append([task, *cells])
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
        write_rows(numbers, measured)
    replace_block(ROOT / "docs/evidence/variants.md", "study", table(read_rows(numbers)))


if __name__ == "__main__":
    main()
