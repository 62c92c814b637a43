"""One evaluation from its first check to its files."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gdpo_verl import __version__
from gdpo_verl.lab.evaluate import result
from gdpo_verl.lab.evaluate.generate import Preparation, generate
from gdpo_verl.lab.evaluate.model import find_model, weights_digest
from gdpo_verl.lab.evaluate.sampling import (
    EngineOptions,
    load_tokenizer,
    prompt_tokens,
    require_vllm,
    started,
)
from gdpo_verl.lab.evaluate.training_data import TrainingData, training_of
from gdpo_verl.lab.tasks.benchmark import (
    Benchmark,
    ModelAnswer,
    Question,
    Questions,
    Sampling,
    open_benchmark,
    questions_digest,
)


@dataclass(frozen=True)
class EvaluationRequest:
    """The model, the benchmarks and the settings of an evaluation."""

    model: str  # see `model.find_model`
    benchmarks: Sequence[str]  # their names
    data: Mapping[str, str]  # a file or another source for some; see each benchmark's `load`
    sampling: Mapping[str, Any]  # fields of `Sampling` in place of each benchmark's own
    limit: int | None  # ask only this many questions, evenly spaced
    chat_template: Path | None  # a file, in place of the model's own
    # Training rows to take the prompt's fixed texts from; by default the model's own.
    prompt_from: str | None
    allow_unprotected: bool  # run programs of the model even where nothing protects the machine
    engine: EngineOptions


def evaluate(request: EvaluationRequest, out: Path) -> dict[str, Any]:
    """Ask, judge, and write ``out`` and the answers beside it; returns what ``out`` holds.

    All that can be wrong with names, data and settings is found before the model is loaded.
    """
    began = time.monotonic()
    if out.suffix != ".json":
        raise ValueError(f"--out: expected a name that ends in .json, found {out}")
    if out.exists():
        raise ValueError(f"--out: {out} exists; remove it or choose another name")
    out.parent.mkdir(parents=True, exist_ok=True)
    # A model of the hub is fetched last: that takes long, and its training data are not known.
    model = find_model(request.model) if Path(request.model).expanduser().exists() else None
    training = training_of(model.run) if model and model.run else None
    prompt_from = [request.prompt_from] if request.prompt_from is not None else []
    if training and not prompt_from:
        prompt_from = [file for file in training.files if file not in training.missing]
    benchmarks = [
        open_benchmark(name, allow_unprotected=request.allow_unprotected, prompt_from=prompt_from)
        for name in dict.fromkeys(request.benchmarks)
    ]
    samplings = [replace(each.sampling, **request.sampling) for each in benchmarks]
    if foreign := set(request.data) - {each.name for each in benchmarks}:
        raise ValueError(f"--data: {sorted(foreign)} is not among the benchmarks asked for")
    if request.limit is not None and request.limit < 1:
        raise ValueError(f"--limit: expected at least 1 question, found {request.limit}")
    require_vllm()
    loaded = [each.load(request.data.get(each.name)) for each in benchmarks]
    model = model or find_model(request.model)
    tokenizer = load_tokenizer(model.folder, request.chat_template)
    prepared = [
        _prepare(*each, request, training, tokenizer)
        for each in zip(benchmarks, samplings, loaded, strict=True)
    ]
    longest = max(each.longest for each in prepared)
    template_sha256 = hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest()
    with model.weights() as folder, started(folder, longest, request.engine) as engine:
        digest = weights_digest(folder)  # merged shards are gone when the engine is
        answers = [generate(each, engine, tokenizer) for each in prepared]
        about = engine.about
    judged = [_judge(*each) for each in zip(prepared, answers, strict=True)]
    record = {
        "format": result.FORMAT,
        "gdpo_verl": __version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began, 1),
        "model": {
            "given": model.given,
            "folder": str(model.actor or model.folder),
            "merged_from_shards": model.actor is not None,
            "hub": model.hub,
            "revision": model.revision,
            "step": model.step,
            "trained_on": training.files if training else None,
            "weights_sha256": digest,
            "chat_template_sha256": template_sha256,
        },
        "engine": about,
        "benchmarks": {
            each.benchmark.name: _summarise(each, lines)
            for each, lines in zip(prepared, judged, strict=True)
        },
    }
    return result.write(out, record, [line for lines in judged for line in lines])


def _prepare(
    benchmark: Benchmark,
    sampling: Sampling,
    loaded: Questions,
    request: EvaluationRequest,
    training: TrainingData | None,
    tokenizer: Any,
) -> Preparation:
    name, times = Counter(question.name for question in loaded.items).most_common(1)[0]
    if times > 1:
        raise ValueError(f"--data: expected each question once, found {name!r} {times} times")
    chosen = benchmark.name in request.data
    questions, notes = _questions_not_trained_on(benchmark, loaded, training, chosen=chosen)
    total = len(questions)
    count = min(request.limit or total, total)
    # Spread, because the questions of one category stand together.
    questions = [questions[number * total // count] for number in range(count)]
    if benchmark.not_covered:
        notes.append(f"not covered: {benchmark.not_covered}")
    data = {
        "source": loaded.about,
        "available": len(loaded.items),
        "asked_sha256": questions_digest(questions),
        "limit": request.limit,
    }
    prompts = [prompt_tokens(tokenizer, question) for question in questions]
    return Preparation(benchmark, sampling, questions, prompts, data, notes)


def _questions_not_trained_on(
    benchmark: Benchmark, loaded: Questions, training: TrainingData | None, *, chosen: bool
) -> tuple[list[Question], list[str]]:
    """Leave out what was trained on, except where the user chose it; with notes on both."""
    if training is None:
        return list(loaded.items), []
    unread = "training data that cannot be read, so not checked"
    notes = [f"{unread}: {path}" for path in training.missing]
    unseen = [question for question in loaded.items if question.prompt not in training.prompts]
    seen = len(loaded.items) - len(unseen)
    if seen and chosen:
        return list(loaded.items), [*notes, f"CAUTION: {seen} questions are in the training data"]
    if seen and not unseen:
        raise ValueError(
            f"{benchmark.name}: all {seen} questions are in the model's training data; give others "
            "with --data"
        )
    if seen:
        notes.append(f"{seen} questions left out, because they are in the training data")
    return unseen, notes


def _judge(asked: Preparation, answers: Sequence[Sequence[ModelAnswer]]) -> list[result.Line]:
    """Judge each answer. In threads, because sandboxes and math-verify are processes."""
    pairs = [(place, sample) for place, given in enumerate(answers) for sample in range(len(given))]
    seeds = asked.seeds

    def line(pair: tuple[int, int]) -> result.Line:
        place, sample = pair
        question, answer = asked.questions[place], answers[place][sample]
        score = asked.benchmark.score(question, answer.text, answer.tokens)
        unasked = answer.finish == "prompt too long"
        measures = dict(score.measures)
        return {
            "benchmark": asked.benchmark.name,
            "question": question.name,
            "category": question.category,
            "sample": sample,
            "seed": seeds[place] + sample if asked.sampling.temperature > 0 else None,
            "prompt_tokens": len(asked.prompts[place]),
            "tokens": answer.tokens,
            "finish": answer.finish,
            "measures": dict.fromkeys(measures, 0.0) if unasked else measures,
            "parse_error": "NOT_ASKED" if unasked else score.error.name,
            "reason": score.reason,
            "answer": answer.text,
        }

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        judged = pool.map(line, pairs)
        return list(tqdm(judged, f"judging {asked.benchmark.name}", len(pairs), disable=None))


def _summarise(asked: Preparation, lines: Sequence[result.Line]) -> dict[str, Any]:
    pass_at = [k for k in asked.benchmark.pass_at if k <= asked.sampling.samples]
    found = result.summarise(lines, asked.benchmark.averages, pass_at)
    notes = list(asked.notes)
    if too_long := found["prompts_too_long"]:
        notes.append(
            f"{len(too_long)} prompts do not fit the model and count as wrong: "
            f"{', '.join(too_long[:3])}{' …' if len(too_long) > 3 else ''}"
        )
    return {"data": asked.data, "sampling": asdict(asked.sampling), "notes": notes, **found}
