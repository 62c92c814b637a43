"""verl aggregates the metrics over mini-batches."""

import pytest
from verl.trainer.ppo.v1.utils import MetricsAggregator

from gdpo_verl.names import METRICS


# verl 0.9.1 looks for sum, total, min and max anywhere in a metric's name, also in the name of a
# component. For the metrics of the plug-in only the last part of the name decides.
@pytest.mark.parametrize("component", ["correctness", "total_length", "timing_s/"])
def test_verl_reduces_each_metric_by_its_meaning(component):
    names = [metric.of(component) if "<" in metric.key else metric.key for metric in METRICS]
    aggregator = MetricsAggregator()
    aggregator.add_step_metrics(dict.fromkeys(names, 8.0), sample_count=1)
    aggregator.add_step_metrics(dict.fromkeys(names, 4.0), sample_count=3)
    # Minimum and maximum are kept. All other metrics are averaged by rows, (8 + 3·4)/4.
    meaning = {"min": 4.0, "max": 8.0}
    expected = {name: meaning.get(name.rpartition("/")[2], 5.0) for name in names}
    assert aggregator.get_aggregated_metrics() == expected


def test_verls_own_metrics_are_reduced_as_before():
    aggregator = MetricsAggregator()
    for value in (8.0, 4.0):
        names = ("actor/lr", "timing_s/step", "max_length", "least/min_length", "total_tokens")
        aggregator.add_step_metrics(dict.fromkeys(names, value), sample_count=1)
    assert list(aggregator.get_aggregated_metrics().values()) == [4.0, 12.0, 8.0, 4.0, 12.0]
