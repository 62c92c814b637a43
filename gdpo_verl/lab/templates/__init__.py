"""Pages from templates: those of a page lie next to its module, and what pages share lies here."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

SHARED = Path(__file__).parent


def templates(module_file: str) -> Environment:
    """The templates next to a module, and those that all pages share.

    Args:
      module_file: the ``__file__`` of the module that fills the templates in.
    """
    return Environment(
        loader=FileSystemLoader([Path(module_file).parent, SHARED]),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
    )
