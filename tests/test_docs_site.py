"""The site is built without a warning, describes every public name, and needs no other host."""

import importlib
import re
import sys
from html import unescape

import pytest
from documents import ROOT
from processes import run

import gdpo_verl
from gdpo_verl import rewards
from gdpo_verl.lab import cli

REWARDS = ["tool_call", "gsm8k", "math_length", "code"]
# Elements whose content a browser fetches without a click.
FETCHED = re.compile(r"<(?:link|script|img|source|iframe|object|embed)\b[^>]*>")
OTHER_HOST = re.compile(r"[\"'(]\s*(?:https?:)?//")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site, and require that no warning is printed."""
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    process = run(*command, environment={"NO_MKDOCS_2_WARNING": "1"}, cwd=ROOT)
    output = process.stdout + process.stderr
    assert process.returncode == 0, output
    assert "WARNING" not in output
    return site


def text_of(html):
    return unescape(re.sub(r"<[^>]*>", "", html))


def test_every_public_name_and_command_is_described(site, capsys):
    html = (site / "api.html").read_text(encoding="utf-8")
    public = set(gdpo_verl.__all__) - {"__version__", "advantages_of"}
    names = {f"gdpo_verl.advantage.{name}" for name in public}
    names |= {"gdpo_verl.reward_dicts.advantages_of", "gdpo_verl.conformance.assert_conforms"}
    names |= {f"gdpo_verl.config.components.{name}" for name in rewards.__all__}
    for module in REWARDS:
        public = importlib.import_module(f"gdpo_verl.rewards.{module}").__all__
        names |= {f"gdpo_verl.rewards.{module}.{name}" for name in public if not name.isupper()}
    assert names - set(re.findall('id="([^"]*)"', html)) == set()
    # The examples in docstrings are rendered as code, not as quotations.
    assert ">>> rewards = torch.tensor" in text_of(html)

    with pytest.raises(SystemExit):
        cli.main(["--help"])
    commands = re.findall(r"^    ([a-z][a-z-]*)(?:\s|$)", capsys.readouterr().out, re.MULTILINE)
    assert "doctor" in commands
    described = text_of((site / "cli.html").read_text(encoding="utf-8"))
    assert [name for name in commands if f"usage: gdpo-verl {name} " not in described] == []


def test_no_page_fetches_from_another_host(site):
    for path in site.rglob("*.html"):
        html = path.read_text(encoding="utf-8")
        tags = [tag for tag in FETCHED.findall(html) if 'rel="canonical"' not in tag]
        assert [tag for tag in tags if OTHER_HOST.search(tag)] == [], path
        # Material's script would fetch a library for such diagrams.
        assert 'class="mermaid"' not in html, path
    for path in site.rglob("*.css"):
        loaded = re.findall(r"(?:@import|url\().{12}", path.read_text(encoding="utf-8"))
        assert [start for start in loaded if OTHER_HOST.search(start)] == [], path
