"""The reading of an answer with tool calls: each text that counts and each that does not."""

import json
import random

import pytest
from test_tool_call import (
    ANSWER,
    ASKED,
    GOOD,
    ONE,
    RESPONSE,
    THOUGHT,
    TWO,
    bad,
    block,
    call,
    verdict,
)

from gdpo_verl.rewards import tool_text
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.rewards.tool_call import (
    ParseError,
    correctness_reward,
    format_reward,
    parse_ground_truth,
)

LONG_THOUGHT = "</think> and <tool_call> so " * 9
HELD = block(call(text="a</think>b", why="<think>"))
BOUND = block(call(text="</think> <tool_call>", more="</think>\n<response>"))


@pytest.mark.parametrize("asked", [HELD, BOUND], ids=["tag", "boundary"])
@pytest.mark.parametrize(
    ("before", "tidy"),
    [
        pytest.param("<think>why</think>\n", 1, id="newline"),
        pytest.param("<think>why</think>\n \n", 1, id="newline and blank"),
        pytest.param("<think>why</think> ", 0, id="blank"),
        pytest.param("<think>why</think>\nI call it:\n", 0, id="text"),
        pytest.param("<think>I end with </think> soon</think>\n", 1, id="end named"),
        pytest.param("<think>I end with </think>\n<tool_call>\n soon</think>\n", 1, id="on lines"),
        pytest.param(f"<think>so: </think> {ASKED} or not</think>\n", 1, id="tried out"),
        pytest.param("<think>no <response> here</think> So: ", 0, id="response named"),
        pytest.param("<think><think>twice</think></think>\n", 1, id="thought in thought"),
        pytest.param(f"<think>{LONG_THOUGHT}</think>\n", 1, id="its end any number of times"),
        pytest.param("<think>a</think> text <think>b</think>\n", 1, id="two thoughts"),
        pytest.param("why</think>\n", 0, id="opened by the prompt"),
        pytest.param("why <tool_call></think> So: ", 0, id="opened by the prompt, tag named"),
        pytest.param("", 0, id="no thought"),
        pytest.param("<think></think>\n", 0, id="an empty thought"),
        pytest.param("<think> \n </think>\n", 0, id="a blank thought"),
    ],
)
def test_a_thought_ends_where_the_call_behind_it_can_be_read(before, tidy, asked):
    assert verdict(before + asked, asked) == (tidy, 3.0, ParseError.NONE)
    assert verdict(f"{before}{asked}\n{RESPONSE}", f"{asked}\n{RESPONSE}")[:2] == (tidy, 3.0)


@pytest.mark.parametrize(
    "response",
    [
        pytest.param(f"<think>a</think> so {HELD} or</think>", id="mentioned and closed behind it"),
        pytest.param(f"a {HELD}</think>", id="opened by the prompt"),
        pytest.param(f"<think>a</think> b <think>{HELD}</think>", id="in the second"),
        pytest.param(f"<think>a</think>\n{ASKED}\n</think>\n{HELD}", id="behind another call"),
        pytest.param(f"<think>{LONG_THOUGHT}\n{HELD}</think>", id="a long thought"),
    ],
)
def test_a_call_in_a_thought_is_not_paid_whatever_it_holds(response):
    assert verdict(response, HELD)[:2] == (0.0, -3.0)


def test_a_thought_with_nothing_behind_it_ends_at_its_last_tag():
    assert format_reward("<think>after </think> comes nothing</think>", THOUGHT) == 1.0


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (f"<think>{ASKED}</think>", "NO_CALL"),
        (f"<think>\n{ASKED}", "UNCLOSED"),
        (f"{THOUGHT}\n<tool_call>\n{ONE}", "UNCLOSED"),
        (f"<think>a</think>\n{ASKED}\n</think>", "OUT_OF_ORDER"),
        (f"{THOUGHT}\n</tool_call>\n{ONE}\n<tool_call>", "OUT_OF_ORDER"),
        (f"{ASKED}\n{THOUGHT}", "OUT_OF_ORDER"),
        (f"{THOUGHT}\n{RESPONSE}\n{ASKED}", "OUT_OF_ORDER"),
        (f"{THOUGHT}\n<response>{ASKED}</response>", "OUT_OF_ORDER"),
        (f"{ANSWER}\n{RESPONSE}\n{THOUGHT}", "OUT_OF_ORDER"),
    ],
)
def test_a_call_out_of_place_earns_nothing(response, code):
    assert verdict(response) == bad(ParseError[code])


def of(value):
    return f'{{"name": "f", "parameters": {value}}}'


LINES = {
    "DUPLICATE_KEY": ['{"name": "f", "name": "f", "parameters": {}}', of('{"a": 1, "a": 1}')],
    "NOT_FINITE": [
        *(of(f'{{"a": {number}}}') for number in ("NaN", "Infinity", "-Infinity", "1e999")),
        *(of(f'{{"a": {"9" * digits}}}') for digits in (400, 5000)),
        of('"{\\"\\":NaN}"'),
    ],
    "NOT_A_CALL": [
        *('{"parameters": {}}', '{"name": 1, "parameters": {}}', '{"name": "f"}'),
        *map(of, ("null", "[1]", '"5"', '"\\"{}\\""')),
        '{"function": "f", "parameters": {}}',
        '{"name": "f", "parameters": 1, "arguments": {}}',
        *("5", "[]", "", "[[]]"),
    ],
    "NOT_JSON": [
        *map(of, ('"x"', '"{} {}"')),
        *(f"{ONE},", f"Sure: {ONE}", f"{ONE}\ndone", "<tool_call>"),
        "{'name': 'f', 'parameters': {}}",
    ],
    "TOO_DEEP": ["[" * 15_000, '{"name": "f", "arguments": "%s"}' % ("[" * 9999)],
}


@pytest.mark.parametrize("code", LINES)
def test_what_is_not_plainly_a_call_is_not_parsed(code):
    for line in LINES[code]:
        assert verdict(f"{THOUGHT}\n{block(line)}") == bad(ParseError[code]), line


def as_text(key):
    """ONE with its parameters as JSON in a text."""
    found = json.loads(ONE)
    return json.dumps({"name": found["name"], key: f" {json.dumps(found['parameters'])}\n"})


def nested(line):
    """A call as OpenAI's API gives it."""
    return f'{{"id": "call_1", "type": "function", "function": {line}}}'


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(block(ONE, call("time")), id="one a line"),
        pytest.param(block(json.dumps(json.loads(ONE), indent=2), call("time")), id="pretty"),
        pytest.param(block(f"[{ONE},\n {call('time')}]"), id="JSON list"),
        pytest.param(block(ONE.replace("parameters", "arguments"), call("time")), id="arguments"),
        pytest.param(f"{block(ONE)}\n{block(call('time'))}", id="several blocks"),
        pytest.param(block(as_text("parameters"), call("time")), id="parameters as text"),
        pytest.param(block(nested(as_text("arguments")), call("time")), id="OpenAI's, as text"),
        pytest.param(block(f"[{nested(ONE)}, {call('time')}]"), id="OpenAI's in a list"),
        pytest.param(block(ONE[:-1] + ', "id": 7}', call("time")), id="extra fields"),
    ],
)
def test_calls_are_read_as_what_they_plainly_are(body):
    answer = f"{THOUGHT}\n{body}"
    assert verdict(answer, TWO) == GOOD
    assert verdict(answer.replace("\n", "\r\n"), TWO) == GOOD
    assert verdict(answer, TWO.replace("\n", "\r\n")) == GOOD


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
        pytest.param(f"{THOUGHT}\n<response></response>", id="empty response"),
        pytest.param(f"{THOUGHT}\n<response><tool_call></response>", id="call opened in response"),
        pytest.param(f"{THOUGHT}\n<response></tool_call></response>", id="call closed in response"),
    ],
)
def test_a_part_without_content_or_with_a_call_tag_has_no_format(response):
    assert format_reward(response, RESPONSE) == 0.0
    assert correctness_reward(response, RESPONSE) == 0.0
    assert format_reward(response, RESPONSE, strict=False) == 1.0


def holding(characters):
    """An answer with this many characters from its first call tag on, and a surplus parameter."""
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
    parse_ground_truth(holding(longest))
    with pytest.raises(ValueError, match="TOO_LONG"):
        parse_ground_truth(holding(longest + 1))
    assert verdict(ANSWER, holding(2 * longest), strict=False)[2] == ParseError.GROUND_TRUTH


# Qwen, Llama 3 and 4, Phi, GPT-OSS, ChatGLM, Cohere, Gemma 2 and 4, Mistral, DeepSeek.
BARS = "im_end endoftext eot_id eom_id end_of_text eot end return call user observation"
END_TOKENS = [f"<|{name}|>" for name in [*BARS.split(), "END_OF_TURN_TOKEN"]]
END_TOKENS += ["<EOS_TOKEN>", "<end_of_turn>", "<eos>", "<turn|>", "</s>", "<｜end▁of▁sentence｜>"]


def test_the_special_tokens_of_all_common_models_are_dropped_at_the_end():
    for token in END_TOKENS:
        assert assistant_text(f" {ANSWER}{token}") == ANSWER
        assert assistant_text(f"{token} x {token}y") == f"{token} x {token}y"
    rng = random.Random(7)
    for count in (2, 5, 50):
        tokens = "".join(rng.choice((*END_TOKENS, " ", "\n")) for _ in range(count))
        assert assistant_text(f"<|im_end|> x{tokens}") == "<|im_end|> x"
        assert assistant_text(f"{tokens}</s>") == ""
    for text in ("a <|b c|>", "<|" * 30, "|>", "<||>", f"<|{'x' * 50}|>"):
        assert assistant_text(text) == text
