"""The toy policy on five tasks, and what that says about when to use which.

The sentences are made from the trainings' numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gdpo_verl.explain.conclusions import number
from gdpo_verl.explain.toy import (
    GDPO,
    GRPO,
    LEARNING_RATE,
    UNWHITENED,
    Figure,
    Method,
    Skills,
    Training,
    over_seeds,
    train,
    verdict,
)

CHECKPOINTS = (50, 149)


@dataclass(frozen=True)
class Case:
    """A toy task, how the page names it, and what came of it.

    Attributes:
      name: a heading.
      when: the task as a condition, after "when".
      advice: what to add where one of the two is ahead; may be empty.
      trainings: by method, in the order in which they are drawn.
    """

    name: str
    when: str
    task: Skills
    trainings: Mapping[Method, Training]
    advice: str = ""

    def slowest(self, method: Method, epoch: int = CHECKPOINTS[-1]) -> Figure:
        return over_seeds(self.trainings[method].slowest[epoch])

    def mean(self, method: Method, epoch: int = CHECKPOINTS[-1]) -> Figure:
        return over_seeds(self.trainings[method].mean[epoch])

    def throughout(self, method: Method) -> Figure:
        """The slowest skill's mean over all epochs: high for early and for lasting success."""
        return over_seeds(self.trainings[method].slowest.mean(dim=0))

    @property
    def skills(self) -> list[str]:
        """The counted skills, each with what sets it apart."""
        task, count = self.task, self.trainings[GDPO].quality.shape[2]
        names = [f"skill {k}" for k in range(1, count + 1)]
        if len(set(task.scales)) > 1:
            names = [f"{n}, worth {number(s)}" for n, s in zip(names, task.scales, strict=True)]
        if len(set(task.start)) > 1:
            names = [f"{n}, from {number(p)}" for n, p in zip(names, task.start, strict=True)]
        return names

    @property
    def verdict(self) -> int:
        """`toy.verdict` on the slowest skill throughout the training, GDPO against GRPO."""
        return verdict(self.throughout(GDPO), self.throughout(GRPO))

    @property
    def faster(self) -> Method:
        """The control of the missing whitening: GRPO with the learning rate it amounts to."""
        return next(method for method in self.trainings if method.faster != 1.0)


def study(
    name: str, when: str, task: Skills, *, seeds: int, learning_rate: float, advice: str = ""
) -> Case:
    """Train a task with GRPO, GDPO, GDPO without whitening, and a faster GRPO.

    The last has GRPO's learning rate times the factor by which unwhitened advantages spread
    wider than GRPO's in the first epoch.
    """
    methods = (GRPO, GDPO, UNWHITENED)
    trainings = {
        method: train(task, method, seeds=seeds, learning_rate=learning_rate) for method in methods
    }
    factor = round(trainings[UNWHITENED].spread / trainings[GRPO].spread, 3)
    faster = replace(GRPO, name=f"GRPO, learning rate × {factor:.2f}", faster=factor)
    trainings[faster] = train(task, faster, seeds=seeds, learning_rate=learning_rate)
    return Case(name, when, task, trainings, advice)


def study_all(
    *,
    correlation: float = 0.7,
    factor: float = 10.0,
    hard: float = 0.02,
    noise: float = 0.1,
    seeds: int = 20,
    learning_rate: float = LEARNING_RATE,
) -> list[Case]:
    """The five tasks of the page, trained."""
    shared = {"seeds": seeds, "learning_rate": learning_rate}
    even = study(
        "Independent rewards",
        "rewards are independent, equally scaled and equally hard",
        Skills(),
        **shared,  # type: ignore[arg-type]
    )
    towards = "the first skill's outcome" if correlation >= 0 else "the first skill's opposite"
    correlated = study(
        "Correlated rewards",
        f"rewards are correlated (in {abs(correlation):.0%} of the rollouts the second and the "
        f"third show {towards})",
        Skills(correlation=correlation),
        **shared,  # type: ignore[arg-type]
    )
    scaled = study(
        "Different scales",
        f"rewards have different scales (worth {number(factor)}, 1 and {number(1 / factor)})",
        Skills(scales=(factor, 1.0, 1.0 / factor)),
        advice=(
            "The scales are what is in the way: with all rewards brought to one scale by hand, "
            f"GRPO reaches {even.slowest(GRPO)}. GDPO does that by itself, and it also undoes "
            "scales that were meant: say what you mean with weights."
        ),
        **shared,  # type: ignore[arg-type]
    )
    uneven = study(
        "Unequally hard",
        f"rewards are unequally hard (the skills start at {number(hard)}, 0.5 and 0.9)",
        Skills(start=(hard, 0.5, 0.9)),
        **shared,  # type: ignore[arg-type]
    )
    flip = study(
        "A reward that is noise",
        f"a reward is noise (a coin flip worth {number(noise)} beside two skills worth 1)",
        Skills(noise=noise),
        advice=(
            "GDPO brings the coin flip to the size of the others, whatever it is worth: give a "
            "reward that measures nothing the weight 0."
        ),
        **shared,  # type: ignore[arg-type]
    )
    return [even, correlated, scaled, uneven, flip]


def case_table(cases: Sequence[Case]) -> tuple[list[str], list[list[str]]]:
    """Head and rows: each case and method at both checkpoints, mean over seeds ± its error."""
    head = ["rewards", "method"]
    head += [f"{what}, epoch {epoch}" for epoch in CHECKPOINTS for what in ("mean", "slowest")]
    rows = []
    for case in cases:
        for method in case.trainings:
            figures = [
                str(figure)
                for epoch in CHECKPOINTS
                for figure in (case.mean(method, epoch), case.slowest(method, epoch))
            ]
            rows.append([case.name, method.name, *figures])
    return head, rows


def skills_sentence(case: Case) -> str:
    """Say on which skill the two methods differ most over the training, and by how much."""

    def average(method: Method, k: int) -> Figure:
        return over_seeds(case.trainings[method].each(k).mean(dim=0))

    pairs = [(average(GDPO, k), average(GRPO, k)) for k in range(len(case.skills))]
    k = max(range(len(pairs)), key=lambda k: abs(pairs[k][0].mean - pairs[k][1].mean))
    gdpo, grpo = pairs[k]
    if not verdict(gdpo, grpo):
        return "No skill's average over all epochs differs by more than these seeds could show."
    return (
        f"The two differ most on {case.skills[k]}: over all epochs it averages {gdpo} with GDPO "
        f"and {grpo} with GRPO."
    )


def whitening_sentence(case: Case) -> str:
    """Say what leaving the whitening out amounts to."""
    epoch, faster = CHECKPOINTS[0], case.faster
    values = {method: case.mean(method, epoch) for method in case.trainings}
    head = (
        f"On {case.name.lower()}, GDPO without whitening has reached {values[UNWHITENED]} at epoch "
        f"{epoch}, GRPO {values[GRPO]} and GDPO as published {values[GDPO]}. "
    )
    if not verdict(values[UNWHITENED], values[GRPO]):
        return head + "Leaving the whitening out changes nothing that these seeds could show."
    tail = (
        f"Unwhitened advantages spread {faster.faster:.2f} times as wide as GRPO's, which is a "
        f"larger learning rate by another name: GRPO with its learning rate times "
        f"{faster.faster:.2f} reaches {values[faster]}. "
    )
    if verdict(values[GDPO], values[GRPO]) == 0:
        tail += (
            "The lead of the unwhitened curve is therefore no merit of the decoupling: with the "
            "whitening, GDPO and GRPO cannot be told apart here."
        )
    return head + tail


def when_to_use(cases: Sequence[Case]) -> dict[str, list[str]]:
    """The cases sorted by who is ahead, each as a sentence with its numbers."""
    heads = {
        1: "GDPO is ahead",
        0: "Neither is ahead",
        -1: "GRPO is ahead",
    }
    result: dict[str, list[str]] = {head: [] for head in heads.values()}
    for case in cases:
        sentence = (
            f"When {case.when}: over all epochs the slowest skill averages "
            f"{case.throughout(GDPO)} with GDPO and {case.throughout(GRPO)} with GRPO; in the end "
            f"it is at {case.slowest(GDPO)} and {case.slowest(GRPO)}. "
        )
        faster = case.throughout(case.faster)
        if case.verdict > 0 and verdict(faster, case.throughout(GDPO)) > 0:
            sentence += (
                f"A learning rate {case.faster.faster:.2f} times as large does more for GRPO "
                f"here: {faster}. "
            )
        if case.verdict:
            sentence += case.advice
        result[heads[case.verdict]].append(sentence.strip())
    return {head: sentences for head, sentences in result.items() if sentences}
