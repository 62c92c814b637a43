"""A replay for a terminal, as JSON, and as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.replay import Replay, figures
from gdpo_verl.lab.replay.advice import Verdict
from gdpo_verl.lab.replay.figures import Array, Figures
from gdpo_verl.lab.replay.rows import place_text
from gdpo_verl.lab.rundir.dumps import short_prompt, shorten
from gdpo_verl.lab.text import columns

LIMITS = (
    "This is the first step from these answers; what the policy would do afterwards it does not "
    "know."
)
# TRL logs single precision, and adds its epsilon at another place than we do.
_REPRODUCED = 1e-3
_WIDTH = 100
_SHOWN = 3  # of the answers that change most, on the terminal
_TEXT = 1_500  # characters of each on the page
_NONE = "–"


def to_json(result: Replay) -> dict[str, Any]:
    """All figures; of pairs the recorded settings come first. None is not known."""
    return {
        "limits": LIMITS,
        "where": result.where,
        "settings": [result.recorded.setting.name, result.asked.setting.name],
        "steps": result.steps,
        "rows": result.rows,
        "groups": result.asked.groups,
        "reproduces": result.reproduces,
        "components": _components(result),
        "dead_groups": result.dead[1],
        "dead_groups_recorded": result.dead[0],
        "order_changes": result.order_changes,
        "sign_changes": result.sign_changes,
        "changed_most": result.changed_most,
        "advice": [vars(each) for each in result.verdict.advice],
        "conclusion": result.verdict.conclusion,
        "notes": result.notes,
    }


def to_text(result: Replay) -> str:
    """One screen."""
    sides = result.recorded.setting.name, result.asked.setting.name
    lines = [
        f"{', '.join(result.where)}: {result.rows} answers in {result.asked.groups} groups, "
        f"{result.steps} steps; recorded {sides[0]}, asked {sides[1]}",
        LIMITS,
        "",
        reproduction(result),
        "",
    ]
    lines += columns(table(result))
    lines += ["", changes(result)]
    for entry in result.changed_most[:_SHOWN]:
        lines.append(f"  {_changed(entry)}")
    lines += ["", "Advice", *verdict_lines(result.verdict)]
    lines += [""] if result.notes else []
    for note in result.notes:
        lines += _wrapped(f"note: {note}", "")
    return "\n".join(lines)


def verdict_lines(verdict: Verdict) -> list[str]:
    """The advice, each line with its override below, and the conclusion."""
    lines = []
    for number, each in enumerate(verdict.advice, start=1):
        lines += _wrapped(f"{number}. {each.because}", "   ")
        lines.append(f"   {each.override}")
    if verdict.conclusion:
        lines += _wrapped(verdict.conclusion, "")
    return lines


def reproduction(result: Replay) -> str:
    """Say whether the recorded advantages follow from the recorded settings."""
    if result.reproduces is None:
        return "No advantages are recorded: there is nothing to reproduce."
    size = f"{result.reproduces:.1g}" if result.reproduces else "0"
    if result.reproduces <= _REPRODUCED:
        return f"Reproduces: recorded and computed advantages differ by {size} at most."
    return (
        f"DOES NOT REPRODUCE: recorded and computed advantages differ by up to {size}. The answers "
        "were trained under other settings (TRL logs no reward_weights: give them as "
        "algorithm.gdpo_reward_weights), or some of a batch are not here."
    )


def changes(result: Replay) -> str:
    """Count what changes from the recorded to the asked settings."""
    before, after = result.dead
    dead = f"{after}" if before == after else f"{before} → {after}"
    return (
        f"dead groups: {dead}; the order of answers changes in {result.order_changes} of "
        f"{result.asked.groups} groups, the sign for {result.sign_changes} of {result.rows} answers"
    )


def table(result: Replay) -> list[tuple[str, ...]]:
    """A row for each component, the heading first."""
    failing = "paid to failures"
    if result.outcome is not None:
        key = result.asked.keys[result.outcome.column]
        failing = f"paid where {key} < {result.outcome.at_least:g}"
    rows: list[tuple[str, ...]] = [("component", "varies in groups", "share", "influence", failing)]
    for name, pairs in _components(result).items():
        rows.append(
            (
                name,
                _arrow(pairs["varies"], "d"),
                _arrow(pairs["share"], ".0%"),
                _arrow(pairs["influence"], ".3f"),
                _arrow(pairs["misses"], ".0%"),
            )
        )
    return rows


def write_page(result: Replay, folder: Path) -> Path:
    """Write index.html, which needs no other file; returns its path."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    rooms = ("gdpo_verl.lab.replay", "gdpo_verl.lab.report")
    templates = Environment(
        loader=ChoiceLoader([PackageLoader(room, ".") for room in rooms]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    heading, *rows = table(result)
    page = templates.get_template("replay.html.j2").render(
        result=result,
        limits=LIMITS,
        reproduction=reproduction(result),
        changes=changes(result),
        heading=heading,
        rows=rows,
        answers=[_shown(entry) for entry in result.changed_most],
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "index.html", page)
    return folder / "index.html"


def _components(result: Replay) -> dict[str, dict[str, list[float | int | None]]]:
    sides = [_figures(each, result) for each in (result.recorded, result.asked)]
    if not result.shares_known:
        sides[0]["share"] = np.full(len(result.recorded.keys), np.nan)
        sides[0]["misses"] = sides[0]["share"]
    found: dict[str, dict[str, list[float | int | None]]] = {}
    for place, name in enumerate(result.asked.keys):
        pairs: dict[str, list[float | int | None]] = {
            figure: [_value(side, figure, keys, name) for side, keys in _sides(result, sides)]
            for figure in ("share", "influence", "misses")
        }
        before = _value(sides[0], "varies", result.recorded.keys, name)
        counts = [before, float(sides[1]["varies"][place])]
        varies: list[float | int | None] = [None if n is None else int(n) for n in counts]
        found[name] = {"varies": varies, **pairs}
    return found


def _sides(
    result: Replay, sides: Sequence[dict[str, Array]]
) -> Iterator[tuple[dict[str, Array], tuple[str, ...]]]:
    yield sides[0], result.recorded.keys
    yield sides[1], result.asked.keys


def _value(side: dict[str, Array], figure: str, keys: Sequence[str], name: str) -> float | None:
    """A component's figure; None where it is not known."""
    if name not in keys:
        return None
    value = float(side[figure][keys.index(name)])
    return None if np.isnan(value) else value


def _figures(found: Figures, result: Replay) -> dict[str, Array]:
    missed = np.full(len(found.keys), np.nan)
    outcome = result.outcome
    if outcome is not None and result.asked.keys[outcome.column] in found.keys:
        column = found.keys.index(result.asked.keys[outcome.column])
        missed = found.of_all(figures.misses, ["missed", "paid"])[:, column]
    return {
        "varies": found.sums["varies"].sum(axis=0),
        "share": found.of_all(figures.shares, ["share"]),
        "influence": found.of_all(figures.influences, ["influence", "live"]),
        "misses": missed,
    }


def _arrow(pair: Sequence[float | int | None], form: str) -> str:
    cells = [_NONE if value is None else f"{value:{form}}" for value in pair]
    return cells[0] if cells[0] == cells[1] else " → ".join(cells)


def _changed(entry: dict[str, Any]) -> str:
    place = place_text((Path(Path(entry["file"]).name), entry["line"]))
    values = ", ".join(f"{key} {_reward(value)}" for key, value in entry["components"].items())
    text = " ".join(entry["output"].split())
    line = f"{entry['recorded']:+.2f} → {entry['asked']:+.2f}  {values}  {place}  {text!r}"
    return textwrap.shorten(line, _WIDTH - 2, placeholder=" …")


def _reward(value: Any) -> str:
    return "not scored" if value is None or value != value else f"{value:g}"


def _shown(entry: dict[str, Any]) -> dict[str, Any]:
    return entry | {
        "title": short_prompt(entry["prompt"]),
        "prompt": shorten(entry["prompt"], _TEXT),
        "output": shorten(entry["output"], _TEXT),
        "values": ", ".join(f"{k} {_reward(v)}" for k, v in entry["components"].items()),
        "place": place_text((Path(entry["file"]), entry["line"])),
    }


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
