"""Ask a model all questions of a benchmark: those asked once as one batch, then the dialogues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gdpo_verl.evaluate.dialogue import Messages, hold
from gdpo_verl.evaluate.sampling import Engine, prompt_tokens, question_seed
from gdpo_verl.tasks.benchmark import Answer, Benchmark, Dialogue, Question, Sampling


@dataclass(frozen=True)
class Task:
    """A benchmark ready to be asked: its questions, their prompts in tokens, and remarks."""

    benchmark: Benchmark
    sampling: Sampling
    questions: Sequence[Question]
    prompts: Sequence[Sequence[int]]
    data: Mapping[str, Any]
    notes: Sequence[str]

    @property
    def seeds(self) -> list[int]:
        """The sampling seed of each question's first answer."""
        return [question_seed(self.sampling.seed, question.name) for question in self.questions]

    @property
    def dialogues(self) -> dict[int, Dialogue]:
        """Those questions, by place, that are asked in several steps."""
        found = {place: self.benchmark.dialogue(each) for place, each in enumerate(self.questions)}
        return {place: dialogue for place, dialogue in found.items() if dialogue}

    @property
    def context(self) -> int:
        """Tokens that its dialogues may grow to."""
        return self.benchmark.context if self.dialogues else 0


def ask(task: Task, engine: Engine, tokenizer: Any) -> list[list[Answer]]:
    """The answers to each question: one batch of those that are asked once, then the dialogues."""
    seeds, dialogues = task.seeds, task.dialogues
    once = [place for place in range(len(task.questions)) if place not in dialogues]
    prompts = [task.prompts[place] for place in once]
    answers = engine.ask(prompts, [seeds[place] for place in once], task.sampling)
    found = dict(zip(once, answers, strict=True))
    pairs = [(place, sample) for place in dialogues for sample in range(task.sampling.samples)]
    steps: Counter[int] = Counter()
    single = replace(task.sampling, samples=1)

    def answer_all(asked: Sequence[tuple[int, Messages]]) -> list[Answer]:
        prompts, of_step = [], []
        for number, messages in asked:
            place, sample = pairs[number]
            question = replace(task.questions[place], messages=messages)
            prompts.append(prompt_tokens(tokenizer, question))
            # By the dialogue's own count of steps: rounds differ with what else is asked.
            of_step.append(question_seed(seeds[place] + sample, f"step {steps[number]}"))
            steps[number] += 1
        return [each for (each,) in engine.ask(prompts, of_step, single, progress=False)]

    held = hold([dialogues[place] for place, _ in pairs], answer_all)
    for (place, _), answer in zip(pairs, held, strict=True):
        found.setdefault(place, []).append(answer)
    return [found[place] for place in range(len(task.questions))]
