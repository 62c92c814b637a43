"""Generate the answers to a benchmark's questions: those asked once as one batch, then dialogues.

A dialogue is a function that asks the model as often as it likes. Each runs in its own thread
until it asks; when all of them have asked or ended, their questions go to the model as one batch,
in the dialogues' order. So the batches, and with them the answers, do not depend on how threads
are scheduled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from queue import SimpleQueue
from typing import Any

from gdpo_verl.lab.evaluate.sampling import Engine, prompt_tokens, question_seed
from gdpo_verl.lab.tasks.benchmark import (
    Benchmark,
    Dialogue,
    ModelAnswer,
    Question,
    Sampling,
    Stopped,
)

AT_ONCE = 256
"""Dialogues that are under way together, a thread each."""

Messages = Sequence[Mapping[str, str]]
AnswerAll = Callable[[Sequence[tuple[int, Messages]]], Sequence[ModelAnswer]]


@dataclass(frozen=True)
class Preparation:
    """A benchmark ready to be asked."""

    benchmark: Benchmark
    sampling: Sampling
    questions: Sequence[Question]
    prompts: Sequence[Sequence[int]]  # each question in tokens
    data: Mapping[str, Any]  # where the questions come from, for the record
    notes: Sequence[str]  # for the reader of the result

    @property
    def seeds(self) -> list[int]:
        """The sampling seed of each question's first answer."""
        return [question_seed(self.sampling.seed, question.name) for question in self.questions]

    @property
    def longest(self) -> int:
        """The tokens of the longest prompt and its answer."""
        context = self.benchmark.context if self.dialogues else 0
        return max(*map(len, self.prompts), context) + self.sampling.max_tokens

    @property
    def dialogues(self) -> dict[int, Dialogue]:
        """The questions that are asked in several steps, by place."""
        found = {place: self.benchmark.dialogue(each) for place, each in enumerate(self.questions)}
        return {place: dialogue for place, dialogue in found.items() if dialogue}


def generate(asked: Preparation, engine: Engine, tokenizer: Any) -> list[list[ModelAnswer]]:
    """Generate ``sampling.samples`` answers to each question."""
    seeds, dialogues = asked.seeds, asked.dialogues
    once = [place for place in range(len(asked.questions)) if place not in dialogues]
    prompts = [asked.prompts[place] for place in once]
    answers = engine.generate(prompts, [seeds[place] for place in once], asked.sampling)
    found = dict(zip(once, answers, strict=True))
    pairs = [(place, sample) for place in dialogues for sample in range(asked.sampling.samples)]
    steps: Counter[int] = Counter()
    single = replace(asked.sampling, samples=1)

    def answer_all(chats: Sequence[tuple[int, Messages]]) -> list[ModelAnswer]:
        prompts, step_seeds = [], []
        for number, messages in chats:
            place, sample = pairs[number]
            question = replace(asked.questions[place], messages=messages)
            prompts.append(prompt_tokens(tokenizer, question))
            # By the dialogue's own count of steps: rounds differ with what else is asked.
            step_seeds.append(question_seed(seeds[place] + sample, f"step {steps[number]}"))
            steps[number] += 1
        drawn = engine.generate(prompts, step_seeds, single, progress=False)
        return [each for (each,) in drawn]

    held = run_dialogues([dialogues[place] for place, _ in pairs], answer_all)
    for (place, _), answer in zip(pairs, held, strict=True):
        found.setdefault(place, []).append(answer)
    return [found[place] for place in range(len(asked.questions))]


def run_dialogues(dialogues: Sequence[Dialogue], answer_all: AnswerAll) -> list[ModelAnswer]:
    """Run every dialogue to its end, in rounds, and return their answers.

    `answer_all` answers a round: pairs of a dialogue's place and the chat that it asks with, in
    ascending order of places. What it or a dialogue raises is raised when all have ended.
    """
    events: SimpleQueue[tuple[int, Messages | None]] = SimpleQueue()
    replies: list[SimpleQueue[ModelAnswer | None]] = [SimpleQueue() for _ in dialogues]

    def run_one(place: int) -> ModelAnswer:
        def ask(messages: Messages) -> ModelAnswer:
            events.put((place, messages))
            answer = replies[place].get()
            if answer is None:
                raise Stopped("the model failed in this round")
            return answer

        try:
            return dialogues[place](ask)
        finally:
            events.put((place, None))

    upcoming = iter(range(len(dialogues)))
    futures = {}
    running: set[int] = set()
    waiting: dict[int, Messages] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            # One that waits for its answer still holds its thread.
            for place in islice(upcoming, AT_ONCE - len(running) - len(waiting)):
                running.add(place)
                futures[place] = pool.submit(run_one, place)
            if running:
                place, messages = events.get()
                running.remove(place)
                if messages is not None:
                    waiting[place] = messages
                continue
            if not waiting:
                return [futures[place].result() for place in range(len(dialogues))]
            places = sorted(waiting)
            answers: Sequence[ModelAnswer | None] = [None] * len(places)
            try:
                answers = answer_all([(place, waiting[place]) for place in places])
            finally:  # threads that wait forever would keep the process from ending
                for place, answer in zip(places, answers, strict=True):
                    replies[place].put(answer)
            running, waiting = set(waiting), {}
