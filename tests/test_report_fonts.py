"""Names in characters that matplotlib's own font does not have, in the report's pictures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.font_manager import fontManager
from report_runs import Page, write_lines

from gdpo_verl.report import svg, write_report

NAME = "格式"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    known = list(fontManager.ttflist)
    svg.fonts_for.cache_clear()
    yield
    svg.fonts_for.cache_clear()
    fontManager.ttflist[:] = known


def a_font(path: Path, name: str, characters: str) -> str:
    """A font in which these characters are full squares."""
    builder = pytest.importorskip("fontTools.fontBuilder").FontBuilder(1000, isTTF=True)
    pen = pytest.importorskip("fontTools.pens.ttGlyphPen").TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 800), (800, 800), (800, 0)):
        pen.lineTo(corner)
    pen.closePath()
    glyphs = [".notdef", *(f"uni{ord(char):04X}" for char in characters)]
    square = pen.glyph()
    builder.setupGlyphOrder(glyphs)
    builder.setupCharacterMap(dict(zip(map(ord, characters), glyphs[1:], strict=True)))
    builder.setupGlyf(dict.fromkeys(glyphs, square))
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (900, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return str(path)


def report(place: Path, name: str) -> str:
    line = {"step": 1, "data": {f"rewards/{name}/mean": 0.5}}
    write_lines(place / "run/metrics.jsonl", [line])
    return Page(write_report([place / "run"], place / "out").read_text(encoding="utf-8")).text


def test_a_name_is_drawn_in_a_font_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.ttf").write_text("no font")
    fonts = [a_font(tmp_path / f"{char}.ttf", f"Only {ord(char):X}", char) for char in NAME]
    monkeypatch.setattr(svg, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), *fonts])
    assert svg.fonts_for(f"a {NAME}") == (["DejaVu Sans", "Only 5F0F", "Only 683C"], "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = report(tmp_path, f"a {NAME}")
    assert "curves.png shows boxes" not in text


@pytest.mark.filterwarnings("ignore:Glyph")
def test_boxes_in_the_pictures_are_never_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(svg, "findSystemFonts", list)
    text = report(tmp_path, f"{NAME} reward")
    assert "curves.png shows boxes for 式格: no font of this machine has these characters" in text
    assert "fonts-noto-cjk" in (tmp_path / "out/summary.md").read_text(encoding="utf-8")
    # The page's own pictures hold text, which the browser draws.
    assert f"{NAME} reward" in text


def test_other_names_look_for_no_font(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "findSystemFonts", None)
    assert svg.fonts_for("format, größe, λ") == (["DejaVu Sans"], "")
