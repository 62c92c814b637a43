"""Load the templates of a page, which are in the folder of the page's module."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def templates(module_file: str) -> Environment:
    """Return the templates in the folder of a module.

    Args:
      module_file: the ``__file__`` of the module that renders the templates.
    """
    return Environment(
        loader=FileSystemLoader(Path(module_file).parent),
        autoescape=True,
        undefined=StrictUndefined,  # a misspelt name raises an error instead of rendering as ""
        trim_blocks=True,
        lstrip_blocks=True,
    )
