"""Run an evaluation, from its checks to its files: verl's validation without a training step."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gdpo_verl.config.parsing import plain
from gdpo_verl.lab.evaluate import answers, result
from gdpo_verl.lab.evaluate.model import Model, check_tensors, find_model
from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.overrides import quoted
from gdpo_verl.lab.run import launch
from gdpo_verl.lab.rundir.layout import CONFIG, DONE, VALIDATION
from gdpo_verl.lab.rundir.run import config_of, read_launch
from gdpo_verl.lab.rundir.trust import check_no_foreign_code, foreign_code
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.lab.tasks.rows import chat_text
from gdpo_verl.lab.text import printable

NUMBERS = "evaluation.json"
_BEGUN = "evaluates"  # the key of launch.json that marks the directory of an evaluation
_NAMED = 5  # the largest number of questions that a note names

# With these settings verl's default trainer validates once, and ends. It loads neither training
# data nor a second copy of the weights, which only a training step needs.
NO_STEP = (
    "trainer.val_only=true",
    "trainer.val_before_train=true",
    "trainer.use_v1=true",
    "trainer.v1.trainer_mode=sync",
    "trainer.total_training_steps=1",  # schedules need a length
    "trainer.logger=[console,file]",
    "actor_rollout_ref.hybrid_engine=true",
    "actor_rollout_ref.actor.use_kl_loss=false",
    "algorithm.use_kl_in_reward=false",
    "data.train_files=${data.val_files}",
    "data.train_max_samples=-1",
    "data.validation_shuffle=false",
)


@dataclass(frozen=True)
class EvaluationRequest:
    """The model, the questions and the settings of an evaluation."""

    model: str  # see `model.find_model`
    recipe: str | None = None  # by default the run's own configuration
    config_dir: Path | None = None  # the folder of a recipe that is not part of gdpo-verl
    data: Sequence[str] = ()  # files that replace data.val_files
    samples: int | None = None  # the number of responses to each question
    temperature: float | None = None  # 0 is greedy
    limit: int | None = None  # the number of questions, drawn from all questions
    overrides: Sequence[str] = ()  # overrides of Hydra
    trust: bool = False  # run foreign code that the run's configuration or checkpoint contains


def evaluate(request: EvaluationRequest, out: Path) -> dict[str, Any]:
    """Sample and score responses to the questions with verl.

    Args:
      request: the model, the questions and the settings.
      out: a new directory for the responses and the numbers.

    Returns:
      the numbers, which are also written to evaluation.json in ``out``.

    Raises:
      ValueError, FileNotFoundError, ConnectionError: the model, the data or a setting is wrong.
      LaunchError: verl failed; the message gives the reason and the path of the log.
    """
    _check_out(out)
    for option, number in (("--samples", request.samples), ("--limit", request.limit)):
        if number is not None and number < 1:
            raise ValueError(f"{option}: expected at least 1, found {number}")
    if request.config_dir and request.recipe is None:
        raise ValueError("--config-dir: expected --recipe as well, found none")
    model = find_model(request.model)
    with tempfile.TemporaryDirectory() as folder:
        recipe, config_dir = _configuration(request, model, Path(folder))
        overrides = [*_overrides(request, model), *_given_overrides(request)]
        config, complete = launch.composed(recipe, out, overrides, config_dir)
        if request.recipe is None and not request.trust:
            remedy = "add --trust; otherwise name a recipe with --recipe"
            check_no_foreign_code(plain(config), f"{model.run}/{CONFIG}", remedy)
        if model.checkpoint and not request.trust:
            check_tensors(model.checkpoint)
        launch.print_status(f"evaluate loads the weights in {model.checkpoint or model.folder}")
        for key, text in foreign_code(plain(config)).items():
            launch.print_status(printable(f"evaluate loads {key}: {text}"))
        _check_sampling(config)
        _check_workers(config, model)
        questions = answers.questions_of(config)
        number_asked = _count(questions, config)
        rollout = config.actor_rollout_ref.rollout
        launch.print_status(
            f"evaluate asks {number_asked or 'all'} × {rollout.val_kwargs.n} questions"
        )
        launch.answer(
            config,
            launch.command(recipe, out, complete, config_dir),
            out,
            label=request.model,
            about={_BEGUN: model.name, "recipe": request.recipe},
        )
    evaluation = answers.read(out / VALIDATION / f"{model.step or 0}.jsonl", trust=True)
    notes = [
        *_seen(questions, evaluation.sources, _prompts_of_training(model)),
        *_unanswered(questions, evaluation.sources, number_asked),
    ]
    numbers = {
        "model": model.name,
        "sampling": OmegaConf.to_container(rollout.val_kwargs, resolve=True),
        "max_response_length": config.data.max_response_length,
        "notes": notes,
        **result.summarise(evaluation),
    }
    write_text(out / NUMBERS, result.to_json(numbers))
    return numbers


def _count(questions: Sequence[Example], config: DictConfig) -> int | None:
    """Return the number of questions that verl asks; None if their files cannot be read here."""
    most = int(config.data.get("val_max_samples") or -1)
    if not questions:
        return None
    return min(len(questions), most) if most > 0 else len(questions)


def to_text(numbers: dict[str, Any]) -> str:
    """Format an evaluation for a terminal."""
    sampling = numbers["sampling"]
    how = "greedy"
    if sampling["temperature"]:
        how = "temperature {temperature:g}, top-p {top_p:g}".format(**sampling)
    count = numbers["samples"]
    each = "1 response each" if count == 1 else f"{count} responses each"
    lines = [
        f"{numbers['model']}: {numbers['questions']} questions, {each}, {how}, at most "
        f"{numbers['max_response_length']} tokens",
        *numbers["notes"],
        result.to_text(numbers),
    ]
    return "\n".join(lines)


def _check_out(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"--out: expected a new directory, found the file {out}")
    # An evaluation that did not finish may be started again in its directory.
    begun = _BEGUN in read_launch(out)
    if any(out.iterdir()) and (not begun or (out / DONE).exists()):
        raise ValueError(
            f"--out: expected a new directory, found {out}, which exists. Remove it or choose "
            "another name"
        )


def _configuration(
    request: EvaluationRequest, model: Model, folder: Path
) -> tuple[str, Path | None]:
    """Return the recipe to compose, and its folder.

    Without a recipe it is the run's own configuration. This is copied to `folder`, because Hydra
    would prefer other files of the run directory to those of gdpo-verl. The sections `hydra` and
    `defaults` are removed, because Hydra itself executes them.
    """
    if request.recipe is not None:
        return request.recipe, request.config_dir
    if model.run is None:
        raise ValueError(
            f"--recipe: expected a recipe, because {request.model} is not a run of `gdpo-verl "
            "train` with its own configuration. Name the recipe whose questions and reward "
            "function are used, for example --recipe toolbox/gdpo"
        )
    config = config_of(model.run)
    for section in ("hydra", "defaults"):
        config.pop(section, None)
    OmegaConf.save(config, folder / CONFIG)
    return "config", folder


def _given_overrides(request: EvaluationRequest) -> Iterator[str]:
    """Yield the user's overrides, adapted to a run's configuration if there is no recipe."""
    for override in request.overrides:
        # A run's configuration has no `hardware` that Hydra could replace, so this is added.
        added = request.recipe is None and override.startswith("hardware=")
        yield f"+{override}" if added else override


def _overrides(request: EvaluationRequest, model: Model) -> Iterator[str]:
    """Yield the overrides for the model, the questions and the sampling."""
    yield from NO_STEP
    if model.folder is not None:
        yield f"actor_rollout_ref.model.path={quoted(model.folder)}"
        yield "trainer.resume_mode=disable"
    if model.checkpoint is not None:
        # The checkpoint contains only weights. The architecture comes from the model with which the
        # run began.
        path = "actor_rollout_ref.model.path"
        began_with = OmegaConf.select(config_of(model.run), path)
        if began_with is not None:
            yield f"{path}={quoted(began_with)}"
        yield "trainer.resume_mode=resume_path"
        yield f"trainer.resume_from_path={quoted(model.checkpoint)}"
        yield "actor_rollout_ref.actor.checkpoint.load_contents=[model]"
    if request.data:
        yield f"data.val_files=[{','.join(map(quoted, request.data))}]"
    sampling = "actor_rollout_ref.rollout.val_kwargs"
    if request.samples is not None:
        yield f"{sampling}.n={request.samples}"
    if request.temperature is not None:
        yield f"{sampling}.temperature={request.temperature}"
        yield f"{sampling}.do_sample={str(request.temperature > 0).lower()}"
    if request.limit is not None:
        # The questions are drawn, because the file lists one data source after the other. The fixed
        # seed draws the same questions each time.
        yield f"data.val_max_samples={request.limit}"
        yield "data.shuffle=true"
        yield "data.seed=0"


def _check_sampling(config: DictConfig) -> None:
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    if sampling.n > 1 and not sampling.temperature:
        raise ValueError(
            "actor_rollout_ref.rollout.val_kwargs.n: expected 1 at temperature 0, where all "
            f"responses are the same, found {sampling.n}. Set --temperature as well, or --samples 1"
        )


def _check_workers(config: DictConfig, model: Model) -> None:
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    if model.workers not in (None, devices):
        raise ValueError(
            f"trainer.nnodes × trainer.n_gpus_per_node: {model.name} was written by "
            f"{model.workers} workers, and verl loads it with as many, found {devices}. Set them, "
            "or merge it with `python -m verl.model_merger merge --backend fsdp --local_dir "
            f"{model.checkpoint}/actor --target_dir DIR` and evaluate DIR with --recipe"
        )


def _prompts_of_training(model: Model) -> set[str]:
    """Return the prompts on which a run was trained, each as one text; empty if unknown."""
    rows = answers.questions_of(config_of(model.run), "data.train_files")
    return {chat_text(row.messages) for row in rows}


def _seen(
    questions: Sequence[Example], asked: Mapping[str, str], trained_on: set[str]
) -> Iterator[str]:
    """Yield a caution that names questions of the training data: they do not measure the model."""
    seen = [
        question.place
        for question in questions
        if question.key in asked and chat_text(question.messages) in trained_on
    ]
    if seen:
        yield f"CAUTION: {len(seen)} questions are in the training data: {_some(seen)}"


def _unanswered(
    questions: Sequence[Example], answered: Mapping[str, str], asked: int | None
) -> Iterator[str]:
    """Yield a caution that names the questions without a response."""
    distinct = {question.key: question.place for question in questions}
    missing = [place for key, place in distinct.items() if key not in answered]
    if asked is None or asked < len(questions) or not missing:
        return
    yield (
        f"CAUTION: {len(missing)} questions have no response and count in no number: "
        f"{_some(missing)}. Their prompts are longer than data.max_prompt_length, or their "
        "responses failed (train.log)"
    )


def _some(places: Sequence[str]) -> str:
    shown = ", ".join(places[:_NAMED])
    return f"{shown} …" if len(places) > _NAMED else shown
