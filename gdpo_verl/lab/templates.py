"""Pages from templates, which lie next to the module of the page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def templates(module_file: str) -> Environment:
    """The templates next to a module.

    Args:
      module_file: the ``__file__`` of the module that fills the templates in.
    """
    return Environment(
        loader=FileSystemLoader(Path(module_file).parent),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name is an error, not an empty place
        trim_blocks=True,
        lstrip_blocks=True,
    )
