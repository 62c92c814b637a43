"""The pages of the repository, and a parser of CommonMark."""

from __future__ import annotations

from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "recipes/*/*.md") for path in ROOT.glob(pattern)
)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def parse(text: str) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(text)
