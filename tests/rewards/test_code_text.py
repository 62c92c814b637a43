"""The program of an answer and the tests of a row, read: by hand, on any text, on the clock."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from linear import assert_linear
from test_sandbox import PIECES

from gdpo_verl.rewards import code_text
from gdpo_verl.rewards.code import find_code

P = "print(1)\n"
BLOCK = f"```python\n{P}```"
DOCSTRING = 'def f():\n    """Use:\n    ```python\n    f()\n    ```\n    """\n'
TAGS = 'print("<think>")  # as <think> and\nprint("</think>")\n'
FOUR, TABS = "'''\n```\n'''\n", "if a:\n\t'''\n\t```\n\t'''\n"


@pytest.mark.parametrize(
    ("text", "program"),
    [
        pytest.param("```py\na\n```\n```Python3\nb\n```", "b\n", id="the last block"),
        pytest.param("```python\na\n```\n```\nout\n```", "a\n", id="labelled before unlabelled"),
        pytest.param("1. This\n   ```python\n   if a:\n     b\n   ```", "if a:\n  b\n",
                     id="in a list"),
        pytest.param("```python\na\n```</think>```python\nb\n```", "b\n", id="right behind it"),
        pytest.param("Say ```python a``` or `b`.", "", id="within a line"),
        pytest.param("<think>\nSo `</think>`.\n```python\na\n```\n", "", id="an end talked of"),
        pytest.param("```python\na\n```\n\n```python", "a\n", id="a block just begun behind"),
        pytest.param("```python\na\n``` This doubles it.", "a\n", id="words behind the fence"),
        pytest.param("```python\nx\nOk.</think>\n```python\na\n```", "a\n", id="a fence left open"),
        pytest.param("```python\n'''\n</think>\n'''\n```", "'''\n</think>\n'''\n", id="in a text"),
        pytest.param("```python\n    # a\nb\n  c\n```", "    # a\nb\n  c\n", id="a comment first"),
        pytest.param("```python\n```python\na\n```", "a\n", id="opened twice"),
        pytest.param("```python\na\n```\nNo ``<think>`` here.", "a\n", id="a span of two"),
        pytest.param(f"<answer>\n{BLOCK}</answer><|im_end|>", P, id="closing tag and token"),
        pytest.param(f"{BLOCK}</answer>\nIt prints 1.\n```\n1\n```", P, id="tag, text, output"),
        pytest.param(f"The program: ```\n{P}```", P, id="behind a colon"),
        pytest.param(f"Run: ```bash\nls\n```\n{BLOCK}", P, id="another language behind text"),
        pytest.param(f"It is ```{P[:-1]}``` or\n{BLOCK}", P, id="span of three"),
        pytest.param(f"```python\n{P[:-1]}```", P, id="closed behind the code"),
        pytest.param(f"```python\n{P}</answer>", P, id="closed by a tag alone"),
        pytest.param(f"```python\n{DOCSTRING}", DOCSTRING, id="fence in a docstring, cut off"),
        pytest.param(f"```python\n{TABS}```", TABS, id="tabs"),
        pytest.param(f"- ```python\n  {P}     ```\n  ```", P, id="indented by less than four more"),
        pytest.param(f"````python\n{FOUR}````", FOUR, id="four hold three"),
        pytest.param(f"```python\n{P}````", P, id="closed by more"),
        pytest.param(f"~~~python\n{FOUR}~~~", FOUR, id="tildes hold backticks"),
        pytest.param(f"```python\r\n{P}```\r\n", P, id="carriage returns"),
        pytest.param(f"```python\n{TAGS}```", TAGS, id="tags in the program"),
        pytest.param(f"hm\n</think>\n```python\n{TAGS}```", TAGS, id="behind the prompt's thought"),
        pytest.param(f"<think>\n```python\n{TAGS}```\n</think>\n{BLOCK}", P, id="in the thought"),
        pytest.param(f"<think>\n```python\nx\n</think>\n{BLOCK}", P, id="open fence in a thought"),
        pytest.param(f"<think>a</think> So. <think>b</think>\n{BLOCK}", P, id="two thoughts"),
        # What follows is no answer.
        pytest.param(f"<think>\n{BLOCK}\n</think>\nSo.", "", id="in a thought alone"),
        pytest.param(f"<think>a</think> <think>{BLOCK}</think>", "", id="in a second thought"),
        pytest.param(f"{BLOCK}\n</think>", "", id="in the prompt's thought"),
        pytest.param(f"Well. <think>\n{BLOCK}", "", id="thought without end behind text"),
        pytest.param(f"`<think>\n{BLOCK}", "", id="half a span"),
        pytest.param(f"<think>\n```python\n{TAGS}{P}```\n", "", id="its end in a program"),
    ],
)  # fmt: skip
def test_the_last_python_block_behind_the_thought_counts(text, program):
    assert find_code(text).rstrip() == program.rstrip()


PYTHON = ["Python 3", "python3.11", "python:main.py", "main.py", "{ .py }", "ipython3", "python-3"]
PYTHON += ['python title="a.py"', "python_code", "x-python"]


@pytest.mark.parametrize("label", [*PYTHON, "pycon", "python-repl", "c++"])
def test_a_label_names_python_in_any_spelling_or_another_language(label):
    block = "```{}\n{}\n```\n"
    found = find_code(block.format(label, "labelled") + block.format("", "plain"))
    assert found == ("labelled\n" if label in PYTHON else "plain\n")


def test_a_block_that_shows_the_functions_use_is_not_the_answer():
    shown = "```\ndef f(x): return x\n```\n```python\nprint(f(1))  # calls def f\n```"
    assert find_code(shown, "f") == "def f(x): return x\n"
    named = "```python\nf = lambda x: x\n```\n```python\nf(1)\n```"
    assert find_code(named, "f") == "f = lambda x: x\n"
    answer = "```python\ndef f(x):\n  return x\n```\nFor example:\n```python\nprint(f(1))\n```"
    assert find_code(answer, "f") == "def f(x):\n  return x\n"
    assert find_code(answer) == "print(f(1))\n"
    assert find_code(answer, "print") == "print(f(1))\n"
    better = f"{answer}\n```python\nclass Solution:\n  def f(self): 0\n```"
    assert find_code(better, "f") == "class Solution:\n  def f(self): 0\n"
    assert find_code("```python\ndef fit(): 0\n```\n```python\nx = 1\n```", "f") == "x = 1\n"


WHOLE = "def f(a, b=(1, 2)) -> int:\n    return a + 1\n"
HEADS = [
    "def f(a): ...",
    "def f(a): pass  # as above",
    "def f(a):",
    "def f(a):\n    ...\n\nprint(f(1))",
    "def f(a):\n    # the same\n",
    "def f(a):\n    return",
    "def f(a):\n    return None\n",
    'def f(a) -> int:\n    """Add one.\n\n    >>> f(1)\n    2\n    """\n    ...',
    "def f(a):\n    'Add one.'",
    "def f(a):\n    raise NotImplementedError('later')",
    "def f(\n    a: int,\n    b: tuple = (1, 2),\n) -> dict[str, int]: ...",
    "async def f(a): ...",
    "class Solution:\n    def f(self, a): ...\n\n    def g(self):\n        return 1",
    "@overload\ndef f(a: int) -> int: ...\n@overload\ndef f(a: str) -> str: ...",
    "f = f(1)",
    "f = f(1)\nprint(f)",
    "f: int = f(2)",
    "f = max(f(1), f(2))",
    "f = [f(1), f(2)]",
    "f = 3",
    "f == 3",
    "f: Callable",
]
PROGRAMS = [
    "f = lambda n: 1 if n < 2 else n * f(n - 1)",
    "f: Callable = lambda a: a",
    "def g(a):\n    return a\n\nf = g",
    "f = Solution().f",
    "f = partial(pow, 2)",
    "def f(a): return a",
    "def f(a):\n    # a note\n    return a",
    "def f(a):\n# a note\n    return a",
    "def f(a):\n    pass\n    return a",
    "def f(a):\n    return None if a else 1",
    "def f(a):\n    for _ in a: pass\n    return 1",
    "def f(a):\n    'Quoted.'\n\n    return a",
    "def f(a):\n    return a\n\ndef g(a): ...",
    "def f(d={(1, 2): 3}):\n    return d",
    "def f(a, key=lambda x: x) -> dict[str,\n    int]:\n    return {}",
    "@overload\ndef f(a: int) -> int: ...\ndef f(a):\n    return a",
    "class Solution:\n    def f(self, a):\n        return 2",
]


@pytest.mark.parametrize("label", ["python", ""])
@pytest.mark.parametrize("head", HEADS)
def test_a_functions_head_or_its_result_is_no_program(head, label):
    text = f"So:\n```python\n{WHOLE}```\nThat is:\n```{label}\n{head}\n```\n"
    assert find_code(text, "f") == WHOLE


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_later_program_counts_however_it_defines_the_function(program):
    text = f"So:\n```python\n{WHOLE}```\nBetter:\n```python\n{program}\n```\n"
    assert find_code(text, "f") == f"{program}\n"


def test_the_published_rule_takes_an_answer_without_a_fence_as_code():
    assert find_code("print(1)", strict=False) == "print(1)"
    assert find_code("<think>```python\na\n```", strict=False) == "\na\n"


@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_read(text):
    for strict in (True, False):
        assert isinstance(find_code(text, "f", strict=strict), str)


def test_integers_of_any_size_are_read():
    for digits in (3999, 4000, 4001, 12_345):
        assert code_text._integer("9" * digits) == 10**digits - 1
        assert code_text._integer("-1" + "0" * digits) == -(10**digits)
        assert code_text._integer("-" + "9" * digits) == 1 - 10**digits


WORST = {
    "fences": lambda n: "```\n" * (n // 4),
    "other languages": lambda n: "".join(f"```x{i}\n```\n" for i in range(n // 14)),
    "backticks": lambda n: "`" * n,
    "indented": lambda n: "```python\n" + "  x\n" * (n // 4),
    "one line": lambda n: "```python " + "a" * n,
    "label before a backtick": lambda n: "```" + "a" * n + "`",
    "blanks before a backtick": lambda n: "```" + " " * n + "`",
    "blank lines": lambda n: "```python\n" + " \n" * (n // 2),
    "spaces in a block": lambda n: "```python\n" + " " * n + "x",
    "spans": lambda n: "`<think>` " * (n // 10),
    "half a span": lambda n: "`<think>" * (n // 8),
    "closing fences behind code": lambda n: "```python\n" + "x``` y" * (n // 6),
    "many backticks in a block": lambda n: "```python\nx" + "`" * n + "y",
    "closing tags": lambda n: "```python\n" + "</answer> " * (n // 10) + "y",
    "opened thoughts in blocks": lambda n: "<think>\n```x\n</think>\n" * (n // 22),
    "longer and longer fences": lambda n: "".join(
        "`" * i + "\n" for i in range(3, int((2 * n) ** 0.5))
    ),
    "indented text": lambda n: " " * (n // 2) + "a" * (n // 2) + "```x`",
    "a long number": lambda n: "1" * n + "```x`",
    "labels of dots": lambda n: "```" + "." * (n // 2) + "/" * (n // 2),
    "lines of tags": lambda n: "<answer> ```python\nx\n```</answer>\n" * (n // 34),
    **{
        f"many {part!r}": lambda n, part=part: f"```python\n{part * (n // len(part))}\n```"
        for part in (
            *("def f\n", "def f(", "def f()\n", "def f(a):\n", "def f(a): ...\n", "def f(a) -> "),
            *("def f(a):\n    pass\n", "def f(a):\n'''", "f = f(1)\n", "# x\n", "pass;", "\n"),
        )
    },
    "definitions of nothing": lambda n: "```python\n" + "def" + " " * (n // 2) + "def " * (n // 8),
}


@pytest.mark.parametrize("make", WORST.values(), ids=WORST)
def test_a_megabyte_is_read_in_linear_time(make):
    assert_linear(lambda text: find_code(text, "f"), make)
