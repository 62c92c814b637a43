"""The interactive page: by hand, by property, with bad input, and in a real browser."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from browser import browser as browser

from gdpo_verl.advantage import grpo_scalars
from gdpo_verl.cli import main
from gdpo_verl.explain import charts, compare, conclusions, dumps, examples, study, toy
from gdpo_verl.report.rows import DUMP_BYTES

ROOT = Path(__file__).parents[1]
HOSTILE = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"


def group_of(*rewards: tuple[float, ...], **options: Any) -> dict[str, compare.Rollout]:
    names = [chr(ord("a") + i) for i in range(len(rewards))]
    keys = [f"reward {k}" for k in range(len(rewards[0]))]
    options = {"whiten": False} | options
    group = compare.compare(names, torch.tensor(rewards, dtype=torch.float64), keys, **options)
    return {each.name: each for each in group}


# ---------------------------------------------------------------- one group


def test_grpo_ties_are_marked_and_split_where_gdpo_tells_them_apart():
    # Sums 1, 1, 1, 0: mean 3/4, deviation 1/2. First reward: mean 1/4, deviation 1/2. Second:
    # mean 1/2, deviation 1/sqrt(3), so that a trade of one for the other is worth 2 - sqrt(3).
    group = group_of((1, 0), (0, 1), (0, 1), (0, 0))
    assert list(group) == ["a", "b", "c", "d"]
    assert [round(each.grpo, 4) for each in group.values()] == [0.5, 0.5, 0.5, -1.5]
    assert [round(each.gdpo, 4) for each in group.values()] == [0.634, 0.366, 0.366, -1.366]
    assert [(each.tie, each.split) for each in group.values()] == [("A", True)] * 3 + [("", False)]


def test_a_tie_of_rewards_that_vary_equally_is_one_for_gdpo_too():
    group = group_of((1, 0), (0, 1), (0, 0))
    # Each mean 1/3, each deviation 1/sqrt(3).
    expected = {"a": 1 / math.sqrt(3), "b": 1 / math.sqrt(3), "c": -2 / math.sqrt(3)}
    assert {each.name: each.gdpo for each in group.values()} == pytest.approx(expected, abs=1e-5)
    assert [(each.tie, each.split) for each in group.values()] == [("A", False)] * 2 + [("", False)]


def test_rollouts_with_the_same_rewards_are_no_tie():
    assert not any(each.tie for each in group_of((1, 0), (1, 0), (0, 0)).values())


def test_conditions_and_weights_enter_before_ties_are_looked_for():
    conditions = {"reward 1": {"on": "reward 0", "at_least": 1.0}}
    rewards = ((1, 0), (0, 1), (0, 1), (0, 0))
    conditioned = group_of(*rewards, conditions=conditions)
    assert conditioned["b"].rewards == (0.0, 0.0)
    assert not any(each.tie for each in conditioned.values())
    assert not group_of(*rewards, weights=[2.0, 1.0])["a"].tie


def test_whitening_gives_the_group_mean_zero_and_deviation_one():
    values = torch.tensor(
        [each.gdpo for each in group_of((1, 0), (0, 1), (0, 0), whiten=True).values()]
    )
    torch.testing.assert_close(values.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(values.std(), torch.tensor(1.0), atol=1e-6, rtol=0)


def test_the_pair_that_explains_a_tie_is_the_one_farthest_apart():
    (pair,) = compare.tied_pairs(list(group_of((1, 0), (0, 1), (0, 1), (0, 0)).values()))
    assert (pair.first.name, pair.second.name) == ("a", "b")
    assert pair.sums == (1.0, 1.0)
    assert pair.gap == pytest.approx(2 - math.sqrt(3), abs=1e-5)
    assert pair.deviations == pytest.approx((0.5, 1 / math.sqrt(3)))
    assert conclusions.pair_sentence(pair, ["style", "speed"]) == (
        "a [1, 0] and b [0, 1]: GRPO adds first, and both sums are 1, so both get +0.500 whatever "
        "the rest of the group does. GDPO divides each reward by its own deviation first: style "
        "is worth +1.500 and -0.500 (σ 0.500); speed is worth -0.866 and +0.866 (σ 0.577); the "
        "sums differ by 0.268 before whitening."
    )


def test_the_sentence_of_a_pair_says_when_gdpo_is_no_better():
    (pair,) = compare.tied_pairs(list(group_of((1, 0), (0, 1), (0, 0)).values()))
    assert "the sums are equal again" in conclusions.pair_sentence(pair, ["style", "speed"])


def test_the_sentence_of_a_group_counts_what_each_method_tells_apart():
    group = list(group_of((1, 0), (0, 1), (0, 1), (0, 0)).values())
    assert conclusions.collapse_sentence(group).startswith(
        "Different reward vectors among the 4 rollouts: 3. Different advantages: 2 with GRPO, 3 "
        "with GDPO. 3 rollouts have the GRPO advantage of a rollout whose rewards differ."
    )
    same = list(group_of((1, 0), (0, 1), (0, 0)).values())
    assert conclusions.collapse_sentence(same).endswith("ties in both.")
    none = list(group_of((1, 1), (0, 1), (0, 0)).values())
    assert "No two different reward vectors" in conclusions.collapse_sentence(none)


def test_scales_move_grpo_and_leave_gdpo_alone():
    unit = list(group_of((1, 0), (0, 1), (0, 0)).values())
    scaled = list(group_of((5, 0), (0, 1), (0, 0)).values())
    # Sums 5, 1, 0: deviation sqrt(7), so that rollout b falls from 0.577 to -1 / sqrt(7).
    assert conclusions.scale_sentence(scaled, unit) == (
        "Against rewards that are all worth 1, GRPO's advantages change by up to 0.955 and GDPO's "
        "by up to 0.000."
    )


def test_the_widest_range_rules_the_order_of_grpo():
    keys = [scale.name for scale in examples.RANGES]
    rewards = torch.tensor(list(examples.RANKINGS.values()), dtype=torch.float64)
    group = compare.compare(list(examples.RANKINGS), rewards, keys)
    assert "Its order is that of watch time." in conclusions.ranking_sentence(group, keys)
    narrow = compare.compare(list(examples.RANKINGS), rewards / torch.tensor([1, 4, 60]), keys)
    assert "Its order" not in conclusions.ranking_sentence(narrow, keys)


# ---------------------------------------------------------------- the examples


def test_the_answers_are_scored_by_the_rewards():
    scores = [tuple(map(int, examples.score(answer))) for answer in examples.ANSWERS]
    assert scores == [
        *[(1, 1, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (0, 1, 1), (0, 1, 0)],
        *[(0, 1, 0), (0, 1, 1), (0, 1, 0), (1, 1, 0), (0, 0, 1), (0, 0, 0)],
    ]


# ---------------------------------------------------------------- exact counts


@pytest.mark.parametrize(
    ("components", "size", "grpo", "unscaled", "gdpo"),
    [
        *[(2, 2, 2, 3, 3), (2, 3, 4, 6, 6), (2, 4, 7, 10, 14), (2, 6, 16, 21, 38)],
        *[(2, 8, 29, 36, 81), (2, 10, 46, 55, 145), (1, 4, 4, 4, 4), (3, 4, 14, 20, 45)],
        *[(4, 4, 23, 35, 127), (5, 4, 41, 56, 318)],
    ],
)
def test_the_counts_of_distinct_groups_are_exact(components, size, grpo, unscaled, gdpo):
    # A separate enumeration with the standard library's statistics gives the same.
    found = compare.count_distinct(components, size)
    assert (found.grpo, found.grpo_unscaled, found.gdpo) == (grpo, unscaled, gdpo)
    assert found.groups == compare.group_count(components, size)


def test_too_many_groups_are_counted_but_not_gone_through():
    assert compare.group_count(5, 12) > compare.MOST_GROUPS
    assert "more than the 60,000" in conclusions.count_sentence(5, 12)
    assert "GRPO tells 2 of them apart" in conclusions.count_sentence(2, 2)


def test_gdpo_misses_a_trade_where_both_rewards_vary_equally():
    gaps = compare.gaps_of_a_trade(12)
    equal = [(a, b) for a in range(1, 12) for b in range(1, 12) if abs(gaps[a - 1, b - 1]) < 1e-9]
    assert equal == [(a, b) for a in range(1, 12) for b in range(1, 12) if b in (a, 12 - a)]
    # One of twelve varies with sqrt(1/12), six of twelve with sqrt(3/11).
    assert float(gaps[0, 5]) == pytest.approx(math.sqrt(12) - math.sqrt(11 / 3))
    control = compare.gaps_of_a_trade(12, grpo_scalars)
    assert conclusions.trade_sentence(gaps, control) == (
        "GRPO tells the two apart for 0 of the 121 pairs (n₁, n₂). GDPO's two advantages are equal "
        "for 21: those with n₁ = n₂ or n₁ + n₂ = 12, where both rewards vary equally. In all "
        "others they differ, by up to 1.55."
    )


# ---------------------------------------------------------------- the toy policy


@pytest.mark.parametrize(
    ("method", "middle", "end"),
    [(toy.GRPO, 0.863, 0.976), (toy.UNWHITENED, 0.936, 0.988), (toy.GDPO, 0.862, 0.975)],
    ids=lambda value: getattr(value, "name", None),
)
def test_independent_rewards_reproduce_the_known_figures(method, middle, end):
    # A separate program's means over 20 other seeds at epochs 50 and 149.
    curve = toy.train(toy.Task(), method).mean.mean(dim=1)
    assert float(curve[50]) == pytest.approx(middle, abs=0.004)
    assert float(curve[149]) == pytest.approx(end, abs=0.002)


def test_gdpo_does_not_see_the_scales_of_the_rewards():
    scaled = toy.Task(scales=(10.0, 1.0, 0.1))
    torch.testing.assert_close(
        toy.train(scaled, toy.GDPO).skill, toy.train(toy.Task(), toy.GDPO).skill, atol=1e-3, rtol=0
    )
    assert toy.train(scaled, toy.GRPO).slowest[149].max() < 0.8


def test_rewards_that_show_another_skill_alone_teach_no_skill_of_their_own():
    skill = toy.train(toy.Task(correlation=1.0), toy.GDPO).skill[149].mean(dim=0)
    assert skill[0] > 0.95
    torch.testing.assert_close(
        skill[1:], torch.full((2,), 0.5, dtype=torch.float64), atol=0.05, rtol=0
    )


def test_unwhitened_advantages_of_three_rewards_spread_wider_by_the_root_of_three():
    case = study.study("even", "", toy.Task(), seeds=20, learning_rate=0.15)
    assert case.faster.faster == pytest.approx(math.sqrt(3), abs=0.01)
    assert case.mean(case.faster, 50).mean == pytest.approx(
        case.mean(toy.UNWHITENED, 50).mean, abs=0.005
    )


def test_a_noise_reward_is_no_skill():
    assert toy.train(toy.Task(noise=0.1), toy.GRPO).skill.shape == (150, 20, 2)


@pytest.mark.parametrize(
    ("ours", "control", "expected"),
    [
        ((0.9, 0.01), (0.8, 0.01), 1),
        ((0.8, 0.01), (0.9, 0.01), -1),
        ((0.9, 0.1), (0.8, 0.1), 0),
        ((0.805, 0.0), (0.8, 0.0), 0),
    ],
    ids=["ahead", "behind", "within the errors", "too small to matter"],
)
def test_the_verdict_asks_for_size_and_for_certainty(ours, control, expected):
    assert toy.verdict(toy.Figure(*ours), toy.Figure(*control)) == expected


def case_of(gdpo: float, grpo: float, unwhitened: float, faster: float) -> study.Case:
    """A case whose trainings stand still at these values, over three seeds."""

    def still(value: float) -> toy.Training:
        return toy.Training(torch.full((150, 3, 3), value, dtype=torch.float64), 1.0)

    control = toy.Method("faster", decoupled=False, faster=1.5)
    trainings = {toy.GRPO: grpo, toy.GDPO: gdpo, toy.UNWHITENED: unwhitened, control: faster}
    return study.Case(
        "Name", "something", toy.Task(), {m: still(v) for m, v in trainings.items()}, "Do this."
    )


def test_the_conclusions_follow_the_numbers():
    found = study.when_to_use(
        [case_of(0.9, 0.5, 0.9, 0.6), case_of(0.5, 0.9, 0.5, 0.9), case_of(0.7, 0.7, 0.7, 0.7)]
    )
    assert found == {
        "GDPO is ahead": [
            "When something: over all epochs the slowest skill averages 0.9000 ± 0.0000 with GDPO "
            "and 0.5000 ± 0.0000 with GRPO; in the end it is at 0.9000 ± 0.0000 and "
            "0.5000 ± 0.0000. Do this."
        ],
        "Neither is ahead": [
            "When something: over all epochs the slowest skill averages 0.7000 ± 0.0000 with GDPO "
            "and 0.7000 ± 0.0000 with GRPO; in the end it is at 0.7000 ± 0.0000 and "
            "0.7000 ± 0.0000."
        ],
        "GRPO is ahead": [
            "When something: over all epochs the slowest skill averages 0.5000 ± 0.0000 with GDPO "
            "and 0.9000 ± 0.0000 with GRPO; in the end it is at 0.5000 ± 0.0000 and "
            "0.9000 ± 0.0000. Do this."
        ],
    }


def test_a_lead_that_a_learning_rate_buys_is_said_to_be_one():
    (sentence,) = study.when_to_use([case_of(0.8, 0.5, 0.9, 0.95)])["GDPO is ahead"]
    assert "A learning rate 1.50 times as large does more for GRPO here: 0.9500" in sentence
    artefact = study.whitening_sentence(case_of(0.8, 0.8, 0.9, 0.9))
    assert "no merit of the decoupling" in artefact
    assert "no merit" not in study.whitening_sentence(case_of(0.9, 0.5, 0.9, 0.6))
    assert "changes nothing" in study.whitening_sentence(case_of(0.8, 0.8, 0.8, 0.8))


# ---------------------------------------------------------------- the user's rollouts


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


def test_dumped_advantages_are_shown_as_they_are(tmp_path):
    dump = dumps.read_dump(write_dump(tmp_path, *WITH_ADVANTAGES))
    assert (dump.components, dump.notes) == (("style", "speed"), ())
    first, second = dump.groups
    assert [(r.name, r.grpo, r.gdpo, r.tie, r.split) for r in first.rollouts] == [
        ("1", 0.5, 0.7, "A", True),
        ("2", 0.5, 0.3, "A", True),
        ("3", -1.0, -1.0, "", False),
    ]
    assert first.texts == ("fast", "fast", HOSTILE)
    assert first.title == "How fast? (2 collapsed)"
    assert len(second.rollouts) == 1  # nothing collapses in it, so it comes last


def test_missing_advantages_are_computed_and_said_to_be(tmp_path):
    rows = [row("u_0_0", 1.0, 0.0), row("u_1_0", 0.0, 1.0), row("u_2_0", 0.0, 0.0)]
    mixed = [rows[0] | {"grpo_advantage": 9.0, "gdpo_advantage": 9.0}, *rows[1:]]
    for version in (rows, mixed):
        dump = dumps.read_dump(write_dump(tmp_path, *version))
        found = [each.grpo for each in dump.groups[0].rollouts]
        assert found == pytest.approx([1 / math.sqrt(3), 1 / math.sqrt(3), -2 / math.sqrt(3)], 1e-4)
        assert any("both are computed" in note for note in dump.notes)


def test_what_is_not_scored_is_not_a_zero(tmp_path):
    rows = [row("u_0_0", 1.0, None), row("u_1_0", 0.0, 0.0), row("u_2_0", None, None)]
    dump = dumps.read_dump(write_dump(tmp_path, *rows))
    assert [conclusions.vector(r.rewards) for r in dump.groups[0].rollouts] == ["[1, –]", "[0, 0]"]
    assert "Rows without any reward component: 1; left out." in dump.notes


def test_a_dump_cut_off_in_mid_line_shows_its_whole_lines(tmp_path):
    dump = dumps.read_dump(write_dump(tmp_path, *WITH_ADVANTAGES, end='{"input": "us'))
    assert sum(len(group.rollouts) for group in dump.groups) == 4
    assert dump.notes == ("Lines of 1.jsonl that are no whole rows: 1; left out.",)


def test_the_metrics_say_which_numbers_are_components(tmp_path):
    rows = [each | {"extra_number": 3.0} for each in WITH_ADVANTAGES]
    path = write_dump(tmp_path, *rows)
    assert "extra_number" in dumps.read_dump(path).components
    assert dumps.known_components(tmp_path) == ()
    line = {"step": 1, "data": {"gdpo/style/mean": 0.5, "gdpo/length/mean": 1.0}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line))
    dump = dumps.read_dump(path, dumps.known_components(tmp_path))
    assert dump.components == ("style",)
    assert dump.notes == ("1.jsonl lacks what the run's metrics name: length.",)


def test_a_dump_without_components_says_so(tmp_path):
    dump = dumps.read_dump(write_dump(tmp_path, {"input": "a", "output": "b", "score": 1.0}))
    assert dump.groups == ()
    assert "has no reward components (input, output, score)" in dump.notes[0]
    assert "no whole row" in dumps.read_dump(write_dump(tmp_path)).notes[0]


def test_of_an_enormous_dump_only_the_beginning_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "MAX_ROWS", 3)
    dump = dumps.read_dump(write_dump(tmp_path, *WITH_ADVANTAGES))
    assert sum(len(group.rollouts) for group in dump.groups) == 3
    assert "only its first 3 rows were read" in dump.notes[0]
    monkeypatch.undo()
    heavy = [each | {"input": "a" * (DUMP_BYTES // 3)} for each in WITH_ADVANTAGES]
    dump = dumps.read_dump(write_dump(tmp_path, *heavy))
    assert "only its first 2 rows were read" in dump.notes[0]


def test_long_completions_keep_their_end():
    assert dumps._cut("a" + "b" * 4000) == "[… 1 characters before this]\n" + "b" * 4000


@pytest.mark.parametrize("inside", ["", "rollouts"], ids=["run", "its dumps"])
def test_dumps_are_found_by_step(tmp_path, inside):
    paths = {step: write_dump(tmp_path, step=step) for step in (10, 2)}
    assert dumps.find_dumps(tmp_path / inside) == dict(sorted(paths.items()))
    assert list(dumps.find_dumps(tmp_path / inside)) == [2, 10]


def test_a_folder_without_dumps_is_refused_with_what_it_holds(tmp_path):
    with pytest.raises(ValueError, match="found nothing"):
        dumps.find_dumps(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="found it empty"):
        dumps.find_dumps(tmp_path)
    write_dump(tmp_path / "gdpo")
    write_dump(tmp_path / "grpo")
    with pytest.raises(ValueError, match=r"several runs\. Give one of them: gdpo, grpo"):
        dumps.find_dumps(tmp_path)


# ---------------------------------------------------------------- markup


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


def test_the_models_text_is_text():
    rollout = compare.Rollout(HOSTILE, (1.0,), 0.5, 0.5, HOSTILE, True)
    markup = charts.block(
        "hostile",
        HOSTILE,
        charts.bars([rollout], texts=[HOSTILE]),
        charts.table([HOSTILE], [[HOSTILE]]),
        charts.folded(HOSTILE, HOSTILE),
        charts.folded(HOSTILE, HOSTILE, preformatted=True),
        charts.heading(2, HOSTILE),
    )
    found = Elements(str(markup))
    assert not {"script", "img"} & found.names
    assert found.text.count(HOSTILE) == 11


def test_bars_are_as_long_as_the_advantages():
    rollouts = [compare.Rollout("a", (1.0,), 2.0, 1.0), compare.Rollout("b", (0.0,), -2.0, -1.0)]
    found = re.findall(r"left:([\d.]+)%;width:([\d.]+)%", charts.bars(rollouts))
    assert found == [("50.00", "50.00"), ("50.00", "25.00"), ("0.00", "50.00"), ("25.00", "25.00")]


def test_a_group_that_teaches_nothing_has_short_bars():
    rollouts = [compare.Rollout("a", (1.0,), 0.0, -0.0004)]
    assert re.findall(r"width:([\d.]+)%", charts.bars(rollouts)) == ["0.00", "0.02"]


# ---------------------------------------------------------------- the page


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    pytest.importorskip("marimo")
    path = tmp_path_factory.mktemp("static") / "page.html"
    assert main(["explain", "--static", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def test_the_static_page_holds_every_picture_and_asks_nobody(static):
    names = ("introduction", "answers", "trades", "ranking", "distinct", "count", "toy", "when")
    assert all(f'id="{name}"' in static for name in names)
    found = Elements(static)
    assert not {"script", "link", "img", "iframe"} & found.names
    assert not any(name.startswith("marimo") for name in found.names)
    assert all(address.startswith("#") for address in found.addresses)
    assert "@import" not in static
    assert found.text.count("GRPO, learning rate ×") >= 5


def test_without_marimo_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "marimo", None)
    assert main(["explain"]) == 1
    assert "pip install marimo==0.25.2" in capsys.readouterr().err


def test_a_run_without_rollouts_is_refused_before_the_server_starts(tmp_path, capsys):
    pytest.importorskip("marimo")
    assert main(["explain", str(tmp_path)]) == 1
    assert "expected a run directory with rollouts/<step>.jsonl" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused_by_name(capsys):
    pytest.importorskip("marimo")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["explain", "--port", str(port)]) == 1
    assert f"--port {port}: cannot be used" in capsys.readouterr().err


# ---------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """`gdpo-verl explain RUN` and the address it printed; at the end Ctrl-C."""
    if not importlib.util.find_spec("marimo"):
        pytest.skip("marimo is not installed: pip install marimo==0.25.2")
    run = tmp_path_factory.mktemp("run")
    rows = [each | {"input": f"user\n{HOSTILE}"} for each in WITH_ADVANTAGES]
    write_dump(run, *rows)
    write_dump(run, *[row("w_0_0", 1.0, 0.0), row("w_1_0", 0.0, 0.0)], step=2)
    command = [sys.executable, "-m", "gdpo_verl.cli", "explain", "--no-browser", str(run)]
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(r"http://[\w.:]+/?\?access_token=[\w-]+", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield SimpleNamespace(address=found[0], process=process, run=run)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def opened(browser: Any, address: str, **options: Any) -> SimpleNamespace:
    """A page, the hosts it asked, and what its console reported as an error."""
    page = browser.new_context(**options).new_page()
    hosts: set[str] = set()
    errors: list[str] = []
    page.on("request", lambda request: hosts.add(request.url))
    page.on("websocket", lambda socket: hosts.add(socket.url))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    return SimpleNamespace(page=page, hosts=hosts, errors=errors)


def hosts(view: SimpleNamespace) -> set[str]:
    found = {re.match(r"\w+:(?://)?([^/?]*)", url)[1] for url in view.hosts}
    return {host for host in found if not host.startswith(("image", "font", "text"))}


def advantages(page: Any, block: str, method: str) -> dict[str, float]:
    bars = page.locator(f"#{block} [data-rollout]").all()
    return {
        bar.get_attribute("data-rollout"): float(
            bar.locator(f"[data-{method}]").get_attribute(f"data-{method}")
        )
        for bar in bars
    }


def check_bars(page: Any, block: str, expected: list[compare.Rollout]) -> None:
    """Wait until a block shows a group's advantages in its order, and compare all of them."""
    first = f"{expected[0].gdpo:.6f}"
    page.wait_for_function(
        "([block, names, first]) => { const rows = [...document.querySelectorAll(`#${block} "
        "[data-rollout]`)]; return rows.map(r => r.dataset.rollout).join() === names && "
        "rows[0].querySelector('[data-gdpo]').dataset.gdpo === first; }",
        arg=[block, ",".join(each.name for each in expected), first],
    )
    for method in ("grpo", "gdpo"):
        shown = advantages(page, block, method)
        assert shown == pytest.approx({e.name: getattr(e, method) for e in expected}, abs=1e-6)


def twelve(scale: float = 1.0, weights: tuple[float, ...] = (1, 1, 1), **options: Any):
    rewards = torch.tensor([examples.score(answer) for answer in examples.ANSWERS])
    rewards = rewards.to(torch.float64)
    if changed := options.pop("changed", None):
        rewards[changed] = 1.0 - rewards[changed]
    rewards[:, 0] *= scale
    names = [str(i) for i in range(1, 13)]
    return compare.compare(names, rewards, examples.KEYS, weights=weights, **options)


@pytest.mark.real
def test_widgets_move_the_numbers_of_the_pure_functions(browser, server):
    view = opened(browser, server.address, viewport={"width": 1200, "height": 900})
    page = view.page
    page.wait_for_selector("#when h3", timeout=30_000)
    check_bars(page, "answers", twelve())

    slider = page.get_by_role("slider")
    slider.nth(0).focus()
    page.keyboard.press("ArrowRight")  # correctness is worth 1.5
    check_bars(page, "answers", twelve(scale=1.5))
    slider.nth(3).focus()
    page.keyboard.press("ArrowLeft")  # its weight is 0.9
    check_bars(page, "answers", twelve(1.5, (0.9, 1, 1)))
    page.get_by_text("conciseness counts only in correct answers").click()
    condition = {"conciseness": {"on": "correctness", "at_least": 1.5}}
    check_bars(page, "answers", twelve(1.5, (0.9, 1, 1), conditions=condition))
    page.get_by_role("switch").click()
    check_bars(page, "answers", twelve(1.5, (0.9, 1, 1), conditions=condition, whiten=False))
    page.get_by_text("The twelve answers and their verdicts").click()
    page.get_by_text("style", exact=True).nth(2).click()  # the third answer gets its style
    changed = twelve(1.5, (0.9, 1, 1), conditions=condition, whiten=False, changed=(2, 1))
    check_bars(page, "answers", changed)
    shown = page.locator("#answers").inner_text()
    assert conclusions.collapse_sentence(changed) in shown
    for pair in compare.tied_pairs(changed, weights=(0.9, 1, 1)):
        assert conclusions.pair_sentence(pair, examples.KEYS) in shown

    slider.nth(6).focus()
    page.keyboard.press("ArrowLeft")  # ranking A: relevance 0.9
    rankings = {**examples.RANKINGS, "A": (0.9, *examples.RANKINGS["A"][1:])}
    keys = [scale.name for scale in examples.RANGES]
    rewards = torch.tensor(list(rankings.values()), dtype=torch.float64)
    check_bars(page, "ranking", compare.compare(list(rankings), rewards, keys))

    slider.nth(21).focus()
    page.keyboard.press("ArrowLeft")  # 2 rewards, 6 rollouts
    page.locator("#count").filter(has_text=conclusions.count_sentence(2, 6)).wait_for()
    table = page.locator("#distinct table").nth(1).inner_text()
    assert "GDPO\t4\t14\t45\t127\t318" in table

    slider.nth(23).focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")  # 5 seeds
    cases = study.study_all(seeds=5)
    page.locator("#toy").filter(has_text=study.whitening_sentence(cases[0])).wait_for()
    page.get_by_text("All numbers").click()
    for line in study.case_table(cases)[1]:
        assert "\t".join(line) in page.locator("#toy").inner_text()
    for head, sentences in study.when_to_use(cases).items():
        assert all(each in page.locator("#when").inner_text() for each in (head, *sentences))

    assert view.errors == []
    assert hosts(view) == {re.match(r"http://([^/?]*)", server.address)[1]}
    page.context.close()


@pytest.mark.real
def test_the_users_rollouts_are_shown_and_their_text_is_text(browser, server):
    view = opened(browser, server.address, viewport={"width": 1200, "height": 900})
    page = view.page
    expected = dumps.read_dump(server.run / "rollouts" / "1.jsonl").groups[0]
    page.wait_for_selector("#run [data-rollout]", timeout=30_000)
    check_bars(page, "run", list(expected.rollouts))
    page.locator('#run [data-rollout="3"] summary').click()
    assert page.locator('#run [data-rollout="3"] pre').inner_text() == HOSTILE
    page.get_by_text("The prompt", exact=True).click()
    assert HOSTILE in page.locator("#run").inner_text()
    page.get_by_role("combobox").first.select_option(label="step 2")
    page.wait_for_selector("#run :text('both are computed')")
    check_bars(
        page, "run", list(dumps.read_dump(server.run / "rollouts" / "2.jsonl").groups[0].rollouts)
    )

    path = page.get_by_placeholder("runs/quickstart/gdpo")
    path.fill(f"{server.run}/{HOSTILE}")
    path.press("Enter")
    page.wait_for_selector("#run :text('found nothing')")
    assert HOSTILE in page.locator("#run").inner_text()
    assert page.evaluate("window.hacked === undefined")
    assert view.errors == []
    page.context.close()


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("light", 1200, "light"), ("dark", 1200, "dark"), ("phone", 390, "dark")],
)
def test_the_page_fits_its_reader(browser, server, tmp_path, name, width, scheme):
    size = {"width": width, "height": 900}
    view = opened(browser, server.address, viewport=size, color_scheme=scheme)
    page = view.page
    page.wait_for_selector("#run [data-rollout]", timeout=30_000)
    page.wait_for_selector("#when h3", timeout=30_000)
    right = page.evaluate(
        "Math.max(...[...document.querySelectorAll('.gx')]"
        ".map(element => element.getBoundingClientRect().right))"
    )
    assert right <= width
    ink, paper = page.evaluate(
        "[getComputedStyle(document.querySelector('.gx p')).color, "
        "getComputedStyle(document.body).backgroundColor]"
    )
    brightness = [sum(map(float, re.findall(r"[\d.]+", color)[:3])) for color in (ink, paper)]
    assert (brightness[0] > brightness[1]) == (scheme == "dark"), (ink, paper)
    pictures = Path(os.environ.get("GDPO_VERL_SCREENSHOTS", tmp_path))
    page.screenshot(path=pictures / f"explain_{name}.png")
    page.locator("#toy svg").first.scroll_into_view_if_needed()
    page.screenshot(path=pictures / f"explain_toy_{name}.png")
    assert view.errors == []
    page.context.close()


@pytest.mark.real
def test_the_static_page_opens_without_asking_anyone(browser, static, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(static, encoding="utf-8")
    view = opened(browser, path.as_uri(), viewport={"width": 390, "height": 844})
    check_bars(view.page, "answers", twelve())
    assert view.page.evaluate("document.documentElement.scrollWidth") == 390
    assert (view.hosts, view.errors) == ({path.as_uri()}, [])
    view.page.context.close()


@pytest.mark.real
def test_interrupting_the_command_ends_it_and_leaves_no_process(browser, server):
    view = opened(browser, server.address)
    view.page.wait_for_selector("#when h3", timeout=30_000)
    view.page.get_by_role("slider").nth(23).focus()
    for _ in range(6):
        view.page.keyboard.press("ArrowRight")
    time.sleep(0.7)  # the interrupt comes while 50 seeds are being trained
    process = psutil.Process(server.process.pid)
    family = [process, *process.children(recursive=True)]
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(20) == 0
    assert [member for member in family if member.is_running()] == []
    view.page.context.close()
