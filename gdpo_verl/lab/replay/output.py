"""Write a replay as text for a terminal, or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gdpo_verl.lab.replay import Replay
from gdpo_verl.lab.replay.advice import Verdict
from gdpo_verl.lab.replay.figures import Figures
from gdpo_verl.lab.replay.forecast import forecast_lines
from gdpo_verl.lab.rundir.dumps import reward_of, scores_text
from gdpo_verl.lab.text import columns

LIMITS = (
    "These are the advantages that the settings give to these responses. They do not show what a "
    "policy would do afterwards."
)
# TRL logs advantages in single precision, and adds epsilon in another place than this package.
_REPRODUCED = 1e-3
_WIDTH = 100
# The number of responses with the largest changes that the terminal shows.
_SHOWN = 3
# The number format of each figure.
_FORMS = {"varies": "d", "share": ".0%", "influence": ".3f", "misses": ".0%"}


def to_json(result: Replay) -> dict[str, Any]:
    """Return all figures of a replay as values of JSON.

    In a pair, the figure under the recorded settings comes first. None means unknown.
    """
    recorded, asked = result.recorded, result.asked
    components = {}
    for key in asked.keys:
        before, after = [side.of(key, asked.outcome) for side in (recorded, asked)]
        components[key] = {figure: [before.get(figure), after[figure]] for figure in _FORMS}
    return {
        "limits": LIMITS,
        "where": result.where,
        "settings": [recorded.name, asked.name],
        "steps": result.steps,
        "rows": result.rows,
        "groups": asked.groups,
        "reproduces": result.reproduces,
        "components": components,
        "dead_groups": asked.dead,
        "dead_groups_recorded": recorded.dead,
        "order_changes": result.order_changes,
        "sign_changes": result.sign_changes,
        "changed_most": result.changed_most,
        "outcome": asked.outcome,
        "advice": [vars(advice) for advice in result.verdict.advice],
        "conclusion": result.verdict.conclusion,
        "forecast": result.forecast.for_step(result.groups_per_step),
        "notes": result.notes,
    }


def to_text(result: Replay) -> str:
    """Return a replay as about one screen of text."""
    before, after = result.recorded.name, result.asked.name
    lines = [
        f"{', '.join(result.where)}: {result.rows} responses in {result.asked.groups} groups, "
        f"{result.steps} steps; recorded {before}, asked {after}",
        LIMITS,
        "",
        reproduction(result),
        "",
        *columns(table(result)),
        "",
        changes(result),
        *_wrapped(outcome_text(result.asked), ""),
    ]
    for entry in result.changed_most[:_SHOWN]:
        file = Path(entry["file"]).name
        text = " ".join(entry["output"].split())
        line = f"{file}, line {entry['line']}: {_change(entry)} {text!r}"
        lines.append("  " + textwrap.shorten(line, _WIDTH - 2, placeholder=" …"))
    forecast = result.forecast.for_step(result.groups_per_step)
    lines += ["", "Forecast", *forecast_lines(forecast)]
    lines += ["", "Advice", *verdict_lines(result.verdict), ""]
    for note in result.notes:
        lines += _wrapped(f"note: {note}", "")
    return "\n".join(lines).rstrip()


def verdict_lines(verdict: Verdict) -> list[str]:
    """Return the lines of each piece of advice with its override below it, and the conclusion."""
    lines = []
    for number, advice in enumerate(verdict.advice, start=1):
        lines += [*_wrapped(f"{number}. {advice.because}", "   "), f"   {advice.override}"]
    return lines + _wrapped(verdict.conclusion, "")


def reproduction(result: Replay) -> str:
    """Return a sentence that says whether the recorded settings reproduce the advantages."""
    if result.reproduces is None:
        return "No advantages are recorded, so none can be reproduced."
    if result.reproduces <= _REPRODUCED:
        size = f"{result.reproduces:.1g}"
        return f"Reproduces: recorded and computed advantages differ by at most {size}."
    return (
        f"DOES NOT REPRODUCE: recorded and computed advantages differ by up to "
        f"{result.reproduces:.1g}. The responses were trained under other settings (TRL logs no "
        "reward_weights; state them as algorithm.gdpo_reward_weights), some responses of a batch "
        "are missing, or groups with equal prompts count as one (name their column with --group)."
    )


def outcome_text(figures: Figures) -> str:
    """Return a sentence that names the component which counts as the outcome."""
    if figures.outcome is None:
        return (
            f"No outcome is known: none of {', '.join(figures.keys)} has a usual name, and not "
            "exactly one of them is always 0 or 1. Name the outcome with --outcome COMPONENT."
        )
    return (
        f"{figures.outcome} counts as the outcome, which says whether a response solves its "
        "task; --outcome COMPONENT names another component."
    )


def changes(result: Replay) -> str:
    """Return a sentence that counts the changes from the recorded to the asked settings."""
    return (
        f"dead groups: {_arrow([result.recorded.dead, result.asked.dead], 'd')}; the order of "
        f"responses changes in {result.order_changes} of {result.asked.groups} groups, the sign of "
        f"the advantage for {result.sign_changes} of {result.rows} responses"
    )


def table(result: Replay) -> list[Sequence[str]]:
    """Return the table of figures: a heading, and a row for each component."""
    asked = result.asked
    failing = "positive terms in failures"
    if asked.outcome in asked.passing:
        failing = f"positive terms where {asked.outcome} < {asked.passing[asked.outcome]:g}"
    rows: list[Sequence[str]] = [("component", "varies in groups", "share", "influence", failing)]
    for name, pairs in to_json(result)["components"].items():
        rows.append([name] + [_arrow(pairs[figure], form) for figure, form in _FORMS.items()])
    return rows


def _arrow(pair: Sequence[float | int | None], form: str) -> str:
    cells = ["–" if value is None else f"{value:{form}}" for value in pair]
    return " → ".join(dict.fromkeys(cells))


def _change(entry: dict[str, Any]) -> str:
    """Return both advantages of a response and its scored components, as text."""
    both = f"{entry['recorded']:+.2f} → {entry['asked']:+.2f}"
    components = entry["components"].items()
    scored = {name: value for name, value in components if reward_of(value) is not None}
    return f"{both} {scores_text(scored)}"


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
