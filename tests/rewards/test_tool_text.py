"""The reading of an answer with tool calls, at its limits and up to its special tokens."""

import random

import pytest
from test_tool_call import ANSWER, GOOD, ONE, THOUGHT, bad, block, verdict

from gdpo_verl.rewards import tool_text
from gdpo_verl.rewards.thought import assistant_text
from gdpo_verl.rewards.tool_call import ParseError, parse_ground_truth

DEEP = ["[" * 15_000, '{"name": "f", "arguments": "%s"}' % ("[" * 9999)]


@pytest.mark.parametrize("line", DEEP)
def test_what_is_nested_too_deep_is_not_parsed(line):
    assert verdict(f"{THOUGHT}\n{block(line)}") == bad(ParseError.TOO_DEEP)


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
