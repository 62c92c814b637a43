"""A length reward in groups whose responses all fail: an example, and a policy trained on them."""

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
# The tokens of eight responses to one prompt.
TOKENS = (40, 64, 88, 120, 152, 184, 216, 248)
NAMES = [f"{tokens} tokens" for tokens in TOKENS]
REMEDIES = ("none", "condition", "gate")

PROMPTS = 4
# The probabilities of the right idea, and of the written work (`toy.CorrectOrShort`).
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

# ---------------------------------------------------------------- eight responses


def rewards(right: int) -> Tensor:
    """Return correctness and brevity of the eight responses; the `right` longest are correct."""
    wrong = len(TOKENS) - right
    rows = [[float(i >= wrong), 1.0 - tokens / LIMIT] for i, tokens in enumerate(TOKENS)]
    return torch.tensor(rows, dtype=torch.float64)


def remedied(right: int, remedy: str) -> dict[str, float]:
    """Return GDPO's advantages with a remedy, by the names of the responses."""
    decomposition = decompose_group(
        rewards(right),
        KEYS,
        conditions=CONDITIONS if remedy == "condition" else None,
        gate=KEYS.index("correctness") if remedy == "gate" else None,
    )
    return dict(zip(NAMES, decomposition.gdpo.tolist(), strict=True))


# ---------------------------------------------------------------- a policy


def task(hard: int, size: int) -> CorrectOrShort:
    """Return four prompts, `hard` of which nearly always fail, in groups of `size`."""
    return CorrectOrShort(start=(HARD,) * hard + (EASY,) * (PROMPTS - hard), group=size)


def trainings(hard: int, size: int, weight: float) -> dict[Method, Training]:
    """Train the policy with each method, with a weight on brevity."""
    run = partial(train, task(hard, size), seeds=SEEDS, learning_rate=LEARNING_RATE)
    methods = [replace(method, weights=(1.0, weight)) for method in METHODS]
    return {method: run(method) for method in methods}


def table(results: Mapping[Method, Training]) -> Table:
    """Return head and rows: correctness per method at both ends, mean over seeds ± its error."""
    rows = []
    for method, training in results.items():
        correctness = training.each(0)
        first = over_seeds(correctness[0])
        last = over_seeds(correctness[-1])
        rows.append([method.name, str(first), str(last)])
    return ["method", "correctness, first epoch", "last epoch"], rows
