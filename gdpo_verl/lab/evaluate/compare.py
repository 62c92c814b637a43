"""Two models on the same questions: the difference, question by question, with its interval.

The responses to each question are averaged first, then the evaluations of a side (for example of
several training seeds), and the interval is over questions. The spread over the evaluations of a
side is shown separately.
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
"""Questions below which a bootstrap interval tends to be too narrow."""

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
      side_a: validation dumps or directories with one, see `answers.find_dump`, of one kind of
        model: training runs that differ by seed.
      side_b: the same of the other kind.
      trust: see `answers.read`.

    Returns:
      the comparison as JSON can hold it: ``rows``, with the estimates of A, B and A - B for each
      measure, and in ``each_evaluation`` the means over all questions.

    Raises:
      ValueError: a file is no dump, or they were not asked the same questions.
      FileNotFoundError: a file is missing.
    """
    paths = [*side_a, *side_b]
    everyone = [answers.read(path, trust=trust) for path in paths]
    if not all(each.questions for each in everyone):
        # Where the data of one evaluation are unknown, only the texts of the dumps are compared.
        everyone = [answers.read(path, by_text=True, trust=trust) for path in paths]
    _check_questions(everyone)
    evaluations_a = everyone[: len(side_a)]
    evaluations_b = everyone[len(side_a) :]
    compared = _compare_rows(evaluations_a, evaluations_b)
    notes = list(_differing_settings(everyone))
    few = [row for row, cells in compared["rows"].items() if cells["questions"] < FEW]
    if few:
        notes.append(f"fewer than {FEW} questions, intervals are rough: {few}")
    return {
        "a": [str(each.dump) for each in evaluations_a],
        "b": [str(each.dump) for each in evaluations_b],
        "difference": "a - b",
        "meaning": MEANING,
        "notes": notes,
        **compared,
    }


def _check_questions(everyone: Sequence[Evaluation]) -> None:
    first = everyone[0]
    wanted = set(first.sources)
    for other in everyone[1:]:
        found = set(other.sources)
        if found != wanted:
            raise ValueError(
                f"compare: expected responses to the same questions, found {len(wanted - found)} "
                f"of {len(wanted)} that are only in {first.dump}, and {len(found - wanted)} of "
                f"{len(found)} that are only in {other.dump}. Evaluate both with the same --data "
                "and --limit, and the same prompts"
            )


def _compare_rows(side_a: Sequence[Evaluation], side_b: Sequence[Evaluation]) -> dict[str, Any]:
    sources = side_a[0].sources
    parts_of_rows = result.aggregate_rows(sources.values())
    rows: dict[str, dict[str, Any]] = {}
    for row, parts in parts_of_rows.items():
        rows[row] = {"questions": result.count_of(sources, parts)}
    everyone = [result.question_values(each) for each in (*side_a, *side_b)]
    each_evaluation = {}
    for measure in everyone[0]:
        # None of a measure that one of them lacks, such as pass@k of fewer than k responses.
        values = [each.get(measure, {}) for each in everyone]
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


def _differing_settings(everyone: Sequence[Evaluation]) -> Iterator[str]:
    """List the settings that may explain a difference in addition to the models."""
    unknown = [str(each.dump) for each in everyone if not each.config]
    if unknown:
        yield f"no config.yaml, so settings are not compared: {', '.join(unknown)}"
    known = [each.config for each in everyone if each.config]
    for key in SETTINGS:
        found = [str(select(config, key)) for config in known]
        distinct = list(dict.fromkeys(found))
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
