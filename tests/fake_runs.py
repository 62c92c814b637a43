"""Runs in verl's formats, as the tests of the report write them, and a reader of its page."""

from __future__ import annotations

import json
import uuid
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from gdpo_verl.lab.report import write_report

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
COMPONENTS = ["format", "correctness"]


def training(step: int, format_: float, correctness: float, **more: float) -> dict[str, Any]:
    """One line of the `file` tracker after a training step."""
    data = {
        "training/global_step": step,
        "rewards/format/mean": format_,
        "gdpo/format/constant_groups": 0.25,
        "gdpo/format/influence": 0.5,
        "gdpo/noise_floor": 1.5,
        "rewards/format/max": 1.0,
        "rewards/correctness/mean": correctness,
        "gdpo/correctness/constant_groups": 0.5,
        "rewards/correctness/max": 3.0,
        "timing_s/step": 2.0,
        "actor/entropy": None,  # orjson writes NaN so
    }
    return {"step": step, "data": data | more}


def validation(format_: float, correctness: float) -> dict[str, float]:
    return {
        "val-aux/toolbox/format/mean@1": format_,
        "val-aux/toolbox/correctness/mean@1": correctness,
        "val-core/toolbox/reward/mean@1": format_ + correctness,
        "val-aux/num_turns/mean": 2.0,
    }


def answer(prompt: str, output: str, format_: float, correctness: float) -> dict[str, Any]:
    """One row of a validation dump."""
    score = format_ + correctness
    scores = {"score": score, "reward": score, "format": format_, "correctness": correctness}
    return {"input": prompt, "output": output, "gts": f"call for {prompt} {HOSTILE}", **scores}


def rollout(uid: str, format_: float, correctness: float, gdpo: Any, grpo: Any) -> dict[str, Any]:
    """One row of a rollout dump, with what the plug-in adds."""
    advantages = {"gdpo_advantage": gdpo, "grpo_advantage": grpo}
    return {"uid": uid, **answer("question", "…", format_, correctness), **advantages}


# Format and correctness add up to 2 in both of the first rows: GRPO sees one reward.
COLLAPSED = [
    rollout("a_0_0", 1.0, 1.0, 0.9, 0.5),
    rollout("a_1_0", 0.0, 2.0, -0.2, 0.5),
    rollout("a_2_0", 0.0, -3.0, -1.25, -1.5),
    rollout("b_0_0", 1.0, 1.0, 0.7, 0.7),
    rollout("b_1_0", 0.0, 1.0, -0.7, -0.7),
    rollout("padding_0_0", 0.0, 0.0, None, None),
]


def verls_uid(name: str) -> str:
    """A uid as verl makes it, the same for the same name."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def write_lines(path: Path, records: list[Any], end: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + end)


def write_run(path: Path, estimator: str = "gdpo", *, gain: float = 1.0) -> Path:
    """Three steps, validated before the first and after the last."""
    last = training(3, 0.8, 0.5 + gain, **validation(0.9, 1.5), **{"timing_s/testing": 4.0})
    lines = [
        {"step": 0, "data": validation(0.6, 0.25)},
        training(1, 0.6, 0.5),
        training(2, 0.7, 0.75),
        last,
    ]
    write_lines(path / "metrics.jsonl", lines)
    write_lines(path / "rollouts/2.jsonl", COLLAPSED)
    before = [answer("add 1", HOSTILE, 0.0, -3.0), answer("add 2", "same", 1.0, 3.0)]
    after = [answer("add 1", "now right", 1.0, 3.0), answer("add 2", "same", 1.0, 3.0)]
    write_lines(path / "validation/0.jsonl", before)
    write_lines(path / "validation/3.jsonl", after)
    (path / "config.yaml").write_text(
        f"algorithm: {{adv_estimator: {estimator}}}\n"
        f"trainer: {{total_training_steps: 3, default_local_dir: '{path}/saved'}}\n"
        "actor_rollout_ref: {model: {path: /somewhere/tiny}}\n"
    )
    return path


class Page(HTMLParser):
    """A page as a browser takes it, without running its script.

    Attributes:
      tags, references: of every element.
      text: what is shown.
      scripts: id to text of the script elements; the page's own has none.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.scripts: dict[str, str] = {}
        self.script = ""
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "br", "link", "img", "input"}:
            self.open.append(tag)
        if tag == "script":
            self.script = dict(attrs).get("id") or ""
        names = {"src", "href", "xlink:href", "action", "data", "srcset"}
        found = [value or "" for name, value in attrs if name in names]
        self.references += [value for value in found if value != "data:,"]  # no icon

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self.script] = self.scripts.get(self.script, "") + data
        else:
            self.words.append(data)


def page_of(out: Path, *runs: Path) -> Page:
    """The report about runs, written into `out` and read again."""
    return Page(write_report(runs, out).read_text(encoding="utf-8"))


def summary_of(out: Path, *runs: Path) -> str:
    """The report's tables and sentences about runs, as text."""
    write_report(runs, out)
    return (out / "summary.md").read_text(encoding="utf-8")
