"""Compare two models on the same questions, by the difference of each question.

First the responses to each question are averaged, then the evaluations of a side, for example those
of several training seeds. The interval of the difference is over questions. The spread over the
evaluations of a side is shown separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gdpo_verl.lab.evaluate import answers, result
from gdpo_verl.lab.evaluate.answers import Evaluation
from gdpo_verl.lab.rundir.run import select

FEW = 30
"""With fewer questions than this, a bootstrap interval tends to be too narrow."""

MEANING = (
    "The intervals (95%) are over questions: they say how the difference would vary with other "
    "questions of this kind. They do not cover the chance of training: another seed gives another "
    "model."
)

# Settings that may explain a difference in addition to the models.
SETTINGS = (
    "actor_rollout_ref.rollout.val_kwargs",
    "actor_rollout_ref.rollout.dtype",
    "actor_rollout_ref.rollout.multi_turn",
    "actor_rollout_ref.rollout.max_model_len",
    "actor_rollout_ref.model.custom_chat_template",
    "data.max_prompt_length",
    "data.max_response_length",
    "data.apply_chat_template_kwargs",
    "reward.custom_reward_function",
    "reward.reward_model.model_path",
)


def compare(
    side_a: Sequence[Path], side_b: Sequence[Path], *, trust: bool = False
) -> dict[str, Any]:
    """Compare one or several evaluations with one or several others.

    Args:
      side_a: validation dumps, or directories that contain one (see `answers.find_dump`). They
        belong to models of one kind, for example to training runs that differ only by seed.
      side_b: the same for the models of the other kind.
      trust: see `answers.read`.

    Returns:
      the comparison as values of JSON. ``rows`` has the estimates of A, B and A - B for each
      measure, and ``each_evaluation`` has the means over all questions.

    Raises:
      ValueError: a file is no dump, or the evaluations have different questions.
      FileNotFoundError: a file is missing.
    """
    paths = [*side_a, *side_b]
    evaluations = [answers.read(path, trust=trust) for path in paths]
    if not all(evaluation.questions for evaluation in evaluations):
        # If the data of one evaluation are unknown, questions are matched by their dumped texts.
        evaluations = [answers.read(path, by_text=True, trust=trust) for path in paths]
    _check_questions(evaluations)
    evaluations_a = evaluations[: len(side_a)]
    evaluations_b = evaluations[len(side_a) :]
    compared = _compare_rows(evaluations_a, evaluations_b)
    notes = list(_differing_settings(evaluations))
    few = [row for row, cells in compared["rows"].items() if cells["questions"] < FEW]
    if few:
        notes.append(f"fewer than {FEW} questions, intervals are rough: {few}")
    return {
        "a": [str(evaluation.dump) for evaluation in evaluations_a],
        "b": [str(evaluation.dump) for evaluation in evaluations_b],
        "difference": "a - b",
        "meaning": MEANING,
        "notes": notes,
        **compared,
    }


def _check_questions(evaluations: Sequence[Evaluation]) -> None:
    """Raise ValueError unless all evaluations have the same questions."""
    first = evaluations[0]
    questions = set(first.sources)
    for other in evaluations[1:]:
        others = set(other.sources)
        if others != questions:
            raise ValueError(
                "compare: expected responses to the same questions, found "
                f"{len(questions - others)} of {len(questions)} that are only in {first.dump}, "
                f"and {len(others - questions)} of {len(others)} that are only in {other.dump}. "
                "Evaluate both with the same --data and --limit, and the same prompts"
            )


def _compare_rows(side_a: Sequence[Evaluation], side_b: Sequence[Evaluation]) -> dict[str, Any]:
    sources = side_a[0].sources
    parts_of_rows = result.aggregate_rows(sources.values())
    rows: dict[str, dict[str, Any]] = {}
    for row, parts in parts_of_rows.items():
        rows[row] = {"questions": result.count_of(sources, parts)}
    of_evaluations = [result.question_values(each) for each in (*side_a, *side_b)]
    each_evaluation = {}
    for measure in of_evaluations[0]:
        # A measure that one evaluation lacks is left out, such as pass@k of fewer than k responses.
        values = [measures.get(measure, {}) for measures in of_evaluations]
        shared = set.intersection(*map(set, values))
        questions = [question for question in values[0] if question in shared]
        if not questions:
            continue
        values_a = values[: len(side_a)]
        values_b = values[len(side_a) :]
        each_evaluation[measure] = {
            "a": _means_over(questions, values_a),
            "b": _means_over(questions, values_b),
        }
        a = _mean_evaluation(questions, values_a)
        b = _mean_evaluation(questions, values_b)
        difference = {question: a[question] - b[question] for question in questions}
        for row, parts in parts_of_rows.items():
            estimate = result.estimate_row(a, sources, parts)
            rows[row][measure] = estimate and {
                "a": estimate,
                "b": result.estimate_row(b, sources, parts),
                "difference": result.estimate_row(difference, sources, parts, paired=True),
            }
    return {"rows": rows, "each_evaluation": each_evaluation}


def _means_over(questions: Sequence[str], values: Sequence[Mapping[str, float]]) -> list[float]:
    """Return the mean of each evaluation over the questions."""
    means = []
    for of_questions in values:
        means.append(fmean(of_questions[question] for question in questions))
    return means


def _mean_evaluation(
    questions: Sequence[str], values: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Return the mean of each question over the evaluations of a side."""
    means = {}
    for question in questions:
        means[question] = fmean(of_questions[question] for of_questions in values)
    return means


def _differing_settings(evaluations: Sequence[Evaluation]) -> Iterator[str]:
    """Yield a caution for each setting that may explain a difference in addition to the models."""
    unknown = [str(evaluation.dump) for evaluation in evaluations if not evaluation.config]
    if unknown:
        yield f"no config.yaml, so settings are not compared: {', '.join(unknown)}"
    configs = [evaluation.config for evaluation in evaluations if evaluation.config]
    for key in SETTINGS:
        values = [str(select(config, key)) for config in configs]
        distinct = list(dict.fromkeys(values))
        if len(distinct) > 1:
            yield f"CAUTION: not the same {key}: {', '.join(distinct)}"


def _texts(cell: Mapping[str, Any]) -> list[str]:
    difference = result.estimate_text(cell["difference"], signed=True)
    return [result.estimate_text(cell["a"]), result.estimate_text(cell["b"]), difference]


def to_text(comparison: Mapping[str, Any]) -> str:
    """Format the comparison for a terminal."""
    lines = [f"{side.upper()}   {dump}" for side in "ab" for dump in comparison[side]]
    lines += ["", *result.table(comparison["rows"], ["A", "B", "A − B"], _texts)]
    if any(len(comparison[side]) > 1 for side in "ab"):
        lines.append("each evaluation, over all questions:")
        for measure, of_sides in comparison["each_evaluation"].items():
            for side, means in of_sides.items():
                shown = ", ".join(f"{mean:.3f}" for mean in means)
                if len(means) > 1:
                    shown += f"; standard deviation {stdev(means):.3f}"
                lines.append(f"  {measure}, {side.upper()}: {shown}")
    return "\n".join([*lines, "", MEANING, *comparison["notes"]])
