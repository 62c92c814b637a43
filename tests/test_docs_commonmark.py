"""Every page is valid CommonMark, so that a repository's page and an editor show it correctly."""

import re

import pytest
from documents import PAGES, ROOT, name_of, parse

# A line that looks like a heading. In a block of code one "#" begins a comment, so that two are
# required here.
HEADING = re.compile(r" {0,3}(#{2,6})[ \t]+(.*?)[ \t#]*")
BELOW_A_TABLE_S_HEAD = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)+\|?[ \t]*")
FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*")


def faults(text):
    """Return the headings, tables and fences of a page's source that are not rendered as such."""
    lines = text.splitlines()
    tokens = parse(text)
    starts = {"heading_open": set(), "table_open": set()}
    for token in tokens:
        if token.type in starts and token.map:
            starts[token.type].add(token.map[0])
    found = []
    if not lines or not lines[0].startswith("# ") or 0 not in starts["heading_open"]:
        found.append("line 1: a page begins with its heading")
    for number, line in enumerate(lines):
        if HEADING.fullmatch(line) and number not in starts["heading_open"]:
            found.append(f"line {number + 1}: no heading: {line}")
        if BELOW_A_TABLE_S_HEAD.fullmatch(line) and number - 1 not in starts["table_open"]:
            found.append(f"line {number + 1}: no table: {lines[number - 1]}")
    for token in tokens:
        if token.type == "fence" and token.map:
            first, end = token.map
            if not FENCE.fullmatch(lines[end - 1]) or end - first < 3:
                found.append(f"line {first + 1}: a block of code that is empty or has no end")
        # A fence inside a paragraph is text in CommonMark, but the renderer of the site may differ.
        if token.type == "inline" and "```" in token.content:
            found.append(f"a stray fence in {token.content!r}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_headings_tables_and_fences_of_a_page_are_rendered_as_such(page):
    assert faults(page.read_text(encoding="utf-8")) == []


def test_every_page_and_anchor_that_code_or_a_script_names_exists():
    named = {}
    for folder in ("gdpo_verl", "scripts", "recipes", "examples", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".sh", ".yaml", ".j2"):
                text = path.read_text(encoding="utf-8")
                pages = re.findall(r"\b(docs/[\w/]+\.md)(?:#([\w-]+))?", text)
                named.update(dict.fromkeys(pages, path))
    assert len(named) > 5
    missing = []
    for (page, anchor), path in named.items():
        target = ROOT / page
        if not target.exists():
            missing.append(f"{path}: {page}")
        elif anchor and not has_anchor(target.read_text(encoding="utf-8"), anchor):
            missing.append(f"{path}: {page}#{anchor}")
    assert missing == []


def has_anchor(text, anchor):
    """Return whether a page has this anchor, written explicitly or as the slug of a heading."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return anchor in slugs or f'<a name="{anchor}"></a>' in text
