"""Widgets in rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import marimo as mo


def row(widgets: Iterable[Any]) -> Any:
    """Widgets side by side, as many as there is room for."""
    return mo.hstack(list(widgets), wrap=True, justify="start")


def rows(*lines: Iterable[Any]) -> Any:
    return mo.vstack([row(line) for line in lines])


def slider(low: float, high: float, step: float, value: float, label: str) -> Any:
    """A slider that answers while it is moved."""
    return mo.ui.slider(low, high, step, value=value, label=label, show_value=True)


def slow_slider(low: float, high: float, step: float, value: float, label: str) -> Any:
    """A slider that answers when it is let go: something is trained then."""
    return mo.ui.slider(low, high, step, value=value, label=label, show_value=True, debounce=True)


def stepped_slider(steps: Sequence[float], value: float, label: str) -> Any:
    """As `slow_slider`, over these values alone."""
    return mo.ui.slider(steps=list(steps), value=value, label=label, show_value=True, debounce=True)
