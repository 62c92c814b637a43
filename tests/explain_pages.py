"""Dumps for the explorer, and a reader of its pages."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from browser import browser as browser

HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def row(uid: str, style: float | None, speed: float | None, **more: Any) -> dict[str, Any]:
    return {
        "input": "user\nHow fast?",
        "output": "fast",
        "uid": uid,
        "score": 0.5,
        "step": 1,
        "style": style,
        "speed": speed,
        **more,
    }


def write_dump(run: Path, *rows: dict[str, Any], step: int = 1, end: str = "") -> Path:
    path = run / "rollouts" / f"{step}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows) + end)
    return path


WITH_ADVANTAGES = [
    row("u_0_0", 1.0, 0.0, grpo_advantage=0.5, gdpo_advantage=0.7),
    row("u_1_0", 0.0, 1.0, grpo_advantage=0.5, gdpo_advantage=0.3),
    row("u_2_0", 0.0, 0.0, grpo_advantage=-1.0, gdpo_advantage=-1.0, output=HOSTILE),
    row("v_0_0", 1.0, 1.0, grpo_advantage=0.0, gdpo_advantage=-0.1),
]


class Elements(HTMLParser):
    """The names of a page's elements, its text, and every address it refers to."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.addresses: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag, attributes):
        self.names.add(tag)
        self.addresses += [
            value or "" for name, value in attributes if name in ("src", "href", "xlink:href")
        ]

    def handle_data(self, data):
        self.text += data
