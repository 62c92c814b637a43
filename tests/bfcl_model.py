"""A model that knows BFCL's answers, and one that says what it is told."""

from __future__ import annotations

import ast
import json
from collections import defaultdict

from gdpo_verl.evaluate.generate import run_dialogues
from gdpo_verl.tasks import bfcl as bfcl_data
from gdpo_verl.tasks import prompt
from gdpo_verl.tasks.benchmark import ModelAnswer
from gdpo_verl.tasks.bfcl.benchmark import SIMPLE

DONE = "<think> done </think>\n<response> done </response>"


def first(benchmark, category):
    return next(each for each in benchmark.questions if each.category == category)


def calling(*calls):
    lines = [json.dumps({"name": name, "parameters": parameters}) for name, parameters in calls]
    block = "\n".join(["<tool_call>", *lines, "</tool_call>"])
    return f"<think> call </think>\n{block}"


def right_answer(question):
    """What a perfect model says to a question that is asked once."""
    if question.category == "live_relevance":
        return calling(("anything", {}))
    if "irrelevance" in question.category:
        return DONE
    calls = bfcl_data.first_answer(question.truth["accepted"])
    if question.category in SIMPLE[1:]:  # Java and JavaScript want every value as a text
        calls = [(name, {k: as_text(v) for k, v in given.items()}) for name, given in calls]
    return prompt.reference_answer("use it", calls)


def as_text(value):
    return value if isinstance(value, str) else json.dumps(value)


def right_steps(question):
    """What a perfect model says in a dialogue: the calls of each turn at once, then the end."""
    entry = question.truth["entry"]
    held_back = [doc for docs in entry.get("missed_function", {}).values() for doc in docs]
    documents = {doc["name"]: doc for doc in [*entry["function"], *held_back]}
    for turn in question.truth["accepted"]:
        if turn:
            yield calling(*[named(each, documents) for each in turn])
        yield DONE


def named(expression, documents):
    """``f(1, b=2)`` as a name and parameters."""
    call = ast.parse(expression, mode="eval").body
    names = documents[call.func.id]["parameters"]["properties"]
    given = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    given |= {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    return call.func.id, given


def held(benchmark, questions, steps):
    """The answers of dialogues in which ``steps`` of each question is said."""
    scripts = [iter(each) for each in steps]
    chats = defaultdict(list)

    def answer_all(asked):
        for place, messages in asked:
            chats[place].append(messages)
        return [ModelAnswer(next(scripts[place]), 5, "stop") for place, _ in asked]

    answers = run_dialogues([benchmark.dialogue(question) for question in questions], answer_all)
    return answers, chats
