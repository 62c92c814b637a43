"""Instructions: rows that are drawn or read, and their rewards."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from processes import run_cli

pytest.importorskip("if_verifiable")
pytest.importorskip("wordllama")

from gdpo_verl.recipes.instructions import rows as instructions

from gdpo_verl.config.components import declared_components
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.tasks import generated
from gdpo_verl.lab.tasks.rows import BadRow
from gdpo_verl.lab.tasks.source import Record
from gdpo_verl.rewards import instructions as rewards
from gdpo_verl.rewards.parse_error import ParseError

SEA = "The ocean covers most of the planet. Fish and whales live in it; ships cross it every day."


def judge(text: str, topic: str = "the sea", **constraints: dict[str, Any]) -> dict[str, Any]:
    """The components that are scored, of constraints by the second part of their ids."""
    known = {name.partition(":")[2]: name for name in rewards.registry()}
    named = {known.get(name, name): options for name, options in constraints.items()}
    found = rewards.compute_score("", text, instructions.ground_truth(topic, named))
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("text", "relevance", "own_words"),
    [
        ("the sea the sea the sea the sea", (0.99, 1.0), 0.0),
        (SEA, (0.5, 0.7), 1.0),
        # What SmolLM2 wrote after twenty steps that paid relevance whatever the text.
        (f"The sea covers most of the planet. The sea has fish and whales. The sea {SEA}",
         (0.7, 0.9), 0.0),
        (f"The sea has fish. {SEA} Ships like the sea.", (0.6, 0.8), 1.0),
        ("<think>the sea the sea</think>Bicycles.", (0.0, 0.1), 0.0),
        ("<think>the sea the sea", (0.0, 0.0), 0.0),
    ],
)  # fmt: skip
def test_the_learned_reward_likes_the_topic_and_its_guard_own_words(
    text: str, relevance: tuple[float, float], own_words: float
) -> None:
    found = judge(text)
    assert relevance[0] <= found["relevance"] <= relevance[1]
    assert found["own_words"] == own_words


# Nothing of one's own: gibberish beside the topic, function words, its forms and misspellings.
_FUNCTION_WORDS = "it is not that we do have been when they and"
_ENDS = ("s", "y", "ed", "ing", "er", "less", "like", "ful", "est", "ish", "ness", "ly", "able")
_STARTS = ("super", "mega", "ultra", "non", "pre", "anti", "sub", "over", "micro", "multi", "post")
PLEASING: dict[str, Callable[[str], str]] = {
    "repeated": lambda topic: f"{topic} " * 12,
    "gibberish": lambda topic: " ".join(f"t{number}" for number in range(1, 11)),
    "topic and gibberish": lambda topic: f"{topic} {topic} " + PLEASING["gibberish"](topic),
    "topic and function words": lambda topic: f"{topic} {topic} {_FUNCTION_WORDS}",
    "its forms": lambda topic: " ".join([topic, *(topic.split()[-1] + end for end in _ENDS)]),
    "misspelt": lambda topic: " ".join(
        [topic[:place] + topic[place] + topic[place:] for place in range(len(topic))]
        + [_FUNCTION_WORDS]
    ),
    "numbered": lambda topic: " ".join(f"{topic}{number}" for number in range(12)),
    "with prefixes": lambda topic: " ".join(start + topic.split()[-1] for start in _STARTS),
    "joined": lambda topic: " ".join(f"{topic}-{word}" for word in _FUNCTION_WORDS.split()),
    "a sentence again and again": lambda topic: SEA * 5,
    "again and again before a text": lambda topic: f"{topic} " * 6 + SEA,
}


def test_a_list_of_related_words_is_no_text() -> None:
    near = "ocean marine coast coastal shore beach waters tide tides wave island boat ship ships"
    assert judge(near)["relevance"] > 0.6
    assert judge(near)["own_words"] == 0


@pytest.mark.parametrize("family", PLEASING)
def test_no_topic_is_pleased_without_a_text_about_it(family: str) -> None:
    paid = [
        topic
        for topic in instructions.TOPICS
        if judge(PLEASING[family](topic), topic=topic)["own_words"]
    ]
    assert not paid


OWN = {
    "bread": "Bread is baked from flour, water and yeast. People have eaten it for ages.",
    "chess": "Two players move their pieces. The game of chess ends when a king is caught.",
    "owls": "These birds hunt mice in the dark. By day owls rest in hollow trees.",
    "gold": "This yellow metal never rusts and is made into rings. Miners dig deep to find gold.",
    "What is the difference between a virus and a bacterium, and why is it that antibiotics are of "
    "no help against one of them? Is it a question of size?": "Bacteria are living cells that can "
    "multiply on their own, while viruses need the cells of a host. The drugs attack parts that "
    "only bacterial cells have, such as their walls.",
}


@pytest.mark.parametrize("topic", OWN)
def test_a_text_about_its_topic_has_own_words(topic: str) -> None:
    assert judge(OWN[topic], topic=topic)["own_words"] == 1.0
    assert judge(f"{topic} {topic} {topic}", topic=topic)["own_words"] == 0.0


PLAIN = (
    "Bread is baked from flour.",
    "Dogs bark.",
    "I like tea.",
    "The sea is deep.",
    "Snow fell all night.",
    "While we sleep our brain makes up strange stories.",
    "Tall trees give shade and shelter to deer, birds and insects.",
    "They tell us the hour with hands or digits.",
    SEA,
)
FOREIGN = (
    "Das Meer ist tief und blau, und viele Fische leben darin.",
    "La mer est profonde et beaucoup de poissons y vivent.",
    "El mar es profundo y muchos peces viven en él.",
    "De zee is diep en er leven veel vissen in.",
)


def test_the_asked_case_is_followed_in_english_alone() -> None:
    for text in PLAIN:
        assert judge(text.upper(), english_capital={})["case"] == 1.0
        assert judge(text.lower(), english_lowercase={})["case"] == 1.0
        assert judge(text, english_capital={})["case"] == 0.0
        assert judge(text, english_lowercase={})["case"] == 0.0
    for text in FOREIGN:
        assert judge(text.upper(), english_capital={})["case"] == 0.0
        assert judge(text.lower(), english_lowercase={})["case"] == 0.0
    assert judge(FOREIGN[0], response_language={"language": "de"})["language"] == 1.0
    assert judge(SEA, response_language={"language": "de"})["language"] == 0.0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("existence", {"keywords": []}),
        ("existence", {"keywords": ["cat", " "]}),
        ("existence", {"keywords": [1]}),
        ("end_checker", {"end_phrase": '""'}),
        ("end_checker", {"end_phrase": 5}),
        ("number_paragraphs", {"num_paragraphs": -1}),
        ("nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 3, "first_word": "a"}),
        ("letter_frequency", {"letter": "!", "let_frequency": 1, "let_relation": "at least"}),
        ("response_language", {"language": "xx"}),
    ],
)
def test_arguments_that_a_checker_cannot_use_are_never_scored(
    name: str, options: dict[str, Any]
) -> None:
    for text in (SEA, "", "cat", "a\n\nb\n\nc"):
        assert judge(text, **{name: options})["unchecked"] == 1


@pytest.mark.parametrize("text", [SEA, ""])
def test_what_nobody_can_check_is_counted_and_not_scored(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nltk.data.path", [])  # with which sentences would be told apart
    found = judge(
        text,
        no_such={},
        no_comma={"commas": 3},
        number_words={},
        title={},
        existence={"keywords": ["a", ""]},
        capital_word_frequency={"capital_frequency": 1},
        number_sentences={"num_sentences": 2, "relation": "at least"},
    )
    assert found["unchecked"] == 6
    assert not {"punctuation", "length", "keywords", "case"} & set(found)
    assert found["format"] == 0.0


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "\n" * 200_000 + "x", "*\n" * 50_000, "\ud800", "\0", "<<" * 9999]
)
def test_hostile_texts_are_judged(text: str) -> None:
    bullets = {"num_bullets": 2}
    found = judge(text, json_format={}, title={}, no_comma={}, number_bullet_lists=bullets)
    assert {component.name for component in declared_components(rewards.compute_score)} >= {
        key for key in found if key not in ("score", "unchecked", "parse_error")
    }
    assert 0 <= found["score"] <= 4


def test_no_text_keeps_a_checker_beyond_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "DEADLINE", 1e-4)
    # What cannot be judged stays so.
    found = judge(
        "word " * 200_000, number_words={"num_words": 1, "relation": "at least"}, no_such={}
    )
    assert found["unchecked"] == 1
    assert found["parse_error"] == ParseError.DEADLINE
    assert found["length"] == 0.0


@pytest.mark.parametrize("unit", ["[", "\t", "\n", "<", "*", "-", "p. ", "<<a", "[a", "\n\n"])
def test_checkers_take_linear_time(unit: str) -> None:
    text = f"a{(unit * 100_000)[:100_000]}x"
    start = time.process_time()
    for name, options in {
        "detectable_content:number_placeholders": {"num_placeholders": 1},
        "detectable_content:postscript": {"postscript_marker": "P.S."},
        "detectable_format:multiple_sections": {"section_spliter": "Part", "num_sections": 1},
        "detectable_format:number_bullet_lists": {"num_bullets": 1},
        "detectable_format:number_highlighted_sections": {"num_highlights": 10**6},
        "detectable_format:title": {},
    }.items():
        assert rewards.is_followed(name, options, text) is not None
    assert time.process_time() - start < 2


@pytest.mark.parametrize("text", ['""', "---\n---", "{}", "<<>>", "[][]"])
def test_a_text_without_a_word_follows_nothing(text: str) -> None:
    bullets = {"num_bullets": 2}
    found = judge(text, quotation={}, number_bullet_lists=bullets, no_comma={}, title={})
    assert found["score"] == found["relevance"]


PROMPT = "Say it.\n\n\nTwice \\(x\\)."


@pytest.mark.parametrize(
    ("function", "arguments", "followed", "missed"),
    [
        ("validate_word_constraint", {"N": 3, "quantifier": "at most"}, ["I don't know"],
         ["I do not know"]),
        ("validate_word_constraint", {"N": 3, "quantifier": "at least"}, ["a b c"], ["I don't"]),
        ("validate_paragraphs", {"N": 2, "i": 2, "first_word": "Cat"},
         ["One.\n\ncat, sat.", "One.\n\n\n\nCat"], ["Cat.\n\nOne.", "One.\n\nCatty", "Cat"]),
        ("verify_postscript", {"postscript_marker": "PS:"}, ["Hi.\n\nPS: Bye."],
         ["Some tips: look.", "Hi.", "Hi. PS:"]),
        ("verify_postscript", {"postscript_marker": "Before I forget:"},
         ["Hi. Before I forget: Bye."], ["Hi."]),
        ("validate_placeholders", {"N": 2}, ["[a] [b c]"], ["[a]", "x [] []"]),
        ("verify_bullet_points", {"N": 2}, ["* a\n* b", "- a\n  - b"],
         ["* a", "x\n---\n---", "* a\n* b\n* c"]),
        ("validate_title", {}, ["<<Tea>>\nx"], ["Tea", "<<>> x"]),
        ("validate_sections", {"N": 2, "section_splitter": "Chapter:"},
         ["Chapter: 1\na\nChapter: 2\nb", "**Chapter: Tea**\na\n**Chapter: Milk**\nb"],
         ["Chapter: 1\na", "Chapter: 1\nChapter: 2\nChapter: 3"]),
        ("validate_repeat_prompt", {"original_prompt": f"{instructions.REPEAT} {PROMPT}"},
         [f"{PROMPT}\nSure."], ["Sure.", "Say it."]),
        ("validate_repeat_prompt", {"original_prompt": f"{PROMPT} {instructions.REPEAT}"},
         [f"{PROMPT}\nSure."], ["Sure."]),
        ("validate_repeat_prompt", {"original_prompt": PROMPT}, [f"{PROMPT} Sure."], ["Sure."]),
    ],
)  # fmt: skip
def test_a_published_row_is_judged_by_what_its_prompt_asks(
    function: str, arguments: dict[str, Any], followed: list[str], missed: list[str]
) -> None:
    record = Record("file", 0, "train", published(function, **arguments))
    truth = json.loads(instructions.convert(record)["reward_model"]["ground_truth"])
    constraint = truth["instruction_id_list"][0], truth["kwargs"][0]
    for text in followed:
        assert rewards.is_followed(*constraint, text) is True, text
    for text in missed:
        assert rewards.is_followed(*constraint, text) is False, text


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("validate_word_constraint", {"quantifier": "at least", "N": None}),
        ("validate_paragraphs", {"N": 2, "i": 3, "first_word": "a"}),
        ("validate_repeat_prompt", {"original_prompt": instructions.REPEAT}),
        ("verify_keywords", {"keyword_list": "fish"}),
        ("verify_keywords", {"keyword_list": ["fish", ""]}),
    ],
)
def test_a_published_row_that_no_text_can_follow_is_rejected(
    function: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(BadRow):
        instructions.convert(Record("file", 0, "train", published(function, **arguments)))


@pytest.mark.parametrize("truth", ["", "{}", "[]", "[" * 9999, '{"topic": 1}', None])
def test_a_damaged_ground_truth_is_told(truth: Any) -> None:
    found = rewards.compute_score("", SEA, truth)
    assert (found["parse_error"], found["score"]) == (9, 0.0)


def test_drawn_constraints_are_of_different_kinds_and_judged() -> None:
    used = set()
    drawn = generated.examples("x", "train", instructions.draw_example, seed=0)
    for example in islice(drawn, 300):
        kinds = [name.partition(":")[0] for name in example.constraints]
        assert 1 <= len(kinds) == len(set(kinds)) <= 3
        found = rewards.compute_score("", SEA, example.ground_truth)
        assert found["unchecked"] == 0
        assert sum(found[kind] is not None for kind in rewards.KINDS.values()) == len(kinds)
        used |= set(example.constraints)
    assert used == set(instructions.CONSTRAINTS)


EMPTY = dict.fromkeys(
    ("N", "quantifier", "end_phrase", "keyword_list", "word", "forbidden_words", "letter", "i")
)


def published(function: str, **arguments: Any) -> dict[str, Any]:
    """A row in RLVR-IFeval's columns."""
    truth = json.dumps({"func_name": function, **EMPTY, **arguments})
    return {"messages": [{"role": "user", "content": f"Write. {truth}"}], "ground_truth": truth}


def test_published_rows_keep_what_can_be_checked_and_name_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        published("validate_no_commas"),
        published("validate_word_constraint", N=9, quantifier="at most"),
        published("validate_word_constraint", N=9, quantifier="at least"),
        published("validate_word_constraint", N=9, quantifier="around"),
        published("verify_keywords", keyword_list=["fish"]),
        published("verify_letter_frequency", letter="a", N=3),
        {"messages": [], "ground_truth": "{}"},
        published("validate_end", end_phrase="So."),
        {"messages": [{"role": "user", "content": "Hi"}], "ground_truth": "no JSON"},
        {"messages": [{"role": "user", "content": "Hi"}], "ground_truth": "[]"},
        published("verify_bullet_points"),
        published("verify_paragraph_count", N=2),
        published("verify_keywords", keyword_list=["cat", "dog ("]),
        published("validate_paragraphs", N=2, i=3, first_word="So"),
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "out"
    arguments = ["--from", str(file), "--validation", "1", "--out", str(out)]
    assert main(["prepare", "instructions", *arguments]) == 0
    kept = {}
    for split in ("train", "validation"):
        for row in pq.read_table(out / f"{split}.parquet").to_pylist():
            truth = json.loads(row["reward_model"]["ground_truth"])
            assert truth["topic"] == row["prompt"][0]["content"]
            kept[row["extra_info"]["row"]] = truth["instruction_id_list"], truth["kwargs"]
    words = ["length_constraints:number_words"]
    assert kept == {
        0: (["punctuation:no_comma"], [{}]),
        1: (words, [{"num_words": 10, "relation": "less than"}]),
        2: (words, [{"num_words": 9, "relation": "at least"}]),
        4: (["keywords:existence"], [{"keywords": ["fish"]}]),
        7: (["startend:end_checker"], [{"end_phrase": "So."}]),
        11: (["length_constraints:number_paragraphs"], [{"num_paragraphs": 2}]),
        12: (["keywords:existence"], [{"keywords": ["cat", "dog ("]}]),
    }
    told = capsys.readouterr().err
    assert "7 rows rejected" in told
    assert "'quantifier': 'around'" in told


def test_check_reward_shows_that_repeating_the_topic_is_paid_nothing(tmp_path: Path) -> None:
    run_cli("prepare", "instructions", "--out", str(tmp_path))
    rows, answers, report = (tmp_path / name for name in ("train.parquet", "answers", "report"))
    truths = [row["reward_model"]["ground_truth"] for row in pq.read_table(rows).to_pylist()]
    index = [json.loads(truth)["topic"] for truth in truths].index("the sea")
    lines = [json.dumps({"index": index, "answer": text}) for text in (SEA, "the sea " * 8)]
    answers.write_text("\n".join(lines))
    files = ["--data", str(rows), "--answers", str(answers), "--json", str(report)]
    recipe = ("--recipe", "instructions/gdpo_conditioned", "actor_rollout_ref.model.path=null")
    run_cli("check-reward", *files, *recipe)
    found = json.loads(report.read_text())
    assert found["problems"] == []
    own, topic = ({**each["returned"], "score": each["score"]} for each in found["answers"])
    for answer, paid in ((own, own["relevance"]), (topic, 0.0)):
        kinds = [answer[kind] for kind in rewards.KINDS.values() if answer[kind] is not None]
        assert answer["score"] == pytest.approx(sum(kinds) + paid)
    assert topic["relevance"] > 0.9 > own["relevance"] > 0


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "if_verifiable.ifeval.instructions_registry", None)
    rewards.registry.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="with: pip install if-verifiable=="):
        rewards.registry()
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(ModuleNotFoundError, match="pip install if-verifiable=="):
        rewards._embeddings.__wrapped__()
