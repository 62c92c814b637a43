"""Twelve answers, three rewards, and everything that can be changed about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import marimo as mo
import torch
from torch import Tensor

from gdpo_verl.advantage import VARIANTS
from gdpo_verl.explain import charts, compare, conclusions
from gdpo_verl.explain.examples import ANSWERS, CONCISE, KEYS, PROMPT, score
from gdpo_verl.explain.sections import layout

NAMES = [str(i) for i in range(1, len(ANSWERS) + 1)]


def heading() -> str:
    return charts.block(
        "answers-heading",
        charts.heading(2, "1. Twelve answers, three rewards"),
        f"The prompt is “{PROMPT}” Twelve rollouts are scored for correctness (the call is the one "
        "asked for), style (a thought, then a call, and nothing else) and conciseness (at most "
        f"{CONCISE} characters). Overrule any verdict; change what a reward is worth, its weight, "
        "and what it depends on; and set another estimator beside the two.",
    )


def form() -> Any:
    verdicts = {
        f"{key} {name}": mo.ui.checkbox(value=bool(value), label=key)
        for name, answer in zip(NAMES, ANSWERS, strict=True)
        for key, value in zip(KEYS, score(answer), strict=True)
    }
    on = "counts only in correct answers"
    return mo.ui.dictionary(
        {
            "verdicts": mo.ui.dictionary(verdicts),
            "worth": mo.ui.dictionary(
                {key: layout.slider(0.5, 10, 0.5, 1, f"{key} is worth") for key in KEYS}
            ),
            "weights": mo.ui.dictionary(
                {key: layout.slider(0, 2, 0.1, 1, f"weight of {key}") for key in KEYS}
            ),
            "conditions": mo.ui.dictionary(
                {key: mo.ui.checkbox(label=f"{key} {on}") for key in KEYS[1:]}
            ),
            "whiten": mo.ui.switch(value=True, label="whiten over this group"),
            "variant": mo.ui.dropdown(
                list(VARIANTS), value="gdpo", label="beside them", allow_select_none=False
            ),
        }
    )


def widgets(form: Any) -> Any:
    answers = [
        mo.vstack(
            [mo.Html(_answer(name)), layout.row(form["verdicts"][f"{k} {name}"] for k in KEYS)]
        )
        for name in NAMES
    ]
    # The page's own style does not reach into an accordion.
    folded = {"The twelve answers and their verdicts": mo.vstack([mo.Html(charts.STYLE), *answers])}
    return mo.vstack(
        [
            mo.accordion(folded),
            layout.row(form["worth"].elements.values()),
            layout.row(form["weights"].elements.values()),
            layout.row([*form["conditions"].elements.values(), form["whiten"], form["variant"]]),
        ]
    )


def _answer(name: str) -> str:
    text = ANSWERS[int(name) - 1]
    return charts.block(
        f"answer-{name}", charts.folded(f"Answer {name}", text, preformatted=True, opened=True)
    )


def show(chosen: Mapping[str, Any]) -> str:
    try:
        group = _compare(chosen, chosen["worth"])
        third = _beside(chosen, group)
    except ValueError as error:
        return charts.block("answers", f"No advantages: {error}")
    plain = _compare(chosen, dict.fromkeys(KEYS, 1.0))
    pairs = compare.tied_pairs(group, weights=_weights(chosen))
    return charts.block(
        "answers",
        conclusions.collapse_sentence(group),
        conclusions.scale_sentence(group, plain),
        charts.bars(group, texts=[ANSWERS[int(each.name) - 1] for each in group], third=third),
        charts.heading(3, "Why, for one pair of each tie"),
        *[conclusions.pair_sentence(pair, KEYS) for pair in pairs],
    )


def _weights(chosen: Mapping[str, Any]) -> list[float]:
    return [chosen["weights"][key] for key in KEYS]


def _rewards(chosen: Mapping[str, Any], worth: Mapping[str, float]) -> Tensor:
    verdicts = chosen["verdicts"]
    rows = [[verdicts[f"{key} {name}"] * worth[key] for key in KEYS] for name in NAMES]
    return torch.tensor(rows, dtype=torch.float64)


def _options(chosen: Mapping[str, Any], worth: Mapping[str, float]) -> dict[str, Any]:
    on = {"on": "correctness", "at_least": worth["correctness"]}
    return {
        "weights": _weights(chosen),
        "conditions": {key: on for key, asked in chosen["conditions"].items() if asked},
        "whiten": chosen["whiten"],
    }


def _compare(chosen: Mapping[str, Any], worth: Mapping[str, float]) -> list[compare.Rollout]:
    return compare.compare(NAMES, _rewards(chosen, worth), KEYS, **_options(chosen, worth))


def _beside(
    chosen: Mapping[str, Any], group: list[compare.Rollout]
) -> tuple[str, list[float | None]] | None:
    """The chosen variant's advantages in the order of the group."""
    name, worth = chosen["variant"], chosen["worth"]
    if name == "gdpo":
        return None
    found = compare.variant_advantages(
        _rewards(chosen, worth),
        KEYS,
        name,
        highest=[worth[key] for key in KEYS],
        **_options(chosen, worth),
    )
    return name, [found[int(each.name) - 1] for each in group]
