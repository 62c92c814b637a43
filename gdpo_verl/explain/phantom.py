"""A length reward in groups that all fail: eight answers, and a policy trained on such groups."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gdpo_verl.diagnostics import outcome_metrics
from gdpo_verl.explain.compare import Rollout, compare, variant_advantages
from gdpo_verl.explain.toy import (
    GDPO,
    GRPO,
    Brevity,
    Figure,
    Method,
    Training,
    draw,
    over_seeds,
    start,
    train,
    verdict,
)

KEYS = ("correctness", "brevity")
CONDITIONS = {"brevity": {"on": "correctness", "at_least": 1.0}}
LIMIT = 256
# Tokens of eight answers to one prompt.
TOKENS = (40, 64, 88, 120, 152, 184, 216, 248)
NAMES = [f"{tokens} tokens" for tokens in TOKENS]
REMEDIES = ("none", "condition", "gate")

PROMPTS = 4
HARD, EASY = (0.02, 0.3), (0.5, 0.5)
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
    size = len(TOKENS)
    rows = [[float(i >= size - right), 1.0 - tokens / LIMIT] for i, tokens in enumerate(TOKENS)]
    return torch.tensor(rows, dtype=torch.float64)


def group(right: int) -> list[Rollout]:
    """GRPO's and GDPO's advantages of the eight, without a remedy."""
    return compare(NAMES, rewards(right), KEYS)


def remedied(right: int, remedy: str) -> dict[str, float]:
    """GDPO's advantages under a remedy, by the rollouts' names."""
    advantages = variant_advantages(
        rewards(right),
        KEYS,
        "gdpo",
        highest=(1.0, 1.0),
        conditions=CONDITIONS if remedy == "condition" else None,
        gate=KEYS.index("correctness") if remedy == "gate" else None,
    )
    return dict(zip(NAMES, advantages, strict=True))


def group_sentence(right: int, remedy: str) -> str:
    """Say what the group teaches, and what the remedy leaves of it."""
    by_name = {each.name: each for each in group(right)}
    short, long = by_name[NAMES[0]], by_name[NAMES[-1]]
    told = (
        f"GRPO gives the shortest {short.grpo:+.3f} and the longest {long.grpo:+.3f}, GDPO "
        f"{short.gdpo:+.3f} and {long.gdpo:+.3f}. "
    )
    if 0 < right < len(TOKENS):
        text = f"Of {len(TOKENS)} answers {right} are right, so correctness has something to say. "
    else:
        told_of = "right" if right else "wrong"
        text = (
            f"All {len(TOKENS)} answers are {told_of}: correctness is the same for all and says "
            "nothing, and all of the advantage is brevity's. "
        )
    if remedy == "none":
        return text + told
    left = remedied(right, remedy)
    if not any(left.values()):
        return f"{text}{told}With the {remedy} every advantage is 0."
    first, last = left[short.name], left[long.name]
    return f"{text}{told}With the {remedy} GDPO gives them {first:+.3f} and {last:+.3f}."


# ---------------------------------------------------------------- a policy


def task(hard: int, size: int) -> Brevity:
    """Four prompts, `hard` of which nearly always fail, in groups of `size`."""
    return Brevity(start=(HARD,) * hard + (EASY,) * (PROMPTS - hard), group=size)


def trainings(hard: int, size: int, weight: float) -> dict[Method, Training]:
    """The policy trained with each method, brevity with a weight."""
    methods = [replace(method, weights=(1.0, weight)) for method in METHODS]
    return {
        method: train(task(hard, size), method, seeds=SEEDS, learning_rate=LEARNING_RATE)
        for method in methods
    }


def share_of_phantoms(hard: int, size: int) -> float:
    """The share of phantom groups in the first epoch, over all seeds."""
    policy = task(hard, size)
    _, found = draw(policy, start(policy, SEEDS), torch.Generator().manual_seed(0))
    return outcome_metrics(GDPO.decompose(found), 0)["gdpo/phantom_groups"]


def training_sentences(found: dict[Method, Training], share: float) -> list[str]:
    """Say what became of correctness with each method, and which remedy made a difference."""
    ends = {method: over_seeds(each.each(0)[-1]) for method, each in found.items()}
    before = float(next(iter(found.values())).each(0)[0].mean())
    listed = ", ".join(f"{method.name} {figure}" for method, figure in ends.items())
    head = (
        f"In the first epoch {share:.0%} of the groups are phantoms: one outcome for all, and a "
        f"length that varies. Correctness begins at {before:.4f} and ends at: {listed}."
    )
    return [head, *_falls(ends, before), *_remedies(ends)]


def _falls(ends: dict[Method, Figure], before: float) -> list[str]:
    """Name the methods under which correctness ends below its beginning."""
    names = [m.name for m, figure in ends.items() if verdict(figure, Figure(before, 0.0)) < 0]
    if not names:
        return ["With none of them does correctness end below its beginning."]
    return [f"Correctness ends below its beginning with {', '.join(names)}."]


def _remedies(ends: dict[Method, Figure]) -> list[str]:
    """Hold each remedy against its estimator alone."""
    sentences = []
    for method, figure in ends.items():
        alone = next(other for other in ends if other.decoupled == method.decoupled)
        if method is alone:
            continue
        gain = figure.mean - ends[alone].mean
        told = {
            1: f"raises the end by {gain:.4f}",
            0: "makes no difference that these seeds could show",
            -1: f"lowers the end by {-gain:.4f}",
        }[verdict(figure, ends[alone])]
        remedy = "the condition" if method.conditioned else "the gate"
        sentences.append(f"Added to {alone.name}, {remedy} {told}.")
    return [" ".join(sentences)]
