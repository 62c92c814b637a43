"""The interactive page: static, with bad input, and in a real browser."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from browser import browser as browser
from browser import new_page
from explain_pages import Elements
from waiting import HANGS, wait_for

from gdpo_verl import gdpo_advantages
from gdpo_verl.cli import main
from gdpo_verl.explain import compare, conclusions, examples, phantom, study, units


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    pytest.importorskip("marimo")
    path = tmp_path_factory.mktemp("static") / "page.html"
    assert main(["explain", "--static", str(path)]) == 0
    return path.read_text(encoding="utf-8")


def test_the_static_page_holds_every_picture_and_asks_nobody(static):
    names = ("introduction", "answers", "calls", "trades", "ranking", "distinct", "count", "toy")
    names += ("when", "units", "phantom", "phantoms", "training")
    assert [name for name in names if f'id="{name}"' not in static] == []
    found = Elements(static)
    assert not {"script", "link", "img", "iframe"} & found.names
    assert not any(name.startswith("marimo") for name in found.names)
    from gdpo_verl.explain.sections.run import REFERENCES

    references = {address for address in found.addresses if not address.startswith("#")}
    assert references == {f"https://arxiv.org/abs/{number}" for number in REFERENCES}
    assert "@import" not in static
    assert found.text.count("GRPO, learning rate ×") >= 5


def test_without_marimo_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "marimo", None)
    assert main(["explain"]) == 1
    assert "pip install marimo==0.25.2" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused_by_name(capsys):
    pytest.importorskip("marimo")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["explain", "--port", str(port)]) == 1
    assert f"--port {port}: cannot be used" in capsys.readouterr().err


# ---------------------------------------------------------------- the browser


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """`gdpo-verl explain` and the address it printed; at the end Ctrl-C."""
    if not importlib.util.find_spec("marimo"):
        pytest.skip("marimo is not installed: pip install marimo==0.25.2")
    command = [sys.executable, "-m", "gdpo_verl.cli", "explain", "--no-browser"]
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


def opened(browser: Any, address: str, **options: Any) -> SimpleNamespace:
    """A page, the hosts it asked, and what its console reported as an error."""
    page = new_page(browser, **options)
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


def widget(page: Any, kind: str, label: str) -> Any:
    """A slider or dropdown by its label."""
    role = {"slider": "slider", "dropdown": "combobox"}[kind]
    return page.locator(f"marimo-{kind}").filter(has_text=label).get_by_role(role)


def press(page: Any, label: str, key: str, times: int = 1) -> None:
    widget(page, "slider", label).focus()
    for _ in range(times):
        page.keyboard.press(key)


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
    page.wait_for_selector("#when h3")
    check_bars(page, "answers", twelve())

    press(page, "correctness is worth", "ArrowRight")  # 1.5
    check_bars(page, "answers", twelve(scale=1.5))
    press(page, "weight of correctness", "ArrowLeft")  # 0.9
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

    press(page, "A: relevance", "ArrowLeft")  # 0.9
    rankings = {**examples.RANKINGS, "A": (0.9, *examples.RANKINGS["A"][1:])}
    keys = [scale.name for scale in examples.RANGES]
    rewards = torch.tensor(list(rankings.values()), dtype=torch.float64)
    check_bars(page, "ranking", compare.compare(list(rankings), rewards, keys))

    press(page, "rewards", "ArrowLeft")  # 2 rewards, 6 rollouts
    page.locator("#count").filter(has_text=conclusions.count_sentence(2, 6)).wait_for()
    table = page.locator("#distinct table").nth(1).inner_text()
    assert "GDPO\t4\t14\t45\t127\t318" in table

    press(page, "seeds", "ArrowLeft", 3)  # 5
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


@pytest.fixture(scope="module")
def view(browser, server):
    """A page of which each test that shares it uses sections of its own."""
    view = opened(browser, server.address, viewport={"width": 1200, "height": 900})
    yield view
    view.page.context.close()


@pytest.mark.real
def test_the_selector_sets_a_variant_beside_the_two(view):
    page = view.page
    page.wait_for_selector("#answers [data-rollout]")
    assert page.locator("#answers [data-third]").count() == 0
    widget(page, "dropdown", "beside them").select_option(label="dvao")
    page.wait_for_selector("#answers [data-third]")
    rewards = torch.tensor([examples.score(answer) for answer in examples.ANSWERS])
    found = compare.variant_advantages(rewards, examples.KEYS, "dvao", highest=[1.0] * 3)
    expected = {str(i): advantage for i, advantage in enumerate(found, start=1)}
    assert advantages(page, "answers", "third") == pytest.approx(expected, abs=1e-6)
    assert set(page.locator("#answers .third span:first-child").all_inner_texts()) == {"dvao"}
    widget(page, "dropdown", "beside them").select_option(label="gdpo")
    page.wait_for_selector("#answers [data-third]", state="detached")
    assert view.errors == []


@pytest.mark.real
def test_units_and_phantoms_follow_their_widgets(view):
    page = view.page
    page.wait_for_selector("#phantoms svg")
    page.wait_for_selector("#units svg")
    press(page, "a success of the first counts", "ArrowRight")  # 30
    page.locator("#units").filter(has_text=units.unit_sentence(30.0)).wait_for()
    press(page, "GRPO's weight on it", "ArrowLeft", 2)  # 0.033
    page.locator("#units").filter(has_text=units.weight_sentence(30.0, 0.033)).wait_for()
    widget(page, "dropdown", "remedy").select_option(label="gate")
    page.locator("#phantom").filter(has_text=phantom.group_sentence(0, "gate")).wait_for()
    press(page, "right answers", "ArrowRight")
    page.locator("#phantom").filter(has_text=phantom.group_sentence(1, "gate")).wait_for()
    press(page, "hard prompts", "ArrowLeft", 2)  # none
    share = phantom.share_of_phantoms(0, 8)
    sentence = phantom.training_sentences(phantom.trainings(0, 8, 1.0), share)[0]
    page.locator("#phantoms").filter(has_text=sentence).wait_for()
    assert view.errors == []


@pytest.mark.real
def test_the_page_fits_its_reader(browser, server, tmp_path):
    view = opened(browser, server.address)
    page = view.page
    page.wait_for_selector("#when h3")
    for name, width, scheme in (
        ("light", 1200, "light"),
        ("dark", 1200, "dark"),
        ("phone", 390, "dark"),
    ):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function(
            """dark => { const brightness = color =>
              color.match(/[\\d.]+/g).slice(0, 3).reduce((sum, each) => sum + Number(each), 0);
              const ink = getComputedStyle(document.querySelector('.gx p')).color;
              const paper = getComputedStyle(document.body).backgroundColor;
              return (brightness(ink) > brightness(paper)) === dark }""",
            arg=scheme == "dark",
        )
        right = page.evaluate(
            "Math.max(...[...document.querySelectorAll('.gx')]"
            ".map(element => element.getBoundingClientRect().right))"
        )
        assert right <= width
        pictures = Path(os.environ.get("GDPO_VERL_SCREENSHOTS", tmp_path))
        page.locator("h1").first.evaluate("title => title.scrollIntoView({block: 'end'})")
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
    view.page.wait_for_selector("#when h3")
    press(view.page, "seeds", "ArrowRight", 6)
    time.sleep(0.7)  # the interrupt comes while 50 seeds are being trained
    process = psutil.Process(server.process.pid)
    family = [process, *process.children(recursive=True)]
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(HANGS) == 0
    assert [member for member in family if member.is_running()] == []
    view.page.context.close()


@pytest.mark.parametrize("name", ["dvao", "gd2po", "saw"])
def test_a_chosen_variant_is_the_library_s(name: str) -> None:
    rewards = torch.tensor([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]], dtype=torch.float64)
    found = compare.variant_advantages(rewards, ["a", "b", "c"], name, highest=[1.0, 1.0, 1.0])
    expected = gdpo_advantages(
        rewards,
        [0] * 4,
        torch.ones(4, 1),
        variant=name,
        whiten="none" if name == "dvao" else "sequence",
        ranges=[(0.0, 1.0)] * 3,
    )
    assert found == pytest.approx(expected[:, 0].tolist())
