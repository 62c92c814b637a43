"""The page's sentences about groups, made from the numbers it has just computed."""

from __future__ import annotations

from collections.abc import Sequence

from gdpo_verl.distinct import DISTINCT_TOLERANCE, levels
from gdpo_verl.explain.compare import (
    MOST_GROUPS,
    Pair,
    Rollout,
    count_distinct,
    group_count,
    orders_alike,
)


def number(value: float) -> str:
    """A number as the page writes it: 1, 0.05, -3, 0.123."""
    return f"{value:.3f}".rstrip("0").rstrip(".").replace("-0", "0", value == 0)


def vector(rewards: Sequence[float]) -> str:
    """Rewards in brackets; a reward that is not scored is a dash.

    >>> vector((1.0, 0.5, float("nan")))
    '[1, 0.5, –]'
    """
    return f"[{', '.join('–' if r != r else number(r) for r in rewards)}]"


def collapse_sentence(group: Sequence[Rollout]) -> str:
    """Say how many different rewards a group has, and how many each method tells apart."""
    kinds = len({vector(each.rewards) for each in group})
    grpo = len(set(levels([each.grpo for each in group])))
    gdpo = len(set(levels([each.gdpo for each in group])))
    tied = sum(bool(each.tie) for each in group)
    found = (
        f"Different reward vectors among the {len(group)} rollouts: {kinds}. Different advantages: "
        f"{grpo} with GRPO, {gdpo} with GDPO."
    )
    if not tied:
        return f"{found} No two different reward vectors have one GRPO advantage here."
    split = sum(each.split for each in group)
    found += f" {tied} rollouts have the GRPO advantage of a rollout whose rewards differ"
    if not split:
        return f"{found}, and GDPO does not tell these apart either: ties in both."
    return (
        f"{found}. Where GDPO tells these apart, the rows are marked as collapse, with one letter "
        f"for one GRPO advantage: {split} rollouts."
    )


def pair_sentence(pair: Pair, keys: Sequence[str]) -> str:
    """Explain why GRPO takes two rollouts for one, and what GDPO does with them."""
    first, second = pair.first, pair.second
    differing = [
        k for k in range(len(keys)) if vector([first.rewards[k]]) != vector([second.rewards[k]])
    ]
    text = (
        f"{first.name} {vector(first.rewards)} and {second.name} {vector(second.rewards)}: GRPO "
        f"adds first, and both sums are {number(pair.sums[0])}, so both get {first.grpo:+.3f}, "
        "and they stay equal whatever the rest of the group does. "
    )
    changes = " ".join(
        f"{keys[k]} is worth {pair.terms[0][k]:+.3f} and {pair.terms[1][k]:+.3f} "
        f"(σ {pair.deviations[k]:.3f});"
        for k in differing
    )
    text += f"GDPO divides each reward by its own deviation first: {changes} "
    if abs(pair.gap) > DISTINCT_TOLERANCE:
        return f"{text}the sums differ by {abs(pair.gap):.3f} before whitening."
    return (
        f"{text}the sums are equal again. What one rollout wins on one reward weighs as much as "
        "what the other wins on another, because these rewards vary equally in this group."
    )


def scale_sentence(group: Sequence[Rollout], unscaled: Sequence[Rollout]) -> str:
    """Compare the group with the same one in which every reward is worth 1."""
    before = {each.name: each for each in unscaled}
    grpo = max(abs(each.grpo - before[each.name].grpo) for each in group)
    gdpo = max(abs(each.gdpo - before[each.name].gdpo) for each in group)
    return (
        f"Against rewards that are all worth 1, GRPO's advantages change by up to {grpo:.3f} and "
        f"GDPO's by up to {gdpo:.3f}."
    )


def count_sentence(components: int, group_size: int) -> str:
    """Say what `count_distinct` finds, or that there are too many groups to go through."""
    groups = group_count(components, group_size)
    head = f"{components} binary rewards and {group_size} rollouts make {groups:,} different groups"
    if groups > MOST_GROUPS:
        return f"{head}: more than the {MOST_GROUPS:,} that this page goes through."
    counts = count_distinct(components, group_size)
    return (
        f"{head}. GRPO tells {counts.grpo:,} of them apart, GRPO without σ "
        f"{counts.grpo_unscaled:,}, GDPO {counts.gdpo:,}, which is "
        f"{counts.gdpo / counts.grpo:.1f} times as many as GRPO."
    )


def ranking_sentence(group: Sequence[Rollout], keys: Sequence[str]) -> str:
    """Say which reward decides the order of each method, counted in pairs."""
    pairs = len(group) * (len(group) - 1) // 2
    lines = []
    for method, values in (
        ("GRPO", [each.grpo for each in group]),
        ("GDPO", [each.gdpo for each in group]),
    ):
        alike = {
            key: orders_alike(values, [each.rewards[k] for each in group])
            for k, key in enumerate(keys)
        }
        said = ", ".join(f"{key} {count}" for key, count in alike.items())
        line = f"Of {pairs} pairs, {method} orders this many as one reward alone would: {said}."
        rulers = [key for key, count in alike.items() if count == pairs]
        if rulers:
            line += f" Its order is that of {' and '.join(rulers)}."
        lines.append(line)
    return " ".join(lines)
