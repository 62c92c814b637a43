"""The policy of three skills on five tasks, and when to use which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import marimo as mo
from markupsafe import Markup

from gdpo_verl.explain import charts, curves, study, toy
from gdpo_verl.explain.sections import layout


def heading() -> str:
    return charts.block(
        "toy-heading",
        charts.heading(2, "6. A toy policy, trained while you wait"),
        "Three logits, three skills; an epoch draws one group of "
        f"{toy.BATCH} rollouts and takes one step, {toy.EPOCHS} epochs in all. The curves show "
        "probabilities, first of the slowest skill and then of each: the mean over the seeds and a "
        "band of one standard deviation. With one group a batch, whitening does nothing but set "
        "the scale.",
    )


def form() -> Any:
    slider = layout.slow_slider
    return mo.ui.dictionary(
        {
            "seeds": slider(5, 50, 5, 20, "seeds"),
            "learning_rate": slider(0.05, 0.5, 0.05, toy.LEARNING_RATE, "learning rate"),
            "correlation": slider(-0.9, 0.9, 0.1, 0.7, "correlation"),
            "factor": slider(1, 20, 1, 10, "scale of the largest reward"),
            "hard": slider(0.01, 0.5, 0.01, 0.02, "start of the hard skill"),
            "noise": slider(0.05, 2, 0.05, 0.1, "size of the coin flip"),
        }
    )


def train(chosen: Mapping[str, Any]) -> list[study.Case]:
    return study.study_all(**chosen)


def show(cases: Sequence[study.Case]) -> str:
    return charts.block(
        "toy",
        curves.figures(
            curves.curves(
                case.name, "slowest skill", {m: t.slowest for m, t in case.trainings.items()}
            )
            for case in cases
        ),
        charts.folded("All numbers", charts.table(*study.case_table(cases))),
        charts.heading(3, "Each reward by itself"),
        *[part for case in cases for part in _each(case)],
        charts.heading(3, "The gap that whitening closes"),
        "A page known for explaining GDPO trains this very policy on independent rewards and "
        "leaves the whitening out.",
        study.whitening_sentence(cases[0]),
    )


def _each(case: study.Case) -> tuple[Markup, Markup, str]:
    """Every skill of a case under both methods, and where they differ most."""
    pictures = [
        curves.curves(
            skill,
            "probability",
            {method: case.trainings[method].each(k) for method in (toy.GRPO, toy.GDPO)},
            of=case.name,
            size=curves.SMALL,
        )
        for k, skill in enumerate(case.skills)
    ]
    return (
        charts.heading(4, case.name),
        curves.figures(pictures, small=True),
        study.skills_sentence(case),
    )


def when(cases: Sequence[study.Case]) -> str:
    parts: list[str] = []
    for head, sentences in study.when_to_use(cases).items():
        parts += [charts.heading(3, head), *sentences]
    return charts.block(
        "when",
        charts.heading(2, "7. When to use which"),
        "What the curves above say, for this policy and these settings; the sentences follow "
        "the widgets. A difference counts when it exceeds 0.01 and two standard errors.",
        *parts,
    )
