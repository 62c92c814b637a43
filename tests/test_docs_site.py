"""The site: built without a warning, every public name in it, no request to another host."""

from __future__ import annotations

import functools
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from documents import PAGES, ROOT, parse
from pages import browser as browser
from pages import new_page
from servers import serving

import gdpo_verl
from gdpo_verl import rewards
from gdpo_verl.lab import cli

REWARDS = ["tool_call", "gsm8k", "math_length", "code"]


class Reader(HTMLParser):
    """A page's references that a browser would fetch, its anchors, its text and its heading."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.text = ""
        self.html = page.read_text(encoding="utf-8")
        self.feed(self.html)
        heading = re.search("<h1.*?</h1>", self.html, re.DOTALL)
        self.heading = re.sub(r"<[^>]*>|[¶\n]", "", unescape(heading[0])) if heading else ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors.add(given.get("id") or "")
        if tag == "link" and given.get("rel") not in ("next", "prev", "canonical"):
            self.fetched.append(given.get("href") or "")
        for attribute in ("src", "srcset", "poster", "data"):
            self.fetched.append(given.get(attribute) or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without a warning."""
    site = tmp_path_factory.mktemp("site")
    process = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    output = process.stdout + process.stderr
    assert process.returncode == 0, output
    assert "WARNING" not in output
    return site


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[str, Reader]:
    found = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path.relative_to(site).as_posix(): Reader(path) for path in found}


def test_every_page_is_in_the_site_with_its_headings_and_tables(pages):
    by_heading = {page.heading.strip(): page.html for page in pages.values()}
    for source in PAGES:
        text = source.read_text(encoding="utf-8")
        html = by_heading[re.sub(r"[#`]", "", text.splitlines()[0]).strip()]
        kinds = [token.type for token in parse(text)]
        # The headings and tables of docstrings stand beside the page's own.
        assert html.count("<table") >= kinds.count("table_open"), source
        assert len(re.findall("<h[1-6]", html)) >= kinds.count("heading_open"), source
        assert "<p>```" not in html, source


def test_every_public_function_has_its_docstring_on_the_page(pages):
    page = pages["api.html"]
    public = set(gdpo_verl.__all__) - {"__version__", "advantages_of"}
    names = {f"gdpo_verl.advantage.{name}" for name in public}
    names |= {"gdpo_verl.reward_dicts.advantages_of", "gdpo_verl.conformance.assert_conforms"}
    names |= {f"gdpo_verl.config.components.{name}" for name in rewards.__all__}
    for module in REWARDS:
        public = importlib.import_module(f"gdpo_verl.rewards.{module}").__all__
        names |= {f"gdpo_verl.rewards.{module}.{name}" for name in public if not name.isupper()}
    assert names - page.anchors == set()
    assert "gdpo_verl.__version__" in page.text
    assert "False omits the division by the groups' standard deviations" in page.text


def test_every_command_is_on_the_page(pages, capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    ([a-z][a-z-]*)(?:\s|$)", capsys.readouterr().out, re.MULTILINE)
    assert "doctor" in commands
    text = pages["cli.html"].text
    assert [name for name in commands if f"usage: gdpo-verl {name} " not in text] == []


def test_every_equation_is_mathml(pages):
    equations = (ROOT / "docs" / "method.md").read_text(encoding="utf-8").count("```math")
    assert pages["method.html"].html.count("<math") == equations > 0


def test_examples_are_code_and_not_quotations(pages):
    assert ">>> rewards = torch.tensor" in pages["api.html"].text
    assert [n for n, page in pages.items() if "<blockquote>\n<blockquote>" in page.html] == []


def test_no_page_names_another_host_to_fetch_from(site, pages):
    for name, page in pages.items():
        assert [url for url in page.fetched if re.match(r"(https?:)?//", url)] == [], name
        # Material's script would fetch a library for such diagrams.
        assert 'class="mermaid"' not in page.html, name
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", text), style.name


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with serving(functools.partial(Quiet, directory=str(site))) as address:
        yield f"{address}/"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("width", [1300, 390])
def test_a_browser_opens_every_page_and_asks_no_other_host(browser, site, address, width):
    page = new_page(browser, viewport={"width": width, "height": 800}, service_workers="block")
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        # The last two are made by commands, whose tests open them.
        if name in ("404.html", "explain_page.html", "report_page.html"):
            continue
        page.goto(address + name, wait_until="load")
        wider = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wider) <= 0, name
        assert page.locator("h1").count() == 1, name
    page.goto(address + "index.html")
    if width > 1000:
        # Typed, since the search listens for keys; `fill` sends none.
        page.locator("input.md-search__input").click()
        page.locator("input.md-search__input").press_sequentially("whitening")
        page.locator(".md-search-result__item").first.wait_for()
    page.context.close()
    assert errors == []
    assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
