"""docs/metrics.md describes every metric that the seam emits, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from omegaconf import OmegaConf

from gdpo_verl.advantage.schedule import Schedule
from gdpo_verl.config import GdpoConfig
from gdpo_verl.plugin.estimator import AdvantageStep
from gdpo_verl.plugin.trainer import Seam
from gdpo_verl.rewards.components import Component

PAGE = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text(encoding="utf-8")


def emitted() -> set[str]:
    """The names of one batch's metrics, with <component> and <variant> in place of the names."""
    component = Component("format", 0, 1)
    objective = GdpoConfig(
        variant="dara",
        gate={"on": component.name, "when": "constant"},
        schedule={component.name: Schedule((0, 10), (1.0, 2.0))},
    ).resolve([component])
    config = OmegaConf.create({"algorithm": {"adv_estimator": "gdpo"}, "trainer": {}})
    infos = [{component.name: value, "parse_error": 4} for value in (1.0, 0.0, 1.0)]
    step = AdvantageStep(objective, infos, ["a_0_0", "a_1_0", "b_0_0"], [False] * 3)
    step.record_inputs(["a", "a", "b"], torch.ones(3, 2), torch.ones(3, 2))
    step.decompose(torch.tensor([2, 1, 3]))
    metrics: dict[str, float] = {}
    Seam(config, objective).report(step, metrics)
    return {
        name.replace(f"/{component.name}/", "/<component>/")
        .replace("code_4", "code_<code>")
        .replace("/dara/", "/<variant>/")
        for name in metrics
    }


def test_the_page_has_one_row_for_each_metric_and_names_no_other() -> None:
    rows = re.findall(r"^\| `((?:gdpo|rewards)/[^`]+)` \|", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted(emitted())
    assert set(re.findall(r"(?:gdpo|rewards)/[\w<>/]+", PAGE)) == set(rows)
