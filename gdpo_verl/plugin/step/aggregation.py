"""Aggregate our metrics over the mini-batches of a step with verl's `MetricsAggregator`."""

from __future__ import annotations

from typing import Any

from gdpo_verl import diagnostics, names
from gdpo_verl.upstream.hooks import wrap


def install(aggregator: Any) -> None:
    """Wrap the methods that aggregate one metric. verl still aggregates all other metrics."""
    wrap(aggregator, "_get_aggregation_type", _aggregation)
    wrap(aggregator, "_get_metric_weight", _metric_weight)
    wrap(aggregator, "_aggregate_single_metric", _aggregate)


def _aggregation(original: Any, aggregator: Any, metric_name: str) -> Any:
    # verl decides by substrings of the whole name, so a component named "summary" would be summed
    # over mini-batches (verl/trainer/ppo/v1/utils.py, `_get_aggregation_type`).
    if not metric_name.startswith((names.DECOMPOSITION, names.SCORES)):
        return original(aggregator, metric_name)
    return {"min": "min", "max": "max"}.get(metric_name.rpartition("/")[2], "weighted_avg")


def _metric_weight(
    original: Any, aggregator: Any, metric_name: str, metrics: dict[str, Any], sample_count: int
) -> Any:
    # verl weights each mean by the number of rows in its mini-batch (`_get_metric_weight`), even if
    # only a few of these rows are in the mean.
    value = metrics.get(metric_name)
    if isinstance(value, diagnostics.Weighted):
        return value.weight
    return original(aggregator, metric_name, metrics, sample_count)


def _aggregate(original: Any, aggregator: Any, metric_name: str, values: list[float]) -> Any:
    # verl ignores a mini-batch that lacks the metric (`_aggregate_single_metric`). The share of a
    # code of `parse_error` is missing if no response of the mini-batch has the code, and must count
    # as 0.
    if names.PARSE_ERROR_CODE.name_in(metric_name) is None:
        return original(aggregator, metric_name, values)
    weights = aggregator.metric_weights
    rows = sum(weights[names.PARSE_ERROR_SHARE.key])
    return sum(v * w for v, w in zip(values, weights[metric_name], strict=True)) / rows
