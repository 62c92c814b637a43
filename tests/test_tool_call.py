"""The tool-calling rewards: by hand, by property, against the published rules, on the clock."""

import doctest
import importlib.util
import itertools
import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear import BUSY, assert_linear, seconds

from gdpo_verl.rewards import (
    declared_components,
    parse_error,
    tool_call,
    tool_match,
    tool_text,
)
from gdpo_verl.rewards.thought import END_TOKENS, assistant_text
from gdpo_verl.rewards.tool_call import (
    ParseError,
    compute_score,
    correctness_reward,
    format_reward,
    parse_ground_truth,
)

ROOT = Path(__file__).parents[1]
KEYS = {"score", "format", "correctness", "parse_error"}
THOUGHT = "<think>Look it up.</think>"
RESPONSE = "<response>It is sunny.</response>"


def call(name="weather", **parameters):
    return json.dumps({"name": name, "parameters": parameters})


def block(*lines):
    return "\n".join(("<tool_call>", *lines, "</tool_call>"))


ONE = call(city="Paris", days=1)
ASKED = block(ONE)
ANSWER = f"{THOUGHT}\n{ASKED}"


def verdict(response, ground_truth=ASKED, strict=True):
    result = compute_score("rlla", response, ground_truth, strict=strict)
    assert set(result) == KEYS
    assert result["score"] == result["format"] + result["correctness"]
    return result["format"], result["correctness"], ParseError(result["parse_error"])


# ---------------------------------------------------------------- worked by hand


def test_it_declares_its_components_and_their_ranges():
    declared = {c.name: (c.low, c.high) for c in declared_components(compute_score)}
    assert declared == {"format": (0, 1), "correctness": (-3, 3)}


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # The call asked for has 2 parameters, so M = 1 + (1 + 2) = 4.
        pytest.param([ONE], 3.0, id="the call"),
        pytest.param([call(days=1, city="Paris")], 3.0, id="its parameters in another order"),
        # S = 1 (names) + 1 (parameter names) + 1 (days equal) = 3; 6·3/4 − 3.
        pytest.param([call(city="Rome", days=1)], 1.5, id="one value wrong"),
        # S = 1 + 1/2 + 1 = 2.5.
        pytest.param([call(city="Paris")], 0.75, id="one parameter missing"),
        # S = 1 + 2/3 + 2 = 11/3.
        pytest.param([call(city="Paris", days=1, unit="C")], 2.5, id="one parameter too many"),
        # S = 1 + 0 + 0.
        pytest.param([call(town="Paris")], -1.5, id="only the name right"),
        pytest.param([call("time", city="Paris", days=1)], -3.0, id="another tool"),
    ],
)
def test_correctness_is_the_share_of_names_and_parameters(calls, expected, strict):
    answer = f"{THOUGHT}\n{block(*calls)}"
    assert verdict(answer, strict=strict) == (1.0, pytest.approx(expected), ParseError.NONE)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # Asked: f(a=1), f(a=2), so M = 1 + 2 + 2 = 5.
        pytest.param([call("f", a=2), call("f", a=1)], 3.0, id="in another order"),
        # S = 1/2 (names) + 2; nothing is left for the second.
        pytest.param([call("f", a=1)], 0.0, id="one of two"),
        # S = 1 + 2 (a=1) + 1 (parameter names only).
        pytest.param([call("f", a=1), call("f", a=1)], 1.8, id="the same one twice"),
    ],
)
def test_each_call_is_matched_with_the_best_unused_one(calls, expected, strict):
    asked = block(call("f", a=1), call("f", a=2))
    result = correctness_reward(f"{THOUGHT}\n{block(*calls)}", asked, strict=strict)
    assert result == pytest.approx(expected)


def test_strict_matches_for_the_best_sum_and_the_published_rule_in_turn():
    asked = block(call("f", a=1, b=1), call("f", a=1, b=2))
    answer = f"{THOUGHT}\n{block(call('f', a=1, b=2), call('f', a=2, b=1))}"
    # M = 7. In turn, the first asked for takes the first made, one parameter of two: 1 + 1, and
    # leaves 1 + 0. At best it takes the second, 1 + 1, and leaves the other its own: 1 + 2.
    assert correctness_reward(answer, asked, strict=False) == pytest.approx(6 * 4 / 7 - 3)
    assert correctness_reward(answer, asked) == pytest.approx(6 * 6 / 7 - 3)


@pytest.mark.parametrize(
    ("calls", "strict", "published"),
    [
        # Asked: f(a=1), f(a=2), so M = 1 + 2 + 2 = 5. The right call alone, wherever it is asked:
        # S = 1/2 (names) + 1 + 1. The wrong one alone: S = 1/2 + 1.
        pytest.param([call("f", a=1)], 0.0, 0.0, id="the first"),
        pytest.param([call("f", a=2)], 0.0, -1.2, id="the second"),
        pytest.param([call("f", a=3)], -1.2, -1.2, id="neither"),
        pytest.param([call("f", a=2), call("f", a=3)], 1.8, 0.6, id="the second and a wrong one"),
    ],
)
def test_a_right_call_earns_the_same_for_any_of_two_asked_for(calls, strict, published):
    asked, answer = block(call("f", a=1), call("f", a=2)), f"{THOUGHT}\n{block(*calls)}"
    assert correctness_reward(answer, asked) == pytest.approx(strict)
    assert correctness_reward(answer, asked, strict=False) == pytest.approx(published)


def test_no_repair_of_one_parameter_lowers_the_score():
    rng = random.Random(22_610)
    for _ in range(3000):
        asked = [{key: rng.randrange(3) for key in "abc"} for _ in range(rng.choice((2, 3, 4)))]
        made = [{key: rng.choice((value, 9)) for key, value in one.items()} for one in asked]
        wrong = [(i, key) for i, one in enumerate(made) for key in one if one[key] == 9]
        order = rng.sample(range(len(made)), len(made))
        asked_for = block(*[call("f", **one) for one in asked])

        def score(asked_for=asked_for, order=order, made=made):
            lines = [call("f", **made[i]) for i in order]
            return correctness_reward(f"{THOUGHT}\n{block(*lines)}", asked_for)

        before = score()
        for i, key in rng.sample(wrong, min(1, len(wrong))):
            made[i][key] = asked[i][key]
            assert score() >= before - 1e-9, (asked, made, order, i, key)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(0, 5), min_size=n, max_size=n), min_size=1, max_size=4
        )
    )
)
def test_the_pairs_have_the_largest_sum_of_all(gains):
    chosen = tool_match._assign(gains)
    assert len(dict(chosen)) == len({column for _, column in chosen}) == len(chosen)
    rows = [[*row, *[0] * len(gains)] for row in gains]  # a row may have no column
    every = itertools.permutations(range(len(rows[0])), len(rows))
    best = max(sum(row[j] for row, j in zip(rows, one, strict=True)) for one in every)
    assert sum(rows[i][j] for i, j in chosen) == best


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
def test_of_many_calls_each_takes_the_first_best_unused_one(strict):
    asked = block(call("f", a=1, b=1), call("f", a=1, b=2), call("f", a=[3]))
    # The 1st matches call 300 with 1 + 2. Then call 0, the first with a=1, matches the 2nd with
    # 1/2 + 1, and call 299 the 3rd with 1 + 1. S = 3/301 (names) + 6.5, M = 1 + 3 + 3 + 2.
    calls = [call("f", a=1), *[call("f", a=2)] * 298, call("f", a=[3]), call("f", b=1, a=1)]
    result = correctness_reward(f"{THOUGHT}\n{block(*calls)}", asked, strict=strict)
    # Strict: of 301 calls 3 are used, and each other one costs 1 + 1.
    assert result == pytest.approx(6 * (3 / 301 + 6.5) / (9 + 2 * 298 * strict) - 3)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
@pytest.mark.parametrize(
    ("response", "ground_truth", "expected"),
    [
        pytest.param(ANSWER, ASKED, 1.0, id="call"),
        pytest.param(f"{THOUGHT}\n{RESPONSE}", RESPONSE, 1.0, id="response"),
        pytest.param(f"{ANSWER}\n{RESPONSE}", f"{ASKED}\n{RESPONSE}", 1.0, id="both"),
        pytest.param(THOUGHT, "<think>So.</think>", 1.0, id="thought alone"),
        pytest.param(f" {ANSWER}<|im_end|>\n<|endoftext|>", ASKED, 1.0, id="special tokens"),
        pytest.param(ANSWER, f"{ASKED}\n{RESPONSE}", 0.0, id="response missing"),
        pytest.param(f"{ANSWER}\n{RESPONSE}", ASKED, 0.0, id="response not asked for"),
        pytest.param(ANSWER, RESPONSE, 0.0, id="call not asked for"),
        pytest.param(ASKED, ASKED, 0.0, id="no thought"),
        pytest.param(f"Well. {ANSWER}", ASKED, 0.0, id="text before"),
        pytest.param(f"{ANSWER} Bye.", ASKED, 0.0, id="text behind"),
        pytest.param(f"{THOUGHT} {ASKED}", ASKED, 0.0, id="no newline after think"),
        pytest.param(f"{THOUGHT}\n{RESPONSE * 2}", RESPONSE, 0.0, id="two responses"),
        pytest.param(
            f"{THOUGHT}\n{RESPONSE}</response>", RESPONSE, 0.0, id="response closed twice"
        ),
        pytest.param(ANSWER.replace(f"\n{ONE}", ONE), ASKED, 0.0, id="no newline before the call"),
        pytest.param(ANSWER.replace(f"{ONE}\n", ONE), ASKED, 0.0, id="no newline after the call"),
        pytest.param("", RESPONSE, 0.0, id="empty"),
    ],
)
def test_format_is_the_shape_of_the_ground_truth(response, ground_truth, expected, strict):
    assert format_reward(response, ground_truth, strict=strict) == expected


def test_the_example_in_the_documentation_runs():
    assert doctest.testmod(tool_call).failed == 0


# ---------------------------------------------------------------- strict, verdict by verdict

GOOD = (1.0, 3.0, ParseError.NONE)


def bad(code):
    return (0.0, -3.0, code)


@pytest.mark.parametrize(
    "thought",
    [
        pytest.param("I write <tool_call> now", id="opening tag"),
        pytest.param("<tool_call>\n{}\n</tool_call>", id="whole block"),
        pytest.param("a <response> is not needed</response>", id="response"),
        pytest.param("after </think> comes the call", id="end of thought"),
        pytest.param("<think>twice</think>", id="thought in thought"),
    ],
)
def test_tags_inside_the_thought_are_ignored(thought):
    assert verdict(f"<think>{thought}</think>\n{ASKED}") == GOOD


def test_a_thought_with_nothing_behind_it_ends_at_its_last_tag():
    assert format_reward("<think>after </think> comes nothing</think>", THOUGHT) == 1.0


@pytest.mark.parametrize(
    ("response", "code"),
    [
        pytest.param(f"<think>{ASKED}</think>", ParseError.NO_CALL, id="call only inside think"),
        pytest.param(f"<think>\n{ASKED}", ParseError.UNCLOSED, id="think never closed"),
        pytest.param(
            f"<think>a</think>\n{ASKED}\n</think>", ParseError.OUT_OF_ORDER, id="think closed twice"
        ),
        pytest.param(
            f"{THOUGHT}\n</tool_call>\n{ONE}\n<tool_call>",
            ParseError.OUT_OF_ORDER,
            id="tags reversed",
        ),
        pytest.param(
            f"{THOUGHT}\n</tool_call>\n{ASKED}", ParseError.OUT_OF_ORDER, id="closed before opened"
        ),
        pytest.param(f"{ASKED}\n{THOUGHT}", ParseError.OUT_OF_ORDER, id="call before thought"),
        pytest.param(
            f"{THOUGHT}\n{RESPONSE}\n{ASKED}", ParseError.OUT_OF_ORDER, id="response before call"
        ),
        pytest.param(
            f"{THOUGHT}\n<response>{ASKED}</response>",
            ParseError.OUT_OF_ORDER,
            id="call inside the response",
        ),
        pytest.param(
            f"{ANSWER}\n{RESPONSE}\n{THOUGHT}", ParseError.OUT_OF_ORDER, id="thought at the end"
        ),
        pytest.param(f"{THOUGHT}\n<tool_call>\n{ONE}", ParseError.UNCLOSED, id="block not closed"),
        pytest.param("", ParseError.NO_CALL, id="empty answer"),
    ],
)
def test_a_call_out_of_place_earns_nothing(response, code):
    assert verdict(response) == bad(code)


@pytest.mark.parametrize(
    ("asked", "given", "equal"),
    [
        ("true", "true", True),
        ("true", "1", False),
        ("1", "true", False),
        ("0", "false", False),
        ("1", "1.0", True),
        ("1", '"1"', False),
        ("null", "null", True),
        ("null", "0", False),
        ("[1, [true]]", "[1.0, [true]]", True),
        ("[1, [true]]", "[1, [1]]", False),
        ('{"x": true, "y": 2}', '{"y": 2, "x": true}', True),
        ('{"x": true}', '{"x": 1}', False),
        ("[]", "{}", False),
    ],
)
def test_values_are_equal_as_json_values_are(asked, given, equal):
    lines = [f'{{"name": "f", "parameters": {{"a": {value}}}}}' for value in (asked, given)]
    result = verdict(f"{THOUGHT}\n{block(lines[1])}", block(lines[0]))
    # Of S = 1 + 1 + 1 and M = 3, an unequal value takes 1 away.
    assert result == (1.0, 3.0 if equal else 1.0, ParseError.NONE)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        pytest.param('{"name": "f", "name": "f", "parameters": {}}', "DUPLICATE_KEY", id="name"),
        pytest.param('{"name": "f", "parameters": {"a": 1, "a": 1}}', "DUPLICATE_KEY", id="deep"),
        pytest.param('{"name": "f", "parameters": {"a": NaN}}', "NOT_FINITE", id="NaN"),
        pytest.param('{"name": "f", "parameters": {"a": Infinity}}', "NOT_FINITE", id="Infinity"),
        pytest.param('{"name": "f", "parameters": {"a": -Infinity}}', "NOT_FINITE", id="-Infinity"),
        pytest.param('{"name": "f", "parameters": {"a": 1e999}}', "NOT_FINITE", id="1e999"),
        pytest.param(
            f'{{"name": "f", "parameters": {{"a": {"9" * 400}}}}}', "NOT_FINITE", id="400 digits"
        ),
        pytest.param(
            f'{{"name": "f", "parameters": {{"a": {"9" * 5000}}}}}', "NOT_FINITE", id="5000 digits"
        ),
        pytest.param('{"parameters": {}}', "NOT_A_CALL", id="no name"),
        pytest.param('{"name": 1, "parameters": {}}', "NOT_A_CALL", id="name not text"),
        pytest.param('{"name": "f"}', "NOT_A_CALL", id="no parameters"),
        pytest.param('{"name": "f", "parameters": null}', "NOT_A_CALL", id="null parameters"),
        pytest.param('{"name": "f", "parameters": [1]}', "NOT_A_CALL", id="list parameters"),
        pytest.param('{"name": "f", "parameters": "{}"}', "NOT_A_CALL", id="text parameters"),
        pytest.param(
            '{"name": "f", "parameters": 1, "arguments": {}}', "NOT_A_CALL", id="parameters first"
        ),
        pytest.param("5", "NOT_A_CALL", id="number"),
        pytest.param("[]", "NOT_A_CALL", id="empty list"),
        pytest.param("", "NOT_A_CALL", id="nothing"),
        pytest.param("[[]]", "NOT_A_CALL", id="list in list"),
        pytest.param(f"{ONE},", "NOT_JSON", id="comma"),
        pytest.param(f"Sure: {ONE}", "NOT_JSON", id="text before the call"),
        pytest.param(f"{ONE}\ndone", "NOT_JSON", id="text behind the call"),
        pytest.param("{'name': 'f', 'parameters': {}}", "NOT_JSON", id="single quotes"),
        pytest.param("<tool_call>", "NOT_JSON", id="tag twice"),
        pytest.param("[" * 15_000, "TOO_DEEP", id="deep nesting"),
    ],
)
def test_what_is_not_plainly_a_call_is_not_parsed(line, code):
    assert verdict(f"{THOUGHT}\n{block(line)}") == bad(ParseError[code])


TWO = block(ONE, call("time"))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(block(ONE, call("time")), id="one a line"),
        pytest.param(block(ONE, "", "  ", call("time"), ""), id="blank lines"),
        pytest.param(block(json.dumps(json.loads(ONE), indent=2), call("time")), id="pretty"),
        pytest.param(block(f"[{ONE},\n {call('time')}]"), id="JSON list"),
        pytest.param(block(ONE.replace("parameters", "arguments"), call("time")), id="arguments"),
        pytest.param(f"{block(ONE)}\n{block(call('time'))}", id="several blocks"),
        pytest.param(block(ONE[:-1] + ', "id": 7}', call("time")), id="extra fields"),
        pytest.param("\n" + TWO, id="two newlines after think"),
    ],
)
def test_calls_are_read_as_what_they_plainly_are(body):
    assert verdict(f"{THOUGHT}\n{body}", TWO) == GOOD


@pytest.mark.parametrize("text", ["<response>", "</response>", "</tool_call>", "</think>"])
def test_a_literal_tag_in_an_argument_changes_nothing(text):
    asked = block(call(html=text))
    assert verdict(f"{THOUGHT}\n{asked}", asked) == GOOD
    assert verdict(f"{THOUGHT}\n{asked}", f"{THOUGHT}\n{asked}") == GOOD
    assert format_reward(f"{THOUGHT}\n{asked}\n{RESPONSE}", asked) == 0.0


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(f"<think></think>\n{RESPONSE}", id="empty think"),
        pytest.param(f"<think> \n </think>\n{RESPONSE}", id="blank think"),
        pytest.param(f"{THOUGHT}\n<response></response>", id="empty response"),
        pytest.param(f"{THOUGHT}\n<response> </response>", id="blank response"),
        pytest.param(f"{THOUGHT}\n<response><tool_call></response>", id="call opened in response"),
        pytest.param(f"{THOUGHT}\n<response></tool_call></response>", id="call closed in response"),
    ],
)
def test_a_part_without_content_or_with_a_call_tag_has_no_format(response):
    assert format_reward(response, RESPONSE) == 0.0
    assert correctness_reward(response, RESPONSE) == 0.0
    assert format_reward(response, RESPONSE, strict=False) == 1.0


@pytest.mark.parametrize("thought", ["<think></think>", "<think> \n </think>"])
def test_an_empty_thought_costs_the_format_and_not_the_calls(thought):
    assert verdict(f"{thought}\n{ASKED}") == (0.0, 3.0, ParseError.NONE)


def holding(characters):
    """An answer of so many characters from its first call tag on, one parameter too many."""
    line = ONE[:-2] + ', "x": "%s"}}'
    return f"{THOUGHT}\n{block(line % ('x' * (characters - len(block(line)) + 2)))}"


def test_calls_of_more_characters_than_any_are_refused():
    longest = tool_text.LONGEST
    for answer in (holding(longest), holding(longest).replace("Look", "Look" * longest)):
        # S = 1 + 2/3 + 2 of M = 4.
        assert verdict(answer) == (1.0, pytest.approx(2.5), ParseError.NONE)
        assert verdict(answer, answer) == GOOD
    assert verdict(holding(longest + 1)) == bad(ParseError.TOO_LONG)
    # The published rules have no tags in the body that they read, which may be as long.
    tags = len(block(""))
    assert verdict(holding(longest + tags), strict=False)[1] == pytest.approx(2.5)
    assert verdict(holding(longest + tags + 1), strict=False) == (1.0, -3.0, ParseError.TOO_LONG)


def test_a_ground_truth_of_more_characters_is_an_error_in_preparation():
    longest = tool_text.LONGEST
    parse_ground_truth(holding(longest))
    with pytest.raises(ValueError, match="TOO_LONG"):
        parse_ground_truth(holding(longest + 1))
    assert verdict(ANSWER, holding(longest + 1)) == bad(ParseError.GROUND_TRUTH)
    assert verdict(ANSWER, holding(2 * longest), strict=False)[2] == ParseError.GROUND_TRUTH


def test_a_ground_truth_asks_for_no_more_calls_than_can_be_matched_in_time():
    parse_ground_truth(block(*[ONE] * tool_call.MOST_ASKED))
    with pytest.raises(ValueError, match="expected at most 50 calls, found 51"):
        parse_ground_truth(block(*[ONE] * (tool_call.MOST_ASKED + 1)))


def test_special_tokens_at_the_end_are_dropped_in_any_number_and_order():
    rng = random.Random(7)
    for count in (1, 2, 5, 50):
        tokens = "".join(rng.choice((*END_TOKENS, " ", "\n")) for _ in range(count))
        assert assistant_text(f" {ANSWER}{tokens}") == ANSWER
        assert assistant_text(f"<|im_end|> x{tokens}") == "<|im_end|> x"
        assert assistant_text(f"{tokens}</s>") == ""


def test_many_of_the_shortest_calls():
    line = '{"name":"","parameters":{}}'
    count = 3_500
    answer = f"{THOUGHT}\n{block(*[line] * count)}"
    # J(names) = 0; M = 4 and 1 more for every call but the first, which fills the place.
    assert verdict(answer) == (1.0, -3.0, ParseError.NONE)
    assert correctness_reward(answer, block(line)) == pytest.approx(
        6 * (1 / count + 1) / (2 + count - 1) - 3
    )


@pytest.mark.parametrize(
    ("junk", "strict", "published"),
    [
        # Two parameters are asked for, M = 4; J(parameter names) = 2 / (2 + junk). Strict: M
        # grows by 1 for each junk parameter beyond two.
        (0, 3.0, 3.0),
        (2, 6 * 3.5 / 4 - 3, 6 * 3.5 / 4 - 3),
        (6, 6 * 3.25 / 8 - 3, 6 * 3.25 / 4 - 3),
        (5000, 6 * (3 + 2 / 5002) / 5002 - 3, 6 * (3 + 2 / 5002) / 4 - 3),
    ],
)
def test_junk_parameters_do_not_pay(junk, strict, published):
    line = call(city="Paris", days=1, **{f"junk{i}": 0 for i in range(junk)})
    answer = f"{THOUGHT}\n{block(line)}"
    assert correctness_reward(answer, ASKED) == pytest.approx(strict)
    assert correctness_reward(answer, ASKED, strict=False) == pytest.approx(published)


def test_an_unasked_call_earns_no_format_and_no_correctness():
    assert verdict(ANSWER, RESPONSE) == (0.0, 0.0, ParseError.NONE)


@pytest.mark.parametrize("position", ["first", "last"])
def test_the_score_falls_with_every_sprayed_call(position):
    def curve(strict):
        for count in range(100):
            lines = [call(f"tool_{i}", a=1) for i in range(count)]
            lines.insert(0 if position == "first" else count, ONE)
            yield correctness_reward(f"{THOUGHT}\n{block(*lines)}", ASKED, strict=strict)

    strict, published = list(curve(True)), list(curve(False))
    # S = 1/(1+k) + 3; M = 4, and 2 more for every sprayed call of one parameter.
    expected = [6 * (1 / (1 + k) + 3) / (4 + 2 * k) - 3 for k in range(100)]
    assert strict == pytest.approx(expected)
    assert all(later < earlier for earlier, later in itertools.pairwise(strict))
    assert strict[1] == 0.5
    assert strict[-1] < -2.9
    assert published[-1] == pytest.approx(1.5, abs=0.02)


def test_only_unused_calls_beyond_the_number_asked_cost():
    asked = block(call("f", a=1), call("g", a=1))
    wrong, costly = call("x"), call("y", a=1, b=2, c=3)
    # M = 5. The first unused call stands in for the missing g, the second adds 1 + 3.
    # S = 1/4 (names) + 2.
    answer = f"{THOUGHT}\n{block(call('f', a=1), wrong, costly)}"
    assert correctness_reward(answer, asked) == pytest.approx(6 * 2.25 / 9 - 3)
    answer = f"{THOUGHT}\n{block(call('f', a=1), costly)}"
    assert correctness_reward(answer, asked) == correctness_reward(answer, asked, strict=False)


# ---------------------------------------------------------------- malformed ground truth


@pytest.mark.parametrize(
    "ground_truth",
    [
        pytest.param(block("not json"), id="not JSON"),
        pytest.param(block(""), id="no call"),
        pytest.param(block('{"name": "f"}'), id="no parameters"),
        pytest.param(f"<tool_call>\n{ONE}", id="not closed"),
        pytest.param("<think>a", id="thought not closed"),
        pytest.param(f"{RESPONSE}\n{ASKED}", id="out of order"),
        pytest.param(None, id="None"),
        pytest.param({"calls": []}, id="dict"),
    ],
)
def test_a_malformed_ground_truth_is_an_error_before_and_counted_in_training(ground_truth):
    with pytest.raises(ValueError, match=r"ground_truth: .*(cannot be read|expected text)"):
        parse_ground_truth(ground_truth)
    assert verdict(ANSWER, ground_truth) == bad(ParseError.GROUND_TRUTH)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
def test_the_first_malformed_ground_truth_of_a_process_is_logged(strict, caplog, monkeypatch):
    monkeypatch.setattr(parse_error, "_warned", set())
    for _ in range(3):
        verdict(ANSWER, block("not json"), strict=strict)
    assert len(caplog.messages) == 1
    assert "tool_call: a row gets the minimum" in caplog.messages[0]


@pytest.mark.parametrize(
    ("valid", "invalid"),
    [
        pytest.param(THOUGHT, "<think> </think>", id="thought alone"),
        pytest.param(THOUGHT, "Look it up.", id="tags"),
        pytest.param(THOUGHT, f"{THOUGHT}\nIt is sunny.", id="nothing behind a thought alone"),
        pytest.param(RESPONSE, "", id="not empty"),
        pytest.param(RESPONSE, "<response>It is sunny.", id="response closed"),
        pytest.param(
            f"<think>as </response></think>\n{RESPONSE}",
            "<think>as </response></think>\n<response>It is sunny.",
            id="response closed behind the thought",
        ),
        pytest.param(f"{ASKED}\n{RESPONSE}", f"{ASKED}\n<response>It is sunny.", id="both closed"),
        pytest.param(
            block(call(html="<response>")),
            f"{block(call(html='</response>'))}\n<response>It is sunny.",
            id="tags in arguments do not count",
        ),
    ],
)
def test_a_ground_truth_holds_calls_or_a_closed_response_or_a_thought_alone(valid, invalid):
    parse_ground_truth(valid)
    with pytest.raises(ValueError, match=r"ground_truth: expected calls between .*, found '"):
        parse_ground_truth(invalid)
    assert verdict(ANSWER, invalid) == bad(ParseError.GROUND_TRUTH)


def test_every_real_ground_truth_can_be_used():
    assert all(parse_ground_truth(row) for row in real_rows())


def test_a_ground_truth_is_read_into_calls_and_response():
    found = parse_ground_truth(f"{ANSWER}\n{RESPONSE}\n")
    assert found.calls == [{"name": "weather", "parameters": {"city": "Paris", "days": 1}}]
    assert found.has_response
    assert parse_ground_truth(RESPONSE).calls == []


@pytest.mark.parametrize("ground_truth", [block("not json"), None], ids=["not JSON", "None"])
def test_where_the_published_rule_crashes_the_minimum_is_counted(ground_truth):
    _, correctness, code = verdict(ANSWER, ground_truth, strict=False)
    assert (correctness, code) == (-3.0, ParseError.GROUND_TRUTH)


# ---------------------------------------------------------------- the published rules

OWN_ROWS = [
    ANSWER,
    f"{THOUGHT}\n{TWO}",
    f"{THOUGHT}\n{block(call('f', a=1), call('f', a=2), call('g'))}",
    f"{THOUGHT}\n{block(call('f', a=[1, 2.5, None], b={'c': True}), call('f', a=1, b=2))}",
    f"{THOUGHT}\n{RESPONSE}",
    f"{ANSWER}\n{RESPONSE}",
    f"<think>I use <tool_call> here.</think>\n{ASKED}",
    THOUGHT,
]
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


def real_rows():
    beside = ROOT / ".." / "shared/data/toolrl/rlla_sft.json"
    path = Path(os.environ.get("GDPO_VERL_TOOLRL", beside))
    if not path.is_file():
        pytest.skip("ToolRL's dialogues are not here; GDPO_VERL_TOOLRL names their file")
    return [row["output"] for row in json.loads(path.read_text())]


@pytest.fixture(scope="module")
def published():
    """verl's own copy of the published rules, and the minimum where it crashes.

    Loaded from its file: importing verl itself takes seconds, and the rules need none of it.
    """
    verl = importlib.util.find_spec("verl")
    if verl is None or verl.origin is None:
        pytest.skip("verl, whose copy of the published rules is the reference, is not installed")
    path = Path(verl.origin).with_name("utils") / "reward_score" / "rlla.py"
    spec = importlib.util.spec_from_file_location("published_rlla", path)
    rlla = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rlla)

    def judge(response, ground_truth):
        messages, truths = [[{"content": response.strip()}]], [ground_truth]
        form = rlla.customize_format_reward_func(messages, truths, 0, 1.0, 0.0, False)[0]
        try:
            rule = rlla.customize_correctness_reward_tool
            return form, rule(messages, truths, 0, 3.0, -3.0, False)[0]
        except (ValueError, RecursionError):
            return form, -3.0

    return judge


def assert_agreement(published, rows, per_row):
    rng = random.Random(2601)
    seen = set()
    for row in rows:
        answers = [row, rng.choice(rows), *(mutated(row, rng) for _ in range(per_row))]
        truths = [row] * len(answers) + [mutated(row, rng) for _ in range(per_row // 4)]
        answers += [rng.choice((row, mutated(row, rng))) for _ in range(per_row // 4)]
        for answer, truth in zip(answers, truths, strict=True):
            expected = published(answer, truth)
            found = verdict(answer, truth, strict=False)
            assert found[:2] == pytest.approx(expected, abs=1e-12), (answer, truth)
            seen.add((found[0], round(found[1], 1)))
    return seen


def test_not_strict_is_the_published_rule_on_our_own_rows(published):
    assert len(assert_agreement(published, OWN_ROWS, per_row=400)) > 30


def test_not_strict_is_the_published_rule_on_real_dialogues(published):
    assert len(assert_agreement(published, real_rows(), per_row=8)) > 50


VALUES = ["1", "1.0", "true", "0", "2", '"1"', "null", "NaN", "1e999", "[1]", "[true]", '{"x":0}']


def random_call(rng, keys="abc"):
    given = ",".join(f'"{key}":{rng.choice(VALUES)}' for key in keys if rng.random() < 0.6)
    return f'{{"name": "{rng.choice("ffg")}", "parameters": {{{given}}}}}'


def test_not_strict_is_the_published_rule_on_many_calls(published):
    rng = random.Random(300)
    for _ in range(30):
        asked = block(*[random_call(rng) for _ in range(rng.choice((2, 20)))])
        calls = [random_call(rng, "abcd") for _ in range(700)]
        answer = f"{THOUGHT}\n{block(*calls)}"
        assert verdict(answer, asked, strict=False)[:2] == pytest.approx(published(answer, asked))


def test_not_strict_is_the_published_rule_on_names_that_are_no_text(published):
    rng = random.Random(61)
    for _ in range(2000):
        names = [rng.choice(VALUES) for _ in range(4)]
        calls = [f'{{"name": {name}, "parameters": {{"a": 1}}}}' for name in names]
        asked = block(*calls[: rng.choice((1, 2))])
        answer = f"{THOUGHT}\n{block(*rng.sample(calls, rng.choice((1, 2, 4))))}"
        try:
            expected = published(answer, asked)
        except TypeError:  # the rule crashes on names asked for that are lists
            continue
        found = verdict(answer, asked, strict=False)
        assert found[:2] == pytest.approx(expected), (answer, asked)


@pytest.mark.parametrize("rows", [lambda: OWN_ROWS, real_rows], ids=["own", "real"])
def test_every_right_answer_earns_everything_under_strict(rows):
    for row in rows():
        correctness = 3.0 if "</tool_call>" in row else 0.0
        assert verdict(row, row) == (1.0, correctness, ParseError.NONE)


@pytest.mark.parametrize("rows", [lambda: OWN_ROWS, real_rows], ids=["own", "real"])
def test_strict_agrees_where_no_more_calls_are_made_than_asked(published, rows):
    # Tags inside the thought are a defect of the published rule, so all thoughts are short.
    answers = [THOUGHT + row[row.rfind("</think>") + 8 :] for row in rows()]
    rng = random.Random(5)
    for asked, given_ in itertools.product(answers, rng.sample(answers, min(8, len(answers)))):
        if given_.count('"parameters"') <= asked.count('"parameters"'):
            expected = pytest.approx(published(given_, asked), abs=1e-12)
            assert verdict(given_, asked)[:2] == expected, (given_, asked)


# ---------------------------------------------------------------- any text at all

TRUTHS = [*OWN_ROWS, block("not json"), "", "<response>"]
PIECES = [*SNIPPETS, *OWN_ROWS, ASKED, ONE, "<|im_end|>", "[" * 2000, "9" * 5000, "\0", '"', "\\"]


def assert_declared(text, ground_truth, strict):
    form, correctness, _ = verdict(text, ground_truth, strict)
    assert form in (0.0, 1.0)
    assert math.isfinite(correctness)
    assert -3.0 <= correctness <= 3.0


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters()), st.sampled_from(TRUTHS), st.booleans())
def test_any_text_gives_the_declared_keys_in_range(text, ground_truth, strict):
    assert_declared(text, ground_truth, strict)
    assert_declared(f"{THOUGHT}\n{block(text)}", ground_truth, strict)
    assert_declared(ANSWER, text, strict)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=8), st.sampled_from(TRUTHS), st.booleans())
def test_near_valid_text_gives_the_declared_keys_in_range(pieces, ground_truth, strict):
    assert_declared("".join(pieces), ground_truth, strict)
    assert_declared(ANSWER, "".join(pieces), strict)


def test_the_fuzzer_says_what_is_missing():
    if importlib.util.find_spec("atheris"):
        pytest.skip("atheris is installed")
    command = [sys.executable, str(ROOT / "scripts" / "fuzz_rewards.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install atheris" in done.stderr


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.lists(JSON, min_size=1, max_size=3), st.booleans())
def test_any_json_between_the_tags_gives_the_declared_keys_in_range(values, strict):
    lines = [json.dumps({"name": "f", "parameters": value}) for value in values]
    answer = f"{THOUGHT}\n{block(*lines)}"
    for ground_truth in (ASKED, answer):
        assert_declared(answer, ground_truth, strict)
        assert_declared(f"{THOUGHT}\n{block(json.dumps(values))}", ground_truth, strict)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.text(max_size=9), st.text() | st.integers(-9, 9)), st.text())
def test_a_well_formed_answer_always_earns_everything(parameters, name):
    line = json.dumps({"name": name, "parameters": parameters}, ensure_ascii=False)
    assert verdict(f"{THOUGHT}\n{block(line)}", block(line)) == GOOD


def test_values_nested_to_the_limit_are_counted_and_never_raise():
    for depth in (100, 300, 400, 450, 490, 900, 980, 990):
        line = f'{{"name": "f", "parameters": {{"a": {"[" * depth}{"]" * depth}}}}}'
        for strict in (True, False):
            assert_declared(f"{THOUGHT}\n{block(line)}", block(line), strict)


# ---------------------------------------------------------------- on the clock


def script(name):
    """A file of scripts/ as a module; the texts that are slow to read stand there."""
    path = ROOT / "scripts" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark = script("benchmark_rewards")


def judge(strict, ground_truth):
    return lambda text: compute_score("rlla", text, ground_truth, strict=strict)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
@pytest.mark.parametrize("text", benchmark.WORST.values(), ids=benchmark.WORST.keys())
def test_the_time_is_linear_in_the_text(text, strict):
    assert_linear(judge(strict, benchmark.TRUTH), text)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "published"])
@pytest.mark.parametrize(
    "text",
    [
        benchmark.counted(benchmark.NEAR),
        benchmark.counted(benchmark.SHARED),
        benchmark.filled(benchmark.SHORTEST),
    ],
    ids=["near", "one key", "shortest"],
)
def test_twenty_calls_asked_for_take_no_longer(text, strict):
    text = text(tool_text.LONGEST)
    assert compute_score("rlla", text, benchmark.LONG_TRUTH, strict=strict)["parse_error"] == 0
    assert seconds(judge(strict, benchmark.LONG_TRUTH), text) < BUSY
