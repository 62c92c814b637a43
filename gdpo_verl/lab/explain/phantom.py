"""A length reward in groups that all fail: eight answers, and a policy trained on such groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from gdpo_verl.lab.explain.charts import Table
from gdpo_verl.lab.explain.compare import decompose_group
from gdpo_verl.lab.explain.toy import (
    GDPO,
    GRPO,
    CorrectOrShort,
    Method,
    Training,
    over_seeds,
    train,
)

KEYS = ("correctness", "brevity")
CONDITIONS = {"brevity": {"on": "correctness", "at_least": 1.0}}
LIMIT = 256
# Tokens of eight answers to one prompt.
TOKENS = (40, 64, 88, 120, 152, 184, 216, 248)
NAMES = [f"{tokens} tokens" for tokens in TOKENS]
REMEDIES = ("none", "condition", "gate")

PROMPTS = 4
# of the right idea, and of the work written out
HARD = (0.02, 0.3)
EASY = (0.5, 0.5)
SEEDS = 10
LEARNING_RATE = 0.4
METHODS = (
    GRPO,
    GDPO,
    replace(GRPO, name="GRPO + condition", conditioned=True),
    replace(GDPO, name="GDPO + condition", conditioned=True),
    replace(GDPO, name="GDPO + gate", gated=True),
)

# ---------------------------------------------------------------- eight answers


def rewards(right: int) -> Tensor:
    """Correctness and brevity of the eight answers, the longest `right` of them correct."""
    wrong = len(TOKENS) - right
    rows = [[float(i >= wrong), 1.0 - tokens / LIMIT] for i, tokens in enumerate(TOKENS)]
    return torch.tensor(rows, dtype=torch.float64)


def remedied(right: int, remedy: str) -> dict[str, float]:
    """GDPO's advantages under a remedy, by the rollouts' names."""
    found = decompose_group(
        rewards(right),
        KEYS,
        conditions=CONDITIONS if remedy == "condition" else None,
        gate=KEYS.index("correctness") if remedy == "gate" else None,
    )
    return dict(zip(NAMES, found.gdpo.tolist(), strict=True))


# ---------------------------------------------------------------- a policy


def task(hard: int, size: int) -> CorrectOrShort:
    """Four prompts, `hard` of which nearly always fail, in groups of `size`."""
    return CorrectOrShort(start=(HARD,) * hard + (EASY,) * (PROMPTS - hard), group=size)


def trainings(hard: int, size: int, weight: float) -> dict[Method, Training]:
    """The policy trained with each method, brevity with a weight."""
    run = partial(train, task(hard, size), seeds=SEEDS, learning_rate=LEARNING_RATE)
    methods = [replace(method, weights=(1.0, weight)) for method in METHODS]
    return {method: run(method) for method in methods}


def table(found: Mapping[Method, Training]) -> Table:
    """Head and rows: correctness with each method at both ends, mean over seeds ± its error."""
    rows = [
        [method.name, *[str(over_seeds(each.each(0)[epoch])) for epoch in (0, -1)]]
        for method, each in found.items()
    ]
    return ["method", "correctness, first epoch", "last epoch"], rows
