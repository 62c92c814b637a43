"""Instructions: rows that are drawn or read, and their rewards.

recipes/instructions/cases.jsonl has verdicts; here are the learned reward's range and what an
optimiser would find, hostile texts, the clock and the rows.
"""

import json
import re
import sys
import time
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("if_verifiable")
pytest.importorskip("wordllama")

from gdpo_verl.recipes.instructions import rows as instructions

from gdpo_verl.lab.tasks import generated
from gdpo_verl.lab.tasks.source import Record
from gdpo_verl.rewards import instructions as rewards
from gdpo_verl.rewards import own_words
from gdpo_verl.rewards.own_words import has_own_words
from gdpo_verl.rewards.parse_error import ParseError

SEA = "The ocean covers most of the planet. Fish and whales live in it; ships cross it every day."


def judge(text, topic="the sea", **constraints):
    """The components that are scored, of constraints by the second part of their ids."""
    known = {name.partition(":")[2]: name for name in rewards.registry()}
    named = {known.get(name, name): options for name, options in constraints.items()}
    found = rewards.compute_score("", text, instructions.ground_truth(topic, named))
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("the sea the sea the sea the sea", 0.99, 1.0),
        (SEA, 0.5, 0.7),
        (f"The sea has fish. {SEA} Ships like the sea.", 0.6, 0.8),
        ("<think>the sea the sea</think>Bicycles.", 0.0, 0.1),
    ],
)
def test_the_learned_reward_likes_the_topic(text, low, high):
    assert low <= judge(text)["relevance"] <= high


# Repeats, lists, letters, made-up words and echoes of the prompt; TOPIC stands for the topic.
GIBBERISH = (Path(__file__).parent / "gibberish.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("text", GIBBERISH)
def test_gibberish_has_no_own_words(text):
    topics = instructions.TOPICS[::6]
    paid = [topic for topic in topics if has_own_words(topic, text.replace("TOPIC", topic))]
    assert not paid


def test_lists_of_related_words_are_no_text():
    embeddings = own_words._embeddings()
    # A piece that begins a word begins with this sign.
    pieces = [piece for piece in embeddings.tokenizer.get_vocab() if piece[0] == "▁"]
    words = [piece[1:] for piece in pieces if re.fullmatch("[a-z]{3,}", piece[1:])]
    vectors = embeddings.embed(words, norm=True)
    for topic in instructions.TOPICS[::6]:
        cosines = vectors @ embeddings.embed(topic, norm=True)[0]
        nearest = [words[place] for place in (-cosines).argsort()]
        assert not has_own_words(topic, " ".join(nearest[:30]))
        assert not has_own_words(topic, " ".join(nearest[30:60]))
        assert not has_own_words(topic, " the ".join(nearest[:30]))


@pytest.mark.parametrize("text", [SEA, ""])
def test_what_nobody_can_check_is_counted_and_not_scored(text, monkeypatch):
    monkeypatch.setattr("nltk.data.path", [])  # with which sentences would be told apart
    found = judge(
        text,
        no_such={},
        no_comma={"commas": 3},
        number_words={},
        title={},
        capital_word_frequency={"capital_frequency": 1},
        number_sentences={"num_sentences": 2, "relation": "at least"},
    )
    assert found["unchecked"] == 5
    assert not {"punctuation", "length", "case"} & set(found)
    assert found["format"] == 0.0


def test_a_ground_truth_nested_too_deep_is_told():
    found = rewards.compute_score("", SEA, "[" * 9999)
    assert (found["parse_error"], found["score"]) == (ParseError.GROUND_TRUTH, 0.0)


def test_no_text_keeps_a_checker_beyond_its_deadline(monkeypatch):
    monkeypatch.setattr(rewards, "DEADLINE", 1e-4)
    # What cannot be judged stays so.
    found = judge(
        "word " * 200_000, number_words={"num_words": 1, "relation": "at least"}, no_such={}
    )
    assert found["unchecked"] == 1
    assert found["parse_error"] == ParseError.DEADLINE
    assert found["length"] == 0.0


HOSTILE = [
    (unit * 100_000)[:100_000]
    for unit in ("[", "\t", "\n", "<", "*", "-", "p. ", "<<a", "[a", "\n\n", "* * * ", "*\n", "1.")
]


@pytest.mark.parametrize("text", ["\ud800", "\0", *HOSTILE], ids=lambda text: repr(text[:9]))
def test_hostile_texts_are_judged_in_linear_time(text):
    start = time.process_time()
    found = judge(
        f"a{text}x",
        no_comma={},
        json_format={},
        number_placeholders={"num_placeholders": 1},
        postscript={"postscript_marker": "P.S."},
        multiple_sections={"section_spliter": "Part", "num_sections": 1},
        number_bullet_lists={"num_bullets": 1},
        number_highlighted_sections={"num_highlights": 10**6},
        title={},
        number_paragraphs={"num_paragraphs": 1},
        number_words={"num_words": 1, "relation": "at least"},
    )
    assert time.process_time() - start < 2
    assert (found["unchecked"], found["parse_error"]) == (0, ParseError.NONE)
    assert 0 <= found["score"] <= 5


def test_drawn_constraints_are_of_different_kinds_and_judged():
    used = set()
    drawn = generated.examples("x", "train", instructions.draw_example, 0)
    for example in islice(drawn, 300):
        names = json.loads(example.ground_truth)["instruction_id_list"]
        kinds = [name.partition(":")[0] for name in names]
        assert 1 <= len(kinds) <= 3
        assert len(kinds) == len(set(kinds))
        found = rewards.compute_score("", SEA, example.ground_truth)
        assert found["unchecked"] == 0
        assert sum(found[kind] is not None for kind in rewards.KINDS.values()) == len(kinds)
        used |= set(names)
    assert used == set(instructions.CONSTRAINTS)


EMPTY = dict.fromkeys(
    ("N", "quantifier", "end_phrase", "keyword_list", "word", "forbidden_words", "letter", "i")
)


def published(function, **arguments):
    """A row in RLVR-IFeval's columns."""
    truth = json.dumps({"func_name": function, **EMPTY, **arguments})
    return {"messages": [{"role": "user", "content": f"Write. {truth}"}], "ground_truth": truth}


WORDS = "length_constraints:number_words"
PROMPT = "Say it.\n\n\nTwice \\(x\\)."
HELLO = [{"role": "user", "content": "Hi"}]
# Rows, and the constraint that is made of each.
PUBLISHED = [
    (published("validate_no_commas"), {"punctuation:no_comma": {}}),
    (
        published("validate_word_constraint", N=9, quantifier="at most"),
        {WORDS: {"num_words": 10, "relation": "less than"}},
    ),
    (
        published("validate_word_constraint", N=9, quantifier="at least"),
        {WORDS: {"num_words": 9, "relation": "at least"}},
    ),
    (
        published("verify_keywords", keyword_list=["cat", "dog ("]),
        {"keywords:existence": {"keywords": ["cat", "dog ("]}},
    ),
    (published("validate_end", end_phrase="So."), {"startend:end_checker": {"end_phrase": "So."}}),
    (
        published("verify_paragraph_count", N=2),
        {"length_constraints:number_paragraphs": {"num_paragraphs": 2}},
    ),
    (
        published("validate_paragraphs", N=2, i=2, first_word="Cat"),
        {
            "length_constraints:nth_paragraph_first_word": {
                "num_paragraphs": 2,
                "nth_paragraph": 2,
                "first_word": "Cat",
            }
        },
    ),
    (
        published("verify_postscript", postscript_marker="PS:"),
        {"detectable_content:postscript": {"postscript_marker": "PS:"}},
    ),
    (
        published("validate_placeholders", N=2),
        {"detectable_content:number_placeholders": {"num_placeholders": 2}},
    ),
    (
        published("verify_bullet_points", N=2),
        {"detectable_format:number_bullet_lists": {"num_bullets": 2}},
    ),
    (published("validate_title"), {"detectable_format:title": {}}),
    (
        published("validate_sections", N=2, section_splitter="Chapter:"),
        {"detectable_format:multiple_sections": {"num_sections": 2, "section_spliter": "Chapter:"}},
    ),
    (
        published("validate_repeat_prompt", original_prompt=f"{instructions.REPEAT} {PROMPT}"),
        {"combination:repeat_prompt": {"prompt_to_repeat": f" {PROMPT}"}},
    ),
]


def converted(values):
    """The ground truth that is made of a row."""
    row = instructions.convert(Record("in.jsonl", 0, None, values))
    return json.loads(row["reward_model"]["ground_truth"])


@pytest.mark.parametrize(("values", "constraint"), PUBLISHED)
def test_a_published_row_keeps_what_can_be_checked(values, constraint):
    truth = converted(values)
    assert truth["topic"] == values["messages"][0]["content"]
    assert dict(zip(truth["instruction_id_list"], truth["kwargs"], strict=True)) == constraint


# Rows that no checker can judge.
REJECTED = [
    published("verify_keywords", keyword_list="fish"),
    published("verify_letter_frequency", letter="a", N=3),
    published("verify_bullet_points"),
    published("validate_repeat_prompt", original_prompt=instructions.REPEAT),
    {"messages": [], "ground_truth": "{}"},
    {"messages": HELLO, "ground_truth": "no JSON"},
    {"messages": HELLO, "ground_truth": "[]"},
]


@pytest.mark.parametrize("values", REJECTED)
def test_a_published_row_that_no_checker_can_judge_is_rejected(values):
    with pytest.raises(ValueError, match=r"[Ee]xpect"):
        converted(values)


def test_what_a_rejected_row_asked_for_is_named():
    with pytest.raises(ValueError, match="'quantifier': 'around'"):
        converted(published("validate_word_constraint", N=9, quantifier="around"))


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "if_verifiable.ifeval.instructions_registry", None)
    rewards.registry.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="with: pip install if-verifiable=="):
        rewards.registry()
    monkeypatch.setitem(sys.modules, "wordllama", None)
    with pytest.raises(ModuleNotFoundError, match="pip install if-verifiable=="):
        own_words._embeddings.__wrapped__()


def test_as_a_rubric_the_constraints_of_the_prompt_are_its_criteria():
    names = {"no_comma": "punctuation:no_comma", "title": "detectable_format:title"}
    truth = instructions.ground_truth("the sea", {name: {} for name in names.values()})
    usual = rewards.compute_score("", SEA, truth)
    found = rewards.compute_rubric("", SEA, truth)
    assert found["rubric"] == {"punctuation": 1.0, "format": 0.0, "own_words": 1.0}
    assert found["relevance"] == usual["relevance"]
    assert set(found) == {"rubric", "relevance", "unchecked", "parse_error"}
    nothing = rewards.compute_rubric("", SEA, "no JSON")
    assert nothing["rubric"] == {"own_words": 0.0}
