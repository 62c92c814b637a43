"""docs/metrics.md describes every metric that the plug-in emits, and no other."""

import re
from pathlib import Path

import torch
from omegaconf import OmegaConf

from gdpo_verl.advantage import EstimatorSettings
from gdpo_verl.advantage.schedule import Schedule
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.names import METRICS
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows
from gdpo_verl.plugin.step.trainer import TrainerHooks

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def emitted():
    """Return the names of one batch's metrics, with <component> and <variant> instead of names."""
    component = Component("format", 0, 1)
    objective = GdpoConfig(
        variant="dara",
        gate={"on": component.name, "when": "constant"},
        schedule={component.name: Schedule((0, 10), (1.0, 2.0))},
    ).resolve([component])
    config = OmegaConf.create({"algorithm": {"adv_estimator": "gdpo"}, "trainer": {}})
    infos = [{component.name: value, "parse_error": 4} for value in (1.0, 0.0, 1.0)]
    rows = RewardRows(objective, infos, ["a_0_0", "a_1_0", "b_0_0"])
    metrics = TrainerHooks(config, objective).metrics(
        RewardBatch.of(rows, ["a", "a", "b"], torch.tensor([2, 1, 3]))
    )
    by_turn = GdpoConfig(estimator=EstimatorSettings(credit="answer")).resolve(
        [Component(component.name, by_turn=True)]
    )
    lists = [{component.name: [1.0, value]} for value in (1.0, 0.0, 1.0)]
    rows = RewardRows(by_turn, lists, rows.keys)
    metrics |= TrainerHooks(config, by_turn).metrics(
        RewardBatch.of(rows, ["a", "a", "b"], torch.tensor([2, 2, 3]))
    )
    by_criterion = GdpoConfig().resolve([Component(component.name, by_criterion=True)])
    mappings = [{component.name: {"a": value}} for value in (1.0, 0.0, 1.0)]
    rows = RewardRows(by_criterion, mappings, rows.keys)
    metrics |= TrainerHooks(config, by_criterion).metrics(
        RewardBatch.of(rows, ["a", "a", "b"], torch.tensor([2, 2, 3]))
    )
    return {
        name.replace(f"/{component.name}/", "/<component>/")
        .replace("code_4", "code_<code>")
        .replace("/dara/", "/<variant>/")
        for name in metrics
    }


def test_exactly_the_metrics_of_the_table_are_emitted():
    assert sorted(metric.key for metric in METRICS) == sorted(emitted())


def test_the_page_lists_each_metric_with_its_meaning_and_no_other_metric():
    rows = re.findall(r"^\| `((?:gdpo|rewards)/[^`]+)` \| (.+?) \|", PAGE, flags=re.MULTILINE)
    assert sorted(rows) == sorted((metric.key, metric.meaning) for metric in METRICS)
    keys = {metric.key for metric in METRICS}
    assert set(re.findall(r"(?:gdpo|rewards)/[\w<>/]+", PAGE)) == keys


def test_a_metric_reads_the_keys_that_it_makes():
    for metric in METRICS:
        if "<" in metric.key:
            for name in ("format", "a/b", "mean", "<b>"):
                assert metric.name_in(metric.of(name)) == name
                others = [m for m in METRICS if "<" in m.key and m is not metric]
                assert {m.name_in(metric.of(name)) for m in others} <= {None}
