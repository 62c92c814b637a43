"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row; the first column to the left, the others to the right.

    >>> columns([("", "rows"), ("train", "2048"), ("test", "64")])
    ['        rows', 'train   2048', 'test      64']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(
            f"{cell:{'>' if place else '<'}{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
