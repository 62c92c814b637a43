"""Every page by CommonMark, as a repository's page or an editor shows it."""

from __future__ import annotations

import re

import pytest
from documents import PAGES, ROOT, name_of, parse

# In a block of code one "#" begins a comment; nothing in it begins with two, nor is a table.
HEADING = re.compile(r" {0,3}(#{2,6})[ \t]+(.*?)[ \t#]*")
BELOW_A_TABLE_S_HEAD = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)+\|?[ \t]*")
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_heading_table_and_block_of_code_of_a_page_is_one(page):
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    tokens = parse(text)
    starts = {(token.type, token.map[0]) for token in tokens if token.map}
    assert lines[0].startswith("# ")
    for number, line in enumerate(lines):
        if HEADING.fullmatch(line):
            assert ("heading_open", number) in starts, line
        if BELOW_A_TABLE_S_HEAD.fullmatch(line):
            assert ("table_open", number - 1) in starts, lines[number - 1]
    for token in tokens:
        if token.type == "fence":
            first, end = token.map
            assert FENCE.fullmatch(lines[end - 1]), f"no end: {lines[first]}"
            assert end - first > 2, f"empty: {lines[first]}"
        # What looks like one is text in a paragraph, where the renderer of the site may differ.
        if token.type == "inline":
            assert "```" not in token.content


def test_every_page_that_code_and_scripts_name_exists():
    named = {}
    for folder in ("gdpo_verl", "scripts", "recipes", "examples", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".sh", ".yaml", ".j2"):
                text = path.read_text(encoding="utf-8")
                for page in re.findall(r"\bdocs/[\w/]+\.md\b", text):
                    named[page] = path
    assert len(named) > 5
    assert {page: path for page, path in named.items() if not (ROOT / page).exists()} == {}
