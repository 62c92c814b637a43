"""The interactive page: static, with bad input, and in a real browser."""

import importlib.util
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import psutil
import pytest
import torch
from fake_runs import Page
from pages import new_page
from waiting import HANGS, wait_for

from gdpo_verl.lab.cli import main
from gdpo_verl.lab.explain import compare, examples, phantom, study, toy, units


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    pytest.importorskip("marimo")
    path = tmp_path_factory.mktemp("static") / "page.html"
    assert main(["explain", "--static", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def test_the_static_page_contains_every_picture_and_needs_no_other_host(static):
    found = Page(static)
    # Pictures of five tasks, two of scales, and two of the phantom policy.
    assert static.count("<svg") == 5 + 2 + 2
    # Bars of twelve responses, seven calls, five rankings and eight failing responses.
    assert static.count("data-rollout") == 12 + 7 + 5 + 8
    assert "No advantages" not in found.text
    assert not {"script", "link", "img", "iframe"} & set(found.tags)
    assert not any(name.startswith("marimo") for name in found.tags)
    assert "38</td>" in static  # GDPO distinguishes 38 of 84 groups of 2 rewards and 6 rollouts
    assert all(
        re.fullmatch(r"#.*|https://arxiv\.org/abs/[\d.]+", address) for address in found.references
    )
    assert "@import" not in static


def test_a_missing_marimo_is_named_with_its_command(monkeypatch, capsys):
    pytest.importorskip("marimo")
    monkeypatch.setitem(sys.modules, "marimo", None)
    assert main(["explain"]) == 1
    assert "pip install marimo==0.25.2" in capsys.readouterr().err


# ---------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start `gdpo-verl explain`; yield the printed address; end the server with Ctrl-C."""
    if not importlib.util.find_spec("marimo"):
        pytest.skip("marimo is not installed: pip install marimo==0.25.2")
    command = [sys.executable, "-m", "gdpo_verl.lab.cli", "explain", "--no-browser"]
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        address = re.compile(r"http://[\w.:]+/?\?access_token=[\w-]+")
        wait_for(lambda: address.search(log.read_text()) or process.poll() is not None)
        found = address.search(log.read_text())
        assert found, log.read_text()
        yield SimpleNamespace(address=found[0], process=process)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def opened(browser, address, **options):
    """Return the page when all is drawn, the hosts that it asked, and the errors of its console."""
    page = new_page(browser, **options)
    hosts = set()
    errors = []
    for event in ("request", "websocket"):
        # the host is empty for data: addresses
        page.on(event, lambda asked: hosts.add(urlsplit(asked.url).netloc))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    page.wait_for_selector("#phantoms svg")
    return SimpleNamespace(page=page, hosts=hosts, errors=errors)


def press(page, label, key, times=1):
    """Move a slider, and try again if the page was drawn anew before the key had an effect."""
    slider = page.locator("marimo-slider").filter(has_text=label).get_by_role("slider")
    for _ in range(times):
        before = slider.get_attribute("aria-valuenow")
        while slider.get_attribute("aria-valuenow") == before:
            slider.press(key)
            page.wait_for_timeout(500)


def choose(page, label, choice):
    dropdown = page.locator("marimo-dropdown").filter(has_text=label)
    dropdown.get_by_role("combobox").select_option(label=choice)


def check_bars(page, block, expected):
    """Wait until a block shows the advantages of a group in order, and compare all of them."""
    first = f"{expected[0].gdpo:.6f}"
    page.wait_for_function(
        "([block, names, first]) => { const rows = [...document.querySelectorAll(`#${block} "
        "[data-rollout]`)]; return rows.map(r => r.dataset.rollout).join() === names && "
        "rows[0].querySelector('[data-gdpo]').dataset.gdpo === first; }",
        arg=[block, ",".join(each.name for each in expected), first],
    )
    for method in ("grpo", "gdpo"):
        shown = page.locator(f"#{block} [data-{method}]").all()
        found = [float(bar.get_attribute(f"data-{method}")) for bar in shown]
        assert found == pytest.approx([getattr(each, method) for each in expected], abs=1e-6)


def twelve(scale=1.0, style_of_third=0.0, **options):
    scores = [examples.score(answer) for answer in examples.ANSWERS]
    rewards = torch.tensor(scores, dtype=torch.float64)
    rewards[2, 1] = style_of_third
    rewards[:, 0] *= scale
    found = compare.decompose_group(rewards, examples.KEYS, **options)
    return compare.compare([str(i) for i in range(1, 13)], found)


@pytest.mark.real
@pytest.mark.slow
def test_widgets_move_the_numbers_of_the_pure_functions(browser, server):
    view = opened(browser, server.address, viewport={"width": 1200, "height": 900})
    page = view.page
    check_bars(page, "answers", twelve())
    press(page, "scale of correctness", "ArrowRight")  # 1.5
    press(page, "weight of correctness", "ArrowLeft")  # 0.9
    page.get_by_text("conciseness counts only in correct responses").click()
    options = {"weights": (0.9, 1, 1)}
    options["conditions"] = {"conciseness": {"on": "correctness", "at_least": 1.5}}
    check_bars(page, "answers", twelve(1.5, **options))
    page.get_by_role("switch").click()
    page.get_by_text("The twelve responses and their rewards").click()
    page.get_by_text("style", exact=True).nth(2).click()  # the third response gets the reward style
    check_bars(page, "answers", twelve(1.5, style_of_third=1.0, whiten=False, **options))
    choose(page, "third estimator", "dvao")
    page.wait_for_selector("#answers .third span:text('dvao')")
    for key in examples.KEYS:
        press(page, f"weight of {key}", "Home")
    page.wait_for_selector("#answers :text('No advantages: ')")

    choose(page, "remedy", "gate")
    page.wait_for_selector("#phantom .third span:text('gate')")
    for name, advantage in phantom.remedied(0, "gate").items():
        bar = page.locator(f"#phantom [data-rollout='{name}'] [data-third]")
        assert float(bar.get_attribute("data-third")) == pytest.approx(advantage, abs=1e-6)

    press(page, "seeds", "ArrowLeft", 3)  # 5
    *_, last = study.verdict_table(study.study_all(seeds=5))[1]
    page.wait_for_selector(f"#when :text('{last[2]}')")
    press(page, "reward for a success of the first skill", "ArrowRight")  # 30
    (grpo,) = units.table([30.0], (toy.GRPO,))[1]
    page.wait_for_selector(f"#units :text('{grpo[2]}')")
    press(page, "hard prompts", "ArrowLeft", 2)  # no prompt is hard
    *_, last = phantom.table(phantom.trainings(0, 8, 1.0))[1]
    page.wait_for_selector(f"#phantoms :text('{last[2]}')")

    # On a phone the page fits into the width.
    page.set_viewport_size({"width": 390, "height": 900})
    rights = page.locator(".gx").evaluate_all(
        "all => all.map(element => element.getBoundingClientRect().right)"
    )
    assert max(rights) <= 390

    assert view.errors == []
    assert view.hosts - {""} == {urlsplit(server.address).netloc}
    page.context.close()


@pytest.mark.real
@pytest.mark.slow
def test_interrupting_the_command_ends_it_and_leaves_no_process(browser, server):
    view = opened(browser, server.address)
    press(view.page, "seeds", "ArrowRight", 6)
    time.sleep(0.7)  # the interrupt comes while 50 seeds are trained
    process = psutil.Process(server.process.pid)
    family = [process, *process.children(recursive=True)]
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(HANGS) == 0
    assert [member for member in family if member.is_running()] == []
    view.page.context.close()
