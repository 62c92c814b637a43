"""Matplotlib's pictures inside a page, in the page's own colours."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping
from typing import Any

import matplotlib
from markupsafe import escape
from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can distinguish. Vermilion is the
# baseline's; black is left out because it vanishes on a dark page.
BLUE = "#0072b2"
VERMILION = "#d55e00"
OTHERS = ("#009e73", "#cc79a7", "#e69f00", "#56b4e9")
INK = "#24292f"
GRID = "#d0d7de"
STYLE: dict[Any, Any] = {
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
}


def inline_svg(figure: Figure, name: str, variables: Mapping[str, str]) -> str:
    """A figure as an svg element without links or scripts.

    Args:
      figure: drawn under `STYLE`.
      name: what a screen reader says; unlike any other picture's of the page.
      variables: what the page calls the colours.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text in the reader's font
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Matplotlib numbers its groups from 1 in every picture; nothing refers to them.
    svg = re.sub(r'<g id="[\w.]+">', "<g>", svg)
    # Its other ids come from positions to the last bit, which no layout gives twice.
    # A label may look like an id, but is not within a tag.
    ids = dict.fromkeys(re.findall(r'<[^<>]* id="(\w+)"', svg))
    for number, identifier in enumerate(ids):
        svg = svg.replace(identifier, f"{zlib.crc32(name.encode()):x}-{number}")
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # HTML knows what an svg element is
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    for color, variable in {INK: "currentColor", **variables}.items():
        svg = svg.replace(color, variable)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(name)}"', 1)
