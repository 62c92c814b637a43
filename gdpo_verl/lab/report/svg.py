"""Embed Matplotlib's pictures in a page, in the page's colours."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Mapping
from typing import Any

import matplotlib
from markupsafe import escape
from matplotlib.figure import Figure

# The palette of Okabe and Ito, whose colours colour-blind readers can distinguish. GDPO has blue,
# and the GRPO baseline has vermilion. Black is left out because it vanishes on a dark page.
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
    """Return a figure as an svg element without links or scripts.

    Args:
      figure: a figure that was drawn with `STYLE`.
      name: the text for screen readers. It must be different for each picture of a page.
      variables: for each colour of the figure, the CSS value that replaces it.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text in the reader's font
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # Matplotlib numbers its groups from 1 in every picture. Nothing refers to these ids.
    svg = re.sub(r'<g id="[\w.]+">', "<g>", svg)
    # Its other ids depend on positions to the last bit, which differ from one call to the next.
    # They are numbered anew, so that the same figure gives the same text. Only ids within tags are
    # replaced, because a label may look like an id.
    ids = dict.fromkeys(re.findall(r'<[^<>]* id="(\w+)"', svg))
    for number, identifier in enumerate(ids):
        svg = svg.replace(identifier, f"{zlib.crc32(name.encode()):x}-{number}")
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # HTML knows what an svg element is
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)
    for color, variable in {INK: "currentColor", **variables}.items():
        svg = svg.replace(color, variable)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(name)}"', 1)
