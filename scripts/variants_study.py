"""Which estimator helps when: tabular policies trained under all of them, the same draws for each.

    python scripts/variants_study.py                    # minutes on two cores; writes docs/
    python scripts/variants_study.py --seeds 8 --steps 20 --out /tmp/study

A policy decides bits, each 1 with probability sigmoid(x); rewards are functions of the bits. A
step draws G rollouts of each of four prompts, takes their advantages, and moves each logit by the
policy gradient, mean over the group of A (bit - sigmoid(x)), with SGD or Adam. All seeds are
trained at once, so the advantages are written here once more over the axis of seeds;
tests/test_variants_study.py holds them against gdpo_verl.advantage. Batch steps run over responses.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from torch import Tensor

PROMPTS, STEPS, SEEDS = 4, 150, 100
RATE = {"SGD": 0.4, "Adam": 0.03}
STATIC = (1 / 30, 1 / 10, 1 / 4, 1.0, 4.0, 10.0)

# ---------------------------------------------------------------- advantages, over (S, P, G, K)


def centred(r: Tensor) -> Tensor:
    return r - r.mean(2, keepdim=True)


def varies(r: Tensor) -> Tensor:
    return (r.amax(2, keepdim=True) > r.amin(2, keepdim=True)).to(r)


def deviation(r: Tensor, correction: int = 1) -> Tensor:
    return r.std(2, keepdim=True, correction=correction) * varies(r)


def z(r: Tensor) -> Tensor:
    return centred(r) / (deviation(r) + 1e-6) * varies(r)


def whitened(a: Tensor, live: Tensor | None = None, correction: int = 1) -> Tensor:
    """Over the live responses of each seed; what rounding leaves of a sum that cancels is 0."""
    live = torch.ones_like(a) if live is None else live.to(a)
    n = live.sum((1, 2), keepdim=True)
    mean = (a * live).sum((1, 2), keepdim=True) / n.clamp(min=1)
    off = (a - mean) * live
    variance = off.square().sum((1, 2), keepdim=True) / (n - correction).clamp(min=1)
    return torch.where(variance > 1e-8, off * torch.rsqrt(variance + 1e-8), 0.0)


def grpo(r: Tensor, scale: bool = True) -> Tensor:
    total = r.sum(3, keepdim=True)
    return (z(total) if scale else centred(total))[..., 0]


def dvao(r: Tensor) -> Tensor:
    width = deviation(r, 0).sum(3)
    return torch.where(width > 0, centred(r).sum(3) / width.clamp(min=1e-12), 0.0)


def sa_mrpo(r: Tensor, ranges: Tensor, gamma: float = 0.25) -> Tensor:
    low, high = ranges.unbind(1)
    solved = ((r.mean((1, 2), keepdim=True) - low) / (high - low)).clamp(0.0, 1.0)
    std = deviation(r, 0)
    normal = torch.where(std > 0, centred(r) / std.clamp(min=1e-12), 0.0)
    return whitened((normal * (1 - solved) ** gamma).sum(3), correction=0)


def dara(r: Tensor, symmetric: bool = False) -> Tensor:
    share = varies(r).mean(1, keepdim=True)
    factor = (share.amax(3, keepdim=True) / share.clamp(min=1e-9)).sqrt().clamp(1.0, 5.0)
    terms = z(r)
    larger = terms if symmetric else terms.clamp(min=0.0)
    return whitened((terms + (factor - 1) * larger).sum(3))


def gd2po(r: Tensor, tau: float = 0.8) -> Tensor:
    terms = z(r)
    conflict = (terms > 1e-8).any(3) & (terms < -1e-8).any(3)
    conflict &= terms.sum(3).abs() / (terms.abs().sum(3) + 1e-8) < tau
    kept = (~conflict).to(r)
    return whitened(terms.sum(3) * kept.mean(2, keepdim=True), kept)


def saw(r: Tensor, ranges: Tensor) -> Tensor:
    shifted = r - ranges[:, 0]
    variation = shifted.std((1, 2), keepdim=True) / shifted.mean((1, 2), keepdim=True).clamp(1e-12)
    total = variation.sum(3, keepdim=True)
    factor = torch.where(total > 0, variation * r.shape[3] / total.clamp(min=1e-12), 1.0)
    return whitened((z(r) * factor).sum(3))


def corr_grpo(r: Tensor) -> Tensor:
    length = deviation(r) * math.sqrt(r.shape[2] - 1)
    unit = torch.where(length > 0, centred(r) / length.clamp(min=1e-12), 0.0)
    root = unit.sum(3).square().sum(2, keepdim=True).sqrt()
    return torch.where(root > 1e-4, centred(r).sum(3) / (root + 1e-6), 0.0)


def rvpo(r: Tensor, k: float = 1.0) -> Tensor:
    return whitened(-(torch.logsumexp(-k * z(r), 3) - math.log(r.shape[3])) / k)


def gated(r: Tensor) -> Tensor:
    """GDPO, where a group whose first reward is constant is left out."""
    live = varies(r)[..., 0].expand(r.shape[:3])
    return whitened(z(r).sum(3), live)


def conditioned(r: Tensor) -> Tensor:
    """GDPO, the other rewards counting only where the first is at its best."""
    kept = torch.cat([r[..., :1], r[..., 1:] * (r[..., :1] >= 1.0)], 3)
    return whitened(z(kept).sum(3))


Advantage = Callable[[Tensor, Tensor], Tensor]
METHODS: dict[str, Advantage] = {
    "GDPO": lambda r, ranges: whitened(z(r).sum(3)),
    "GRPO": lambda r, ranges: grpo(r),
    "GRPO, whitened": lambda r, ranges: whitened(grpo(r)),
    "Dr.GRPO": lambda r, ranges: grpo(r, scale=False),
    "DVAO": lambda r, ranges: dvao(r),
    "SA-MRPO": sa_mrpo,
    "DARA": lambda r, ranges: dara(r),
    "DARA, symmetric": lambda r, ranges: dara(r, symmetric=True),
    "GD²PO": lambda r, ranges: gd2po(r),
    "GD²PO, hard": lambda r, ranges: gd2po(r, 1.0),
    "SAW": saw,
    "CorrGRPO": lambda r, ranges: corr_grpo(r),
    "MO-GRPO": lambda r, ranges: z(r).sum(3),
    "RVPO": lambda r, ranges: rvpo(r),
}
BEST = "GRPO, best weight"
OUTCOME = {
    "GDPO, gate": lambda r, ranges: gated(r),
    "GDPO, conditioned": lambda r, ranges: conditioned(r),
}


def weighted(weight: float) -> Advantage:
    """GRPO with a static weight on the first reward."""

    def advantage(r: Tensor, ranges: Tensor) -> Tensor:
        return grpo(torch.cat([weight * r[..., :1], r[..., 1:]], 3))

    return advantage


# ---------------------------------------------------------------- tasks


@dataclass(frozen=True)
class Task:
    """Bits, what they earn, and what counts as success.

    Attributes:
      start: each bit's probability before training, by prompt, or one for all.
      rewards: of bits (S, P, G, N) and as many uniform draws: (S, P, G, K).
      quality: of probabilities (S, P, N): (S, Q), each from 0 to 1.
      ranges: low and high of each reward.
      outcome: the first reward is an outcome that others can be gated by or conditioned on.
    """

    name: str
    start: tuple
    ranges: tuple[tuple[float, float], ...]
    rewards: Callable[[Tensor, Tensor], Tensor] = lambda bits, draws: bits
    quality: Callable[[Tensor], Tensor] = lambda p: p.mean(1)
    group: int = 8
    outcome: bool = False


def units(factor: float) -> Task:
    scales = torch.tensor([factor, 1.0], dtype=torch.float64)
    return Task(
        f"first reward × {factor:g}",
        (0.3, 0.3),
        ((0.0, factor), (0.0, 1.0)),
        lambda bits, draws: bits * scales,
    )


def related(share: float, name: str) -> Task:
    """The second and third reward show the first bit, or its opposite, in a share of rollouts."""

    def rewards(bits: Tensor, draws: Tensor) -> Tensor:
        first = bits[..., :1]
        shown = first if share > 0 else 1 - first
        mixed = torch.where(draws < abs(share), shown, bits)
        return torch.cat([first, mixed[..., 1:]], 3)

    return Task(name, (0.3,) * 3, ((0.0, 1.0),) * 3, rewards)


def noisy(bits: Tensor, draws: Tensor) -> Tensor:
    return torch.cat([bits, (draws[..., :1] < 0.5).to(bits)], 3)


def graded(bits: Tensor, draws: Tensor) -> Tensor:
    """A format, and a correctness from -3 to 3 that needs it; four bits decide the correctness."""
    form, grade = bits[..., :1], bits[..., 1:].mean(3, keepdim=True)
    return torch.cat([form, 6 * form * grade - 3], 3)


def graded_quality(p: Tensor) -> Tensor:
    form, grade = p[..., 0], p[..., 1:].mean(2)
    return torch.stack([form.mean(1), (form * grade).mean(1)], 1)


def lengthy(bits: Tensor, draws: Tensor) -> Tensor:
    """Correct takes two bits, and the second makes it long, which costs the other reward."""
    correct = bits[..., :1] * bits[..., 1:]
    return torch.cat([correct, 1 - bits[..., 1:]], 3)


# Two prompts of which nearly all rollouts fail, and two of which some succeed.
_HARD = ((0.02, 0.3), (0.05, 0.3), (0.3, 0.5), (0.5, 0.5))


def tasks() -> Iterator[Task]:
    one = (0.0, 1.0)
    yield Task("equal difficulty", (0.3,) * 3, (one,) * 3)
    yield Task("unequal difficulty", (0.02, 0.3, 0.8), (one,) * 3)
    yield Task("eight rewards", (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8), (one,) * 8)
    yield from map(units, (0.1, 1.0, 10.0, 30.0))
    yield related(0.7, "correlated rewards")
    yield related(-0.5, "conflicting rewards")
    yield Task("a noise reward", (0.3, 0.3), (one,) * 3, noisy)
    yield Task(
        "graded [−3, 3] behind a format", (0.3,) * 5, (one, (-3.0, 3.0)), graded, graded_quality
    )
    yield Task(
        "length against correctness", _HARD, (one, one), lengthy,
        lambda p: p.prod(2).mean(1)[:, None], outcome=True,
    )  # fmt: skip
    for size in (2, 4, 16):
        yield Task(
            f"unequal difficulty, groups of {size}", (0.02, 0.3, 0.8), (one,) * 3, group=size
        )


# ---------------------------------------------------------------- training


@dataclass(frozen=True)
class Result:
    """Mean over the run of the mean and of the worst quality, by seed: shape (seeds,)."""

    mean: Tensor
    worst: Tensor


def train(task: Task, advantage: Advantage, optimiser: str, seeds: int, steps: int) -> Result:
    """Train all seeds at once; the draws are the same for each method."""
    generator = torch.Generator().manual_seed(0)
    start = torch.tensor(task.start, dtype=torch.float64)
    logits = torch.logit(start.expand(PROMPTS, -1)).repeat(seeds, 1, 1)
    ranges = torch.tensor(task.ranges, dtype=torch.float64)
    first, second = torch.zeros_like(logits), torch.zeros_like(logits)
    mean, worst = torch.zeros(seeds).double(), torch.zeros(seeds).double()
    for step in range(1, steps + 1):
        p = logits.sigmoid()
        quality = task.quality(p)
        mean, worst = mean + quality.mean(1) / steps, worst + quality.amin(1) / steps
        shape = (seeds, PROMPTS, task.group, logits.shape[2])
        draws = torch.rand(2, *shape, generator=generator, dtype=torch.float64)
        bits = (draws[0] < p[:, :, None]).double()
        a = advantage(task.rewards(bits, draws[1]), ranges)
        gradient = (a[..., None] * (bits - p[:, :, None])).mean(2)
        if optimiser == "Adam":
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient.square()
            scale = (second / (1 - 0.999**step)).sqrt() + 1e-8
            gradient = first / (1 - 0.9**step) / scale
        logits = logits + RATE[optimiser] * gradient
    return Result(mean, worst)


def study(task: Task, optimiser: str, seeds: int, steps: int) -> dict[str, Result]:
    """Every method on one task, GRPO's best weight chosen by the worst quality's mean."""
    methods = METHODS | (OUTCOME if task.outcome else {})
    if task.group < 3:
        methods = {name: method for name, method in methods.items() if name != "CorrGRPO"}
    found = {name: train(task, m, optimiser, seeds, steps) for name, m in methods.items()}
    static = [train(task, weighted(w), optimiser, seeds, steps) for w in STATIC]
    return found | {BEST: max(static, key=lambda result: float(result.worst.mean()))}


def study_all(optimiser: str, seeds: int, steps: int) -> dict[str, dict[str, Result]]:
    """Every task."""
    return {task.name: study(task, optimiser, seeds, steps) for task in tasks()}


def interval(values: Tensor) -> tuple[float, float]:
    """The mean over the seeds, and half of its 95 % interval."""
    return float(values.mean()), 1.96 * float(values.std()) / math.sqrt(len(values))


# ---------------------------------------------------------------- the page


def table(results: dict[str, dict[str, Result]], what: str) -> list[str]:
    """A row a method, a column a task; bold where it is apart from GDPO by a paired interval."""
    names = [*METHODS, BEST, *OUTCOME]
    lines = ["| | " + " | ".join(results) + " |", "|---|" + "---|" * len(results)]
    for name in names:
        cells = [_cell(found, name, what) for found in results.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def _cell(found: dict[str, Result], name: str, what: str) -> str:
    if name not in found:
        return "–"
    values, gdpo = getattr(found[name], what), getattr(found["GDPO"], what)
    middle, half = interval(values)
    difference, apart = interval(values - gdpo)
    text = f"{middle:.3f} ±{half:.3f}"
    if abs(difference) <= max(apart, 0.005):
        return text
    return f"**{text}** {'▲' if difference > 0 else '▼'}"


def draw(results: dict[str, dict[str, dict[str, Result]]], path: Path) -> None:
    """The worst quality less GDPO's, by task and method, a panel an optimiser."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in (*METHODS, BEST, *OUTCOME) if name != "GDPO"]
    figure, axes = plt.subplots(
        1, len(results), figsize=(15, 6.5), sharey=True, layout="constrained"
    )
    for panel, (optimiser, by_task) in zip(axes, results.items(), strict=True):
        grid = [
            [
                float((found[n].worst - found["GDPO"].worst).mean()) if n in found else math.nan
                for found in by_task.values()
            ]
            for n in names
        ]
        image = panel.imshow(grid, cmap="RdBu", vmin=-0.3, vmax=0.3, aspect="auto")
        for y, row in enumerate(grid):
            for x, value in enumerate(row):
                if not math.isnan(value):
                    dark = abs(value) > 0.2
                    panel.text(
                        x, y, f"{value:+.2f}", ha="center", va="center", fontsize=7,
                        color="white" if dark else "black",
                    )  # fmt: skip
        panel.set_xticks(range(len(by_task)), by_task, rotation=45, ha="right", fontsize=8)
        panel.set_yticks(range(len(names)), names, fontsize=9)
        panel.set_title(f"Worst reward over the run, less GDPO's: {optimiser}")
    figure.colorbar(image, ax=axes, shrink=0.6)
    figure.savefig(path, dpi=110)


BEGIN, END = "<!-- made by scripts/variants_study.py -->", "<!-- end -->"


def write(page: Path, lines: list[str]) -> None:
    """Put the lines between the two marks of the page, or make a page of them."""
    text = page.read_text(encoding="utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path("docs"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ProcessPoolExecutor(len(RATE), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        runs = pool.map(study_all, RATE, repeat(args.seeds), repeat(args.steps))
        results = dict(zip(RATE, runs, strict=True))
    print(f"{time.monotonic() - began:.0f} s")
    lines: list[str] = []
    for optimiser, by_task in results.items():
        for what, head in (("worst", "Worst reward"), ("mean", "Mean reward")):
            lines += [f"### {head} over the run, {optimiser}", "", *table(by_task, what), ""]
    lines += [
        f"{args.seeds} seeds, {args.steps} steps, {PROMPTS} prompts a step; learning rates "
        + ", ".join(f"{rate:g} ({name})" for name, rate in RATE.items())
        + ". Mean ± 95 % interval over seeds.",
    ]
    draw(results, args.out / "variants.png")
    write(args.out / "variants.md", lines)
    numbers = {
        optimiser: {
            task: {name: [interval(r.mean), interval(r.worst)] for name, r in found.items()}
            for task, found in by_task.items()
        }
        for optimiser, by_task in results.items()
    }
    print(json.dumps(numbers))


if __name__ == "__main__":
    main()
