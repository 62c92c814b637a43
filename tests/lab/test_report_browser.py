"""The report's page in a real browser: what it shows against what the dumps hold."""

from __future__ import annotations

import json

import pytest
from fake_runs import HOSTILE, rollout, training, validation, write_lines, write_run
from pages import new_page

from gdpo_verl.lab.report import write_report

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two runs; the first with six dumped steps, whose texts attack the page."""
    path = tmp_path_factory.mktemp("report")
    runs = [write_run(path / "gdpo"), write_run(path / "grpo", "grpo")]
    for step in range(1, 7):
        rows = [
            rollout(f"{uid}_{i}_0", float(i % 2), i / 4 * step, (i - 1) / step, (1 - i) / 2)
            | {
                "input": f"user\nquestion {uid} of step {step} {HOSTILE}",
                "output": f"{i} {HOSTILE}",
            }
            for uid in "ab"
            for i in range(3)
        ]
        write_lines(runs[0] / f"rollouts/{step}.jsonl", rows)
    records = [{"step": 0, "data": validation(0.5, 0.0)}]
    records += [training(step, step / 6, 1.0) for step in range(1, 7)]
    write_lines(runs[0] / "metrics.jsonl", records)
    write_report(runs, path)
    return path


@pytest.fixture
def open_page(browser):
    """Open a page; at the end it has asked for nothing but itself, and nothing failed."""
    opened = []
    trouble = []
    requests = set()

    def open_(index, **options):
        page = new_page(browser, **options)
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: requests.add(request.url.partition("#")[0]))
        page.goto(index.as_uri())
        opened.append(page)
        return page

    yield open_
    assert trouble == []
    assert requests <= {opened[0].url.partition("#")[0], "data:,"}
    opened[0].context.close()


@pytest.fixture
def page(open_page, report):
    """The report's page, whose texts have done it no harm."""
    opened = open_page(report / "index.html", viewport={"width": 1280, "height": 900})
    yield opened
    assert opened.evaluate("window.hacked") is None


def shown(page):
    """Scores, both advantages and text of each rollout that the page shows."""
    return [
        (
            card.query_selector(".scores").inner_text(),
            [number.inner_text() for number in card.query_selector_all(".number")],
            card.query_selector("pre").inner_text(),
        )
        for card in page.query_selector_all(".rollout")
    ]


def expected(dump, prompt):
    """The rows of the dump, in the order of GDPO's advantage."""
    rows = [row for row in map(json.loads, dump.read_text().splitlines()) if row["input"] == prompt]
    rows.sort(key=lambda row: -row["gdpo_advantage"])
    return [
        (
            f"format {row['format']:.4g}, correctness {row['correctness']:.4g}",
            [f"{row[key]:+.3f}".replace("-", "−") for key in ("gdpo_advantage", "grpo_advantage")],
            row["output"],
        )
        for row in rows
    ]


def test_every_step_and_group_shows_what_its_dump_holds(page, report):
    seen = set()
    for step in range(1, 7):
        assert page.inner_text("#browse-step") == f"step {step}"
        for group in range(2):
            page.select_option("#browse-group", str(group))
            page.eval_on_selector("details:has(#browse-prompt)", "each => each.open = true")
            prompt = page.inner_text("#browse-prompt")
            assert shown(page) == expected(report / f"gdpo/rollouts/{step}.jsonl", prompt)
            seen.add(prompt)
        if step < 6:
            page.click("#browse-next")
    assert len(seen) == 12
    assert page.is_disabled("#browse-next")
    page.click("#browse-back")
    # The address keeps the place over a reload.
    page.select_option("#browse-group", "1")
    assert page.url.endswith("#rollouts/0/training/5/1")
    before = shown(page)
    page.reload()
    assert page.inner_text("#browse-step") == "step 5"
    assert shown(page) == before


def test_a_variant_has_a_third_bar(open_page, tmp_path):
    run = write_run(tmp_path / "gdpo")
    rows = [
        rollout("a_0_0", 1.0, 1.0, 0.5, 0.5) | {"corr_grpo_advantage": -2.0},
        rollout("a_1_0", 0.0, 2.0, -0.5, 0.5) | {"corr_grpo_advantage": 1.0},
    ]
    write_lines(run / "rollouts/2.jsonl", rows)
    index = write_report([run], tmp_path / "report")
    opened = open_page(index, viewport={"width": 400, "height": 800})

    def of_each(selector, function):
        return [
            card.eval_on_selector_all(selector, f"all => all.map({function})")
            for card in opened.query_selector_all(".rollout")
        ]

    assert of_each(".who", "each => each.textContent") == [["GDPO", "GRPO", "corr_grpo"]] * 2
    assert of_each(".number", "each => each.textContent") == [
        ["+0.500", "+0.500", "−2.000"],
        ["−0.500", "+0.500", "+1.000"],
    ]
    # The largest of all three kinds fills its half.
    assert of_each(".fill", "each => each.style.left + ' ' + each.style.width") == [
        ["50% 12.5%", "50% 12.5%", "0% 50%"],
        ["37.5% 12.5%", "50% 12.5%", "50% 25%"],
    ]
    assert len({*of_each(".fill", "each => getComputedStyle(each).backgroundColor")[0]}) == 3
    assert not any(map(any, of_each(".who", "each => each.scrollWidth > each.clientWidth")))


def test_other_run_and_held_out_rollouts_are_a_choice_away(page):
    page.select_option("#browse-run", label="grpo")
    assert page.inner_text("#browse-step") == "step 2"
    texts = page.eval_on_selector_all(
        "#browse-group option", "options => options.map(option => option.textContent)"
    )
    assert len(texts) == 2
    assert "GRPO gives other rewards the same" in page.inner_text(".rollout.collapsed")
    page.select_option("#browse-kind", label="held-out")
    assert page.inner_text("#browse-step") == "step 3"
    assert page.query_selector(".rollout .number") is None


def test_nothing_sticks_out_on_a_phone(open_page, report):
    opened = open_page(report / "index.html", viewport={"width": 360, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_report_without_dumps_runs_no_browser_of_rollouts(open_page, tmp_path):
    write_lines(tmp_path / "run/metrics.jsonl", [training(1, 0.5, 0.0)])
    opened = open_page(write_report([tmp_path / "run"], tmp_path))
    assert "No responses could be read" in opened.inner_text("body")
