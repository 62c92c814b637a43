"""The report's page in a real browser, compared with the content of the dumps."""

import json

import pytest
from fake_runs import HOSTILE, rollout, training, write_lines, write_run
from pages import new_page

from gdpo_verl.lab.report import write_report

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Write a report about two runs; the first has six dumped steps whose texts attack the page."""
    path = tmp_path_factory.mktemp("report")
    runs = [write_run(path / "gdpo"), write_run(path / "grpo", "grpo")]
    for step in range(1, 7):
        rows = []
        for place in range(6):
            group, i = divmod(place, 3)
            row = rollout(f"{group}_{i}_0", i % 2, i / 4 * step, (i - 1) / step, (1 - i) / 2)
            row["input"] = f"user\nquestion {group} of step {step} {HOSTILE}"
            row["output"] = f"{i} {HOSTILE}"
            rows.append(row)
        write_lines(runs[0] / f"rollouts/{step}.jsonl", rows)
    write_report(runs, path)
    return path


@pytest.fixture
def open_page(browser):
    """Open a page; require that it loads nothing but itself, and that nothing fails."""
    trouble = []
    requests = set()
    allowed = {"data:,"}

    def open_(index, **options):
        page = new_page(browser, **options)
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("request", lambda request: requests.add(request.url.partition("#")[0]))
        page.goto(index.as_uri())
        allowed.add(index.as_uri())
        return page

    yield open_
    assert trouble == []
    assert requests <= allowed


@pytest.fixture
def page(open_page, report):
    """Open the report's page, and require that its texts do no harm."""
    opened = open_page(report / "index.html", viewport={"width": 1280, "height": 900})
    yield opened
    assert opened.evaluate("window.hacked") is None


def check_rollouts(page, dump):
    """Compare scores, advantages and texts with the dump, in the order of GDPO's advantage."""
    page.eval_on_selector("details:has(#browse-prompt)", "each => each.open = true")
    prompt = page.inner_text("#browse-prompt")
    rows = [row for row in map(json.loads, dump.read_text().splitlines()) if row["input"] == prompt]
    rows.sort(key=lambda row: -row["gdpo_advantage"])
    cards = page.query_selector_all(".rollout")
    for card, row in zip(cards, rows, strict=True):
        scores = f"format {row['format']:.4g}, correctness {row['correctness']:.4g}"
        assert card.query_selector(".scores").inner_text() == scores
        numbers = [number.inner_text() for number in card.query_selector_all(".number")]
        for number, key in zip(numbers, ("gdpo_advantage", "grpo_advantage"), strict=True):
            assert number == f"{row[key]:+.3f}".replace("-", "−")
        assert card.query_selector("pre").inner_text() == row["output"]
    return prompt


def test_every_step_and_group_shows_the_content_of_its_dump(page, report):
    seen = set()
    for step in range(1, 7):
        assert page.inner_text("#browse-step") == f"step {step}"
        for group in range(2):
            page.select_option("#browse-group", str(group))
            seen.add(check_rollouts(page, report / f"gdpo/rollouts/{step}.jsonl"))
        if step < 6:
            page.click("#browse-next")
    assert len(seen) == 12
    assert page.is_disabled("#browse-next")
    page.click("#browse-back")
    # After a reload, the address leads to the same place.
    page.select_option("#browse-group", "1")
    assert page.url.endswith("#rollouts/0/training/5/1")
    before = check_rollouts(page, report / "gdpo/rollouts/5.jsonl")
    page.reload()
    assert page.inner_text("#browse-step") == "step 5"
    assert check_rollouts(page, report / "gdpo/rollouts/5.jsonl") == before


def test_a_variant_has_a_third_bar(open_page, tmp_path):
    run = write_run(tmp_path / "gdpo")
    rows = [
        rollout("a_0_0", 1.0, 1.0, 0.5, 0.5) | {"corr_grpo_advantage": -2.0},
        rollout("a_1_0", 0.0, 2.0, -0.5, 0.5) | {"corr_grpo_advantage": 1.0},
    ]
    write_lines(run / "rollouts/2.jsonl", rows)
    index = write_report([run], tmp_path / "report")
    opened = open_page(index, viewport={"width": 400, "height": 800})

    def of_all(selector, value):
        function = f"all => all.map(each => {value})"
        return opened.eval_on_selector_all(f".rollout {selector}", function)

    assert of_all(".who", "each.textContent") == ["GDPO", "GRPO", "corr_grpo"] * 2
    numbers = "+0.500 +0.500 −2.000 −0.500 +0.500 +1.000"
    assert " ".join(of_all(".number", "each.textContent")) == numbers
    # The bar of the largest advantage fills its half.
    bars = of_all(".fill", "each.style.left + ' ' + each.style.width")
    assert bars[:3] == ["50% 12.5%", "50% 12.5%", "0% 50%"]
    assert len(set(of_all(".fill", "getComputedStyle(each).backgroundColor"))) == 3
    assert not any(of_all(".who", "each.scrollWidth > each.clientWidth"))


def test_another_run_and_held_out_responses_can_be_chosen(page):
    page.select_option("#browse-run", label="grpo")
    assert page.inner_text("#browse-step") == "step 2"
    assert page.locator("#browse-group option").count() == 2
    assert "GRPO gives other rewards the same" in page.inner_text(".rollout.collapsed")
    page.select_option("#browse-kind", label="held-out")
    assert page.inner_text("#browse-step") == "step 3"
    assert page.query_selector(".rollout .number") is None


def test_the_page_fits_on_a_phone(page):
    page.set_viewport_size({"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_report_without_dumps_has_no_browser_of_responses(open_page, tmp_path):
    write_lines(tmp_path / "run/metrics.jsonl", [training(1, 0.5, 0.0)])
    opened = open_page(write_report([tmp_path / "run"], tmp_path))
    assert "No responses could be read" in opened.inner_text("body")
