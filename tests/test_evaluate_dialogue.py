"""Dialogues are held in rounds that do not depend on how threads are scheduled."""

from __future__ import annotations

import time

import pytest

from gdpo_verl.lab.evaluate import generate
from gdpo_verl.lab.evaluate.generate import Preparation, run_dialogues
from gdpo_verl.lab.tasks.benchmark import ModelAnswer, Question, Sampling, open_benchmark


def counting(steps, *, pause=0.0):
    """A dialogue that asks `steps` times; its answer is all that it was told."""

    def talk(say):
        told = []
        for step in range(steps):
            time.sleep(pause)
            told.append(say([{"role": "user", "content": f"{step}"}]).text)
        return ModelAnswer(" ".join(told), steps, "stop")

    return talk


def echo(rounds):
    def answer_all(asked):
        rounds.append([place for place, _ in asked])
        return [ModelAnswer(f"{place}:{chat[0]['content']}", 1, "stop") for place, chat in asked]

    return answer_all


def test_each_round_asks_all_that_are_under_way_in_their_order(monkeypatch):
    rounds = []
    talks = [counting(2, pause=0.05), counting(0), counting(3), counting(1)]
    held = run_dialogues(talks, echo(rounds))
    assert rounds == [[0, 2, 3], [0, 2], [2]]
    assert [each.text for each in held] == ["0:0 0:1", "", "2:0 2:1 2:2", "3:0"]
    assert run_dialogues([], echo(rounds)) == []
    # More dialogues than threads follow as others end.
    monkeypatch.setattr(generate, "AT_ONCE", 2)
    rounds.clear()
    held = run_dialogues([counting(2), counting(1), counting(2), counting(0)], echo(rounds))
    assert rounds == [[0, 1], [0, 2], [2]]
    assert [each.tokens for each in held] == [2, 1, 2, 0]


def test_a_failure_of_the_model_or_of_a_dialogue_is_raised_when_the_others_have_ended():
    def no_memory(asked):
        raise MemoryError("of the device")

    with pytest.raises(MemoryError, match="of the device"):
        run_dialogues([counting(2)] * 5, no_memory)

    def fails(say):
        say([{"role": "user", "content": "x"}])
        raise ZeroDivisionError("in the simulated API")

    rounds = []
    with pytest.raises(ZeroDivisionError, match="simulated API"):
        run_dialogues([fails, counting(3)], echo(rounds))
    assert rounds == [[0, 1], [1], [1]]


# ------------------------------------------------------------------ beside questions asked once


class Tokenizer:
    def apply_chat_template(self, messages, **_):
        return [len(each["content"]) for each in messages]


class Engine:
    """Answers with its seed, so that a test sees which was used."""

    def __init__(self):
        self.batches = []

    def generate(self, prompts, seeds, sampling, *, progress=True):
        self.batches.append(len(prompts))
        return [
            [ModelAnswer(f"{seed + sample}", 1, "stop") for sample in range(sampling.samples)]
            for seed in seeds
        ]


def test_every_sample_of_a_dialogue_is_held_and_has_seeds_of_its_own(monkeypatch):
    benchmark = open_benchmark("toolbox")
    chat = [{"role": "user", "content": "?"}]
    questions = [Question(name, "x", chat, "") for name in ("once", "twice", "once more")]
    monkeypatch.setattr(
        benchmark, "dialogue", lambda each: counting(2) if each.name == "twice" else None
    )
    sampling = Sampling(temperature=1, top_p=1, max_tokens=8, samples=3)
    engine = Engine()
    task = Preparation(benchmark, sampling, questions, [[1]] * 3, {}, [])
    once, twice, more = generate.generate(task, engine, Tokenizer())
    assert engine.batches == [2, 3, 3]
    assert [len(answers) for answers in (once, twice, more)] == [3, 3, 3]
    seeds = [seed for answer in twice for seed in answer.text.split()]
    assert len(set(seeds)) == 6
    again = generate.generate(task, Engine(), Tokenizer())
    assert again == [once, twice, more]
