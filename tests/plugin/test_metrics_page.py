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


FORMAT = "format"
KEYS = ["a_0_0", "a_1_0", "b_0_0"]


def names_of(component, values, **settings):
    """Return the names of the metrics of a batch with a component that has these values."""
    objective = GdpoConfig(**settings).resolve([component])
    config = OmegaConf.create({"algorithm": {"adv_estimator": "gdpo"}, "trainer": {}})
    rows = RewardRows(objective, [{FORMAT: value, "parse_error": 4} for value in values], KEYS)
    batch = RewardBatch.of(rows, ["a", "a", "b"], torch.tensor([2, 2, 3]))
    return TrainerHooks(config, objective).metrics(batch).keys()


def emitted():
    """Return the names of all metrics, with <component> and <variant> instead of names."""
    found = names_of(
        Component(FORMAT, 0, 1),
        [1.0, 0.0, 1.0],
        variant="dara",
        gate={"on": FORMAT, "when": "constant"},
        schedule={FORMAT: Schedule((0, 10), (1.0, 2.0))},
    )
    by_answer = EstimatorSettings(credit="answer")
    lists = [[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    found |= names_of(Component(FORMAT, by_turn=True), lists, estimator=by_answer)
    found |= names_of(Component(FORMAT, by_criterion=True), [{"a": 1.0}, {"a": 0.0}, {"a": 1.0}])
    return {
        name.replace(f"/{FORMAT}/", "/<component>/")
        .replace("code_4", "code_<code>")
        .replace("/dara/", "/<variant>/")
        for name in found
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
