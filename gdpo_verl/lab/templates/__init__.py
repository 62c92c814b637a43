"""Pages from templates."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined


def templates(package: str) -> Environment:
    """The templates of pages next to a package's modules."""
    return Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
    )
