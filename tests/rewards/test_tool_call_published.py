"""`strict=False` of the tool-calling rewards against verl's copy of the published rules."""

import importlib.util
import itertools
import json
import os
import random
import runpy
from pathlib import Path

import pytest
from test_tool_call import THOUGHT, block, calling, verdict
from verdicts import cases_of

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>"]
WORDS = ["true", "1", "1.0", "null", "NaN", "1e999", '"name"', '"parameters"', '"arguments"']
SIGNS = ["{", "}", "[", "]", ",", ":", '"', "\\u2028", "\u2028", "\ud800", "\n", " ", ""]
SNIPPETS = [*TAGS, *WORDS, *SIGNS]


def mutated(text, rng):
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(rng.choice((0, max(0, text.rfind("<tool_call>")))), len(text) + 1)
        lines = text.split("\n")
        line = rng.randrange(len(lines))
        changes = (
            text[:at] + rng.choice(SNIPPETS) + text[at:],
            text[:at] + text[at + rng.randrange(1, 12) :],
            text[:at],
            "\n".join(lines[: line + 1] + lines[line:]),
            "\n".join(lines[:line] + lines[line + 1 :]),
            "\n".join(rng.sample(lines, len(lines))),
            text.replace(rng.choice(TAGS + WORDS), rng.choice(SNIPPETS), 1),
        )
        text = rng.choice(changes)
    return text


@pytest.fixture(scope="module")
def published():
    """verl's own copy of the published rules, and the minimum where it crashes.

    Loaded from its file: importing verl itself takes seconds, and the rules need none of it.
    """
    verl = importlib.util.find_spec("verl")
    if verl is None or verl.origin is None:
        pytest.skip("verl, whose copy of the published rules is the reference, is not installed")
    rules = runpy.run_path(str(Path(verl.origin).with_name("utils") / "reward_score" / "rlla.py"))

    def judge(response, ground_truth):
        messages, truths = [[{"content": response.strip()}]], [ground_truth]
        form = rules["customize_format_reward_func"](messages, truths, 0, 1.0, 0.0, False)[0]
        try:
            rule = rules["customize_correctness_reward_tool"]
            return form, rule(messages, truths, 0, 3.0, -3.0, False)[0]
        except (ValueError, RecursionError):
            return form, -3.0

    return judge


def assert_published(published, answer, truth):
    """Assert that `strict=False` gives what the published rules give, and return it."""
    found = verdict(answer, truth, strict=False)[:2]
    assert found == pytest.approx(published(answer, truth), abs=1e-12), (answer, truth)
    return found


def test_not_strict_is_the_published_rule_on_each_case(published):
    for case in cases_of("tool_call"):
        # Of special tokens, which verl's decoding leaves out, its rules know nothing.
        if isinstance(case["truth"], str) and case["why"] != "special tokens":
            assert_published(published, case["answer"], case["truth"])


def own_rows():
    return [case["answer"] for case in cases_of("tool_call") if case["why"] == "a right answer"]


def real_rows():
    beside = Path(__file__).parents[2] / ".." / "shared/data/toolrl/rlla_sft.json"
    path = Path(os.environ.get("GDPO_VERL_TOOLRL", beside))
    if not path.is_file():
        pytest.skip("ToolRL's dialogues are not here; GDPO_VERL_TOOLRL names their file")
    return [row["output"] for row in json.loads(path.read_text())]


@pytest.mark.parametrize(("read_rows", "changes"), [(own_rows, 400), (real_rows, 8)])
def test_not_strict_is_the_published_rule_on_changed_answers(published, read_rows, changes):
    rng = random.Random(2601)
    rows = read_rows()
    rewards = set()
    for row in rows:
        pairs = [(row, row), (rng.choice(rows), row)]
        for _ in range(changes):
            pairs.append((mutated(row, rng), row))
        for _ in range(changes // 4):
            pairs.append((rng.choice((row, mutated(row, rng))), mutated(row, rng)))
        for answer, truth in pairs:
            form, correctness = assert_published(published, answer, truth)
            rewards.add((form, round(correctness, 1)))
    assert len(rewards) > 30


VALUES = ["1", "1.0", "true", "0", "2", '"1"', "null", "NaN", "1e999", "[1]", "[true]", '{"x":0}']


def random_call(rng, keys="abc"):
    """A call whose name need not be a text, which these rules take."""
    given = ",".join(f'"{key}":{rng.choice(VALUES)}' for key in keys if rng.random() < 0.6)
    name = rng.choice(['"f"'] * 12 + ['"g"'] * 6 + VALUES[:8])
    return f'{{"name": {name}, "parameters": {{{given}}}}}'


def test_not_strict_is_the_published_rule_on_many_calls(published):
    rng = random.Random(300)
    for count in [700] * 30 + [4] * 1000:
        asked = block(*[random_call(rng) for _ in range(rng.choice((1, 2, 20)))])
        answer = calling(*[random_call(rng, "abcd") for _ in range(count)])
        assert_published(published, answer, asked)


@pytest.mark.parametrize("read_rows", [own_rows, real_rows])
def test_strict_agrees_where_no_more_calls_are_made_than_asked(published, read_rows):
    # Tags inside the thought are a defect of the published rule, so all thoughts are short.
    answers = [THOUGHT + row[row.rfind("</think>") + 8 :] for row in read_rows()]
    sample = random.Random(5).sample(answers, min(8, len(answers)))
    for asked, answer in itertools.product(answers, sample):
        if answer.count('"parameters"') <= asked.count('"parameters"'):
            expected = pytest.approx(published(answer, asked), abs=1e-12)
            assert verdict(answer, asked)[:2] == expected, (answer, asked)
