"""The result of an evaluation: a JSON file, every answer beside it, and a table.

FILE.json           model, engine, data, sampling, and the numbers of each benchmark
FILE.answers.jsonl  a line for each answer: what it is a number came from
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gdpo_verl.lab.evaluate.intervals import mean_interval, pass_at_k
from gdpo_verl.lab.files import replacing
from gdpo_verl.lab.tasks.benchmark import ACCURACY, Averages
from gdpo_verl.lab.text import columns

FORMAT = 2
ALL = "all"

Line = dict[str, Any]
WeightedCategory = tuple[float, Sequence[str]]
"""A weight, and the categories whose questions are pooled."""


def answers_path(out: Path) -> Path:
    """The file with the answers of ``out``."""
    return out.with_suffix(".answers.jsonl")


def aggregate_rows(
    categories: Iterable[str], averages: Averages
) -> dict[str, list[WeightedCategory]]:
    """List the rows of the table: each category, the averages, all.

    The weights of a row add up to 1. Parts without questions are left out, and an average of
    averages where one of them has none.
    """
    present = list(dict.fromkeys(categories))
    averaged: dict[str, list[WeightedCategory]] = {}
    for name, parts in averages.items():
        found: list[list[WeightedCategory]] = []
        for part in parts:
            if isinstance(part, str):
                found.append(averaged.get(part, []))
            elif pooled := [category for category in part if category in present]:
                found.append([(1.0, pooled)])
        if found and all(found):
            averaged[name] = [
                (weight / len(found), pooled) for each in found for weight, pooled in each
            ]
    rows: dict[str, list[WeightedCategory]] = {}
    if len(present) > 1:
        rows |= {name: [(1.0, [name])] for name in present}
    return {**rows, **averaged, ALL: [(1.0, present)]}


def question_values(lines: Sequence[Line], pass_at: Sequence[int]) -> dict[str, dict[str, float]]:
    """Average each question's answers: {measure: {question: mean}}, pass@k for k in ``pass_at``."""
    by_question: dict[str, list[Mapping[str, float]]] = defaultdict(list)
    for line in lines:
        by_question[line["question"]].append(line["measures"])
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for question, answers in by_question.items():
        sums = {name: sum(each[name] for each in answers) for name in answers[0]}
        for name, total in sums.items():
            values[name][question] = total / len(answers)
        for k in pass_at:
            right = int(sums[ACCURACY])
            values[f"pass@{k}"][question] = pass_at_k(right, len(answers), k)
    return dict(values)


def estimate_row(
    values: Mapping[str, float],
    categories: Mapping[str, str],
    parts: Sequence[WeightedCategory],
    *,
    paired: bool = False,
) -> dict[str, Any]:
    """Estimate a row from the values of all questions; `paired` as for `mean_interval`."""
    strata = [
        [value for question, value in values.items() if categories[question] in pooled]
        for _, pooled in parts
    ]
    return asdict(mean_interval(strata, [weight for weight, _ in parts], paired=paired))


def count_of(categories: Mapping[str, str], parts: Sequence[WeightedCategory]) -> int:
    """The questions of a row."""
    # A set, since an average of averages may name a category twice.
    pooled = {category for _, part in parts for category in part}
    return sum(category in pooled for category in categories.values())


def summarise(lines: Sequence[Line], averages: Averages, pass_at: Sequence[int]) -> dict[str, Any]:
    """The numbers of one benchmark from its answers.

    Args:
      lines: one for each answer; not empty.
      averages: the benchmark's.
      pass_at: the k to estimate pass@k for.
    """
    categories = {line["question"]: line["category"] for line in lines}
    values = question_values(lines, pass_at)
    groups = aggregate_rows(categories.values(), averages)
    rows: dict[str, dict[str, Any]] = {}
    for name, parts in groups.items():
        rows[name] = {"questions": count_of(categories, parts)}
        for measure, found in values.items():
            rows[name][measure] = estimate_row(found, categories, parts)
    too_long = [line["question"] for line in lines if line["finish"] == "prompt too long"]
    return {
        "questions": len(categories),
        "answers": len(lines),
        "cut_off": sum(line["finish"] == "length" for line in lines),
        "prompts_too_long": list(dict.fromkeys(too_long)),
        "mean_tokens": sum(line["tokens"] for line in lines) / len(lines),
        "parse_errors": dict(Counter(line["parse_error"] for line in lines).most_common()),
        "groups": groups,
        "pass_at": list(pass_at),
        "results": rows,
    }


def write(out: Path, record: Mapping[str, Any], lines: Sequence[Line]) -> dict[str, Any]:
    """Write both files, the answers first; returns the record as written."""
    path = answers_path(out)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    data = text.encode("utf-8", "surrogatepass")  # tokenizers may give half a surrogate pair
    answers = {"file": path.name, "sha256": hashlib.sha256(data).hexdigest()}
    written = {**record, "answers": answers}
    for target, content in ((path, data), (out, to_json(written).encode())):
        with replacing(target) as scratch:
            scratch.write_bytes(content)
    return written


def to_json(record: Mapping[str, Any]) -> str:
    """A record as its file holds it."""
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> tuple[dict[str, Any], list[Line]]:
    """Read an evaluation and its answers.

    Raises:
      FileNotFoundError, ValueError: a file is missing, none of ours, or was changed.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        valid = isinstance(record, dict) and record.get("format") == FORMAT and record["benchmarks"]
    except (ValueError, KeyError):
        valid = False
    if not valid:
        raise ValueError(
            f"{path}: expected the file that `gdpo-verl evaluate --out` wrote (format {FORMAT})"
        )
    beside = path.with_name(record["answers"]["file"])
    if not beside.is_file():
        raise FileNotFoundError(f"{path}: its answers, {beside}, are missing; keep them beside it")
    data = beside.read_bytes()
    if hashlib.sha256(data).hexdigest() != record["answers"]["sha256"]:
        raise ValueError(f"{beside}: not the answers that {path} was made from, or changed since")
    text = data.decode("utf-8", "surrogatepass")
    # Not splitlines: an answer may hold what other than JSON takes for the end of a line.
    return record, [json.loads(line) for line in text.split("\n")[:-1]]


# ------------------------------------------------------------------ the table


def to_text(record: Mapping[str, Any]) -> str:
    """The evaluation for a terminal."""
    engine = record["engine"]
    lines = [
        f"model    {model_text(record['model'])}",
        f"engine   {engine['engine']} on {engine['device']}, {engine['dtype']}",
    ]
    for name, found in record["benchmarks"].items():
        lines += ["", *_benchmark(name, found)]
    return "\n".join(lines)


def model_text(model: Mapping[str, Any]) -> str:
    """A model in one line."""
    parts = [model["given"]]
    parts += [f"at {model['revision'][:12]}"] if model.get("revision") else []
    parts += [f"step {model['step']}"] if model.get("step") is not None else []
    return f"{', '.join(parts)} (weights {model['weights_sha256'][:12]})"


def percent(found: Mapping[str, Any], *, signed: bool = False) -> str:
    """A share with its interval, ``71.5% (65.7 to 76.7)``; signed, a difference in points,
    ``+11.3 (+5.1 to +17.6)``."""
    sign, unit = ("+", "") if signed else ("", "%")
    shown = f"{100 * found['mean']:{sign}.1f}{unit}"
    if found["low"] is None:
        return f"{shown} (–)"
    return f"{shown} ({100 * found['low']:{sign}.1f} to {100 * found['high']:{sign}.1f})"


def _benchmark(name: str, found: Mapping[str, Any]) -> list[str]:
    data, sampling = found["data"], found["sampling"]
    count = sampling["samples"]
    how = "greedy"
    if sampling["temperature"]:
        how = "temperature {temperature:g}, top-p {top_p:g}, seed {seed}".format(**sampling)
    source = ", ".join(
        str(data["source"][key])
        for key in ("file", "path", "hub", "generated", "package", "prompt")
        if data["source"].get(key)
    )
    measures = [key for key in found["results"][ALL] if key != "questions"]
    table = [
        (row, str(cells["questions"]), *(percent(cells[measure]) for measure in measures))
        for row, cells in found["results"].items()
    ]
    lines = [
        f"{name}: {count} answer{'s' if count > 1 else ''} each, {how}, at most "
        f"{sampling['max_tokens']} tokens",
        f"  {found['questions']} of {data['available']} questions from {source}",
        *[f"  {note}" for note in found["notes"]],
        *[f"  {line}" for line in columns([("", "questions", *measures), *table])],
        f"  cut off at the limit: {found['cut_off']} of {found['answers']} answers; "
        f"{found['mean_tokens']:.1f} tokens on average",
    ]
    errors = {code: count for code, count in found["parse_errors"].items() if code != "NONE"}
    if errors:
        counts = ", ".join(f"{code} {count}" for code, count in errors.items())
        lines.append(f"  could not be read, or met with an error: {counts}")
    return lines
