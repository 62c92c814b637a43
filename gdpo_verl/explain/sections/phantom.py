"""Phantom gradients: a length reward where every answer is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marimo as mo

from gdpo_verl.explain import charts, curves, phantom
from gdpo_verl.explain.sections import layout


def heading() -> str:
    return charts.block(
        "phantom-heading",
        charts.heading(2, "9. Phantom gradients"),
        "Eight answers to one prompt are scored for correctness and for brevity (1 minus the "
        f"tokens over {phantom.LIMIT}). Where all of them are wrong, brevity is the only reward "
        "that varies. Choose how many are right, the longest first, and a remedy: Eq. 8's "
        "condition lets brevity count in correct answers alone, the gate leaves out groups in "
        "which correctness is the same for all.",
    )


def form() -> Any:
    return mo.ui.dictionary(
        {
            "right": layout.slider(0, len(phantom.TOKENS), 1, 0, "right answers"),
            "remedy": mo.ui.dropdown(
                list(phantom.REMEDIES), value="condition", label="remedy", allow_select_none=False
            ),
        }
    )


def show(chosen: Mapping[str, Any]) -> str:
    right, remedy = chosen["right"], chosen["remedy"]
    group = phantom.group(right)
    third = None
    if remedy != "none":
        found = phantom.remedied(right, remedy)
        third = (remedy, [found[each.name] for each in group])
    return charts.block(
        "phantom", phantom.group_sentence(right, remedy), charts.bars(group, third=third)
    )


# ---------------------------------------------------------------- a policy


def training_heading() -> str:
    hard, easy = (f"{idea} and {work}" for idea, work in (phantom.HARD, phantom.EASY))
    return charts.block(
        "phantoms-heading",
        charts.heading(3, "A policy trained on such groups"),
        "An answer is correct when it has the right idea and writes out the work, and brief when "
        f"it leaves the work out. Of {phantom.PROMPTS} prompts, hard ones start with the "
        f"probabilities {hard}, the others with {easy}. {phantom.SEEDS} seeds.",
    )


def training_form() -> Any:
    slider = layout.slow_slider
    return mo.ui.dictionary(
        {
            "hard": slider(0, phantom.PROMPTS, 1, 2, "hard prompts"),
            "size": slider(2, 32, 1, 8, "rollouts of a prompt"),
            "weight": slider(0.1, 2, 0.1, 1, "weight of brevity"),
        }
    )


def training(chosen: Mapping[str, Any]) -> str:
    found = phantom.trainings(**chosen)
    share = phantom.share_of_phantoms(chosen["hard"], chosen["size"])
    return charts.block(
        "phantoms",
        *phantom.training_sentences(found, share),
        curves.figures(
            curves.curves(title, "probability", {m: t.each(k) for m, t in found.items()})
            for k, title in enumerate(("Correctness", "Brevity"))
        ),
    )
