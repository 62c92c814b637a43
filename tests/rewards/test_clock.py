"""The time that reading an answer takes: linear in any text, and short up to where texts are read.

What regular expressions, or a walk from each tag to the end, would be slow on.
"""

import time

import pytest
from test_tool_call import ONE, RESPONSE, THOUGHT, block, call, calling

from gdpo_verl.rewards import gsm8k, math_form, math_length, tool_call, tool_text, tool_turns
from gdpo_verl.rewards.code import find_code
from gdpo_verl.rewards.code_same import same_lines, same_text
from gdpo_verl.rewards.judge_text import named_word


def seconds(work):
    """Processor time, the best of three: other people share the machine."""
    times = []
    for _ in range(3):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def long():
    """Seconds in which this machine, at this moment, counts to twenty million.

    No text of 1 MB may take longer.
    """
    return 100 * seconds(lambda: sum(1 for _ in range(200_000)))


def filled(unit, start="", end=""):
    """Texts of any size, of which all but the ends repeats one unit."""
    return lambda size: start + unit * ((size - len(start) - len(end)) // len(unit)) + end


def score_gsm8k(text, strict):
    return gsm8k.compute_score("", text, "9" * 4000, strict=strict)


def score_math(text, strict):
    info = {"response_length": 100}
    return math_length.compute_score("", text, "3", info, strict=strict, deadline=1.0)


def score_tool_call(text, strict):
    asked = block(*[call(city="Paris", days=days) for days in range(5)])
    return tool_call.compute_score("", text, f"{asked}\n{RESPONSE}", strict=strict)


def read_code(text, strict):
    return find_code(text, "f", strict=strict)


def score_tool_turns(text, strict):
    return tool_turns.compute_score("", text, "4", {"calls": 1, "tool_rewards": [1.0]})


def compare_outputs(text, strict):
    same = same_text if strict else same_lines
    return same(text + "1", text + "1.0")


def read_rating(text, strict):
    return named_word(text, ["1", "2", "3"], cut=strict)


ANSWER = "<think>6 times 7</think>\n<answer>"
START, END = f"{THOUGHT}\n<tool_call>\n", "\n</tool_call>"
DEFINITIONS = [
    "def f\n", "def f()\n", "def f(a):\n", "def f(a) -> ", "def f(a):\n    pass\n",
    "def f(a):\n'''",
]  # fmt: skip
WORST = {
    score_gsm8k: {
        "digits and a letter": filled("9", ANSWER, "x</answer>"),
        "groups of digits and a letter": filled(",999", ANSWER + "9", "x</answer>"),
        "spaces": filled(" ", ANSWER, "42</answer>"),
        "ends of thought": filled("</think>\n", "<think>"),
        "ends of answer": filled("</answer>", ANSWER),
        "newlines": filled("\n", "<think>6 times 7</think>", "<answer>42</answer>"),
        "boxes": filled("\\boxed{", ANSWER, "42</answer>"),
        "signs behind it": filled("%", ANSWER + "42", "x</answer>"),
        "digits, blanks and a letter": filled(" ", ANSWER + "9" * 9999, "x</answer>"),
    },
    score_math: {
        "open boxes": filled(r"\boxed{"),
        "nested boxes": lambda size: r"\boxed{" * (size // 8) + "3" + "}" * (size // 8),
        "boxed and spaces": filled(" ", r"\boxed{3}\boxed", "x"),
        "braces": filled("{", r"\boxed{"),
        "backslashes": filled("\\", r"\boxed{", "}"),
        "digits in the box": filled("9", r"\boxed{", "}"),
    },
    score_tool_call: {
        "ends of thought and newlines": filled("</think>" + "\n" * 999, "<think>"),
        "hooks": filled("</think>\n<tool_call>\n", "<think>", END),
        "responses": filled("<response>", f"{THOUGHT}\n"),
        "newlines": filled("\n", THOUGHT, f"x{START}{ONE}{END}"),
        "special tokens and a letter": filled("<|im_end|> ", "x", "x</s>"),
        "spaces between tokens": filled(" ", "x<|im_end|>", "<|im_end|>"),
        "ends before calls": filled("</think>x<tool_call>", "<think>"),
        "ends before calls that begin": filled('</think>\n<tool_call>\n{"name": "', "<think>"),
        "ends before responses": filled("</think>x<response>", "<think>"),
        "ends on lines before responses": filled("</think>\n<response>", "<think>"),
        "ends before calls in a text": filled(
            "</think>x<tool_call>", '<think></think>\n<tool_call>["'
        ),
        "ends and calls": filled(f"</think>x<tool_call>{ONE}</tool_call>", "<think>"),
        "ends and lists": filled('</think> <tool_call>[" <tool_call>[', "<think>"),
        "ends of the prompt's thought": filled("x</think>\n<tool_call>", "<tool_call>"),
        "arguments as text": filled('{"name":"f","arguments":"{}"}', "<think>x</think><tool_call>"),
    },
    read_code: {
        "other languages": lambda size: "".join(f"```x{i}\n```\n" for i in range(size // 14)),
        "backticks": filled("`"),
        "indented": filled("  x\n", "```python\n"),
        "one line": filled("a", "```python "),
        "label before a backtick": filled("a", "```", "`"),
        "blanks before a backtick": filled(" ", "```", "`"),
        "spans": filled("`<think>` "),
        "half a span": filled("`<think>"),
        "closing fences behind code": filled("x``` y", "```python\n"),
        "many backticks in a block": filled("`", "```python\nx", "y"),
        "closing tags": filled("</answer> ", "```python\n", "y"),
        "opened thoughts in blocks": filled("<think>\n```x\n</think>\n"),
        "longer and longer fences": lambda size: "".join(
            "`" * i + "\n" for i in range(3, int((2 * size) ** 0.5))
        ),
        "indented text": lambda size: " " * (size // 2) + "a" * (size // 2) + "```x`",
        "a long number": filled("1", "", "```x`"),
        "labels of dots": lambda size: "```" + "." * (size // 2) + "/" * (size // 2),
        "lines of tags": filled("<answer> ```python\nx\n```</answer>\n"),
        "definitions of nothing": lambda size: (
            "```python\n" + "def" + " " * (size // 2) + "def " * (size // 8)
        ),
        **{f"many {part!r}": filled(part, "```python\n", "\n```") for part in DEFINITIONS},
    },
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("read", "text"),
    [
        pytest.param(read, text, id=f"{read.__name__}-{name}")
        for read, texts in WORST.items()
        for name, text in texts.items()
    ],
)
def test_the_time_is_linear_in_the_text(read, text, strict):
    """A quadratic rule would need 100 times as long for 10 times the text, these need 13."""
    texts = text(1_000_000), text(100_000)
    large, small = (seconds(lambda text=text: read(text, strict)) for text in texts)
    # In a program, definitions are looked for line by line.
    limit = 2 * long() if read is read_code else long()
    assert large < limit
    assert large < 30 * small + 0.05


# A reader, and what stands before and after a text.
FRAMES = [
    (score_gsm8k, "", ""),
    (score_gsm8k, "<answer>", "</answer>"),
    (score_tool_call, "", ""),
    (score_tool_call, START, END),
    (score_tool_turns, "", ""),
    (read_code, "", ""),
    (read_code, "```python\n", ""),
    (read_code, "```python\ndef f(a):\n    ", "\n```"),
    (compare_outputs, "", ""),
    (read_rating, "", ""),
]
PARTS = [
    "(", "[", "{", '{"a":', '"', "'", '"""', "\\", "\\'", '\\"', "#", "# a\n", "#\n", ";", "f =",
    "async def f(\n", "def f(x):\n ", "def f():\n ...\n", "f = f\n", "```\n", "```python\n", "a```",
    "~~~\n", "- ", "1. ", "<", "</", "<think>", "</think>", "`</think>`", "<answer>", "</answer>",
    "<answer>4</answer>", "<tool_call>\n", "</tool_call>\n", "<response>", "<tool_response>",
    '<tool_call>\n{"name": "a", "parameters": {}}\n</tool_call>\n', "<|im_end|> ", "<|", "</s>",
    " ", "\n", " \n", "\t", "\r", "1", "1,", "1.", "4/", "-", "$", "*", "a", "a ", "é", "\ud800",
    "Rating: ", '{"rating": ', "####", "#### 1\n", "|", ":", ".", "{,}",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("read", "start", "end"), FRAMES)
def test_a_megabyte_of_any_part_is_read_in_seconds(read, start, end, strict):
    for part in PARTS:
        text = filled(part, start, end)(1_000_000)
        begun = time.process_time()
        read(text, strict)
        assert time.process_time() - begun < 3, part


@pytest.mark.parametrize(
    "unit",
    [
        "9", "9,", "0.", " ", "9 ", "=", "=9", "{", "}", "(", r"\text{", "^ ", "_ ", r"\frac", ".",
        "a", r"0.3\bar ", "9_", r"\, ", "$", r"\\", "9/9", r"9\frac99", "x+", "{,}", "√ ", "A",
        r"\text{9", "9e9", "(9)", "10^{9", "9 cm", r"9\text{ cm}", r"\text{a}", "9 apples ", r"9\$",
        r"=\text{a}=", "'", "√(", "(A) ",
    ],
)  # fmt: skip
def test_the_form_of_the_longest_box_takes_no_time(unit):
    for end in ("", "!", "9", "}"):
        answer = unit * (math_length.LONGEST // len(unit)) + end

        def look(answer=answer):
            latex = math_form.tidied(answer)
            math_form.without_units(latex, latex)
            math_form.as_asked("5, 6", answer)
            math_form.differ("1_2", answer)
            math_form.differ("CAB", answer)

        assert seconds(look) < long()


# Calls are as slow as they get at the length up to which they are read.
NEAR = '{"name": "weather", "parameters": {"city": %d, "days": 7}}'
SHARED = '{"name": "weather", "parameters": {"city": %d}}'
NESTED = '{"name": "weather", "parameters": {"city": [%s1]}}'
LONGEST = {
    "near": [NEAR % i for i in range(1600)],
    "one key": [SHARED % i for i in range(1900)],
    "shortest": ['{"name":"","parameters":{}}'] * 3500,
    "900 deep": [NESTED % (("[" * 900 + "]" * 900 + ",") * 55)],
    "no calls": ["5"] * 49_900,
    # Numbers of one hash for names, which the published rules take.
    "names of one hash": [f'{{"name":{(2**61 - 1) * (i + 1)}}}' for i in range(3000)],
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("calls", LONGEST.values(), ids=LONGEST)
def test_the_longest_calls_that_are_read_take_no_longer(calls, strict):
    answer, asked = calling(*calls), block(*[call(city=i, days=i) for i in range(20)])
    assert tool_text.LONGEST * 0.9 < len(answer) < tool_text.LONGEST
    assert seconds(lambda: tool_call.compute_score("", answer, asked, strict=strict)) < long()
