"""The answers to be scored: given in a file or a column, or made of the ground truths."""

from __future__ import annotations

import json
import random
import string
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gdpo_verl.rewards.thought import THINK
from gdpo_verl.rundir.row_key import uid_of

GROUND_TRUTH = "ground truth"
PHRASED = "as an answer"
"""The ground truth in the tags and the box in which answers are often asked for."""
BOXED = "in a box"
OTHER, OTHER_PHRASED = "another row's", "another row's, as an answer"
OTHER_BOXED = "another row's, in a box"
HALF, RANDOM, EMPTY = "cut in half", "random text", "empty"
RANDOM_CHARACTERS = 200
_ALPHABET = string.printable + "äßéπ≤漢字🙂\u200b"


@dataclass(frozen=True)
class Answer:
    """One answer to one row.

    Attributes:
      row: the row's number in data.train_files, from 0, or the name of one of others.
      kind: where the answer comes from, in words.
      text: the answer.
      group: answers with the same group share a prompt's rollout.
      token_ids: its tokens where they are known, the end token included.
      made_up: whether nobody gave it and no model wrote it.
    """

    row: Any
    kind: str
    text: str
    group: Hashable
    token_ids: tuple[int, ...] | None = None
    made_up: bool = False


def spread(total: int, count: int) -> list[int]:
    """`count` row numbers spread evenly over `total` rows, or all of them.

    >>> spread(10, 3), spread(2, 3)
    ([0, 3, 6], [0, 1])
    """
    count = min(count, total)
    return [number * total // count for number in range(count)]


def ground_truth(row: Mapping[str, Any]) -> str | None:
    """The row's ground truth as text, JSON where it is not text; None without one."""
    truth = (row.get("reward_model") or {}).get("ground_truth")
    if truth is None or isinstance(truth, str):
        return truth
    return json.dumps(truth, default=str, sort_keys=True)


def made_up(rows: Mapping[Any, Mapping[str, Any]]) -> list[Answer]:
    """For each row: its ground truth and another row's, bare, phrased and boxed; half; random;
    nothing."""
    rng = random.Random(0)
    truths = {number: ground_truth(row) for number, row in rows.items()}
    numbers = list(rows)
    answers = []
    for place, number in enumerate(numbers):
        truth = truths[number]
        following = numbers[place + 1 :] + numbers[:place]
        others = (truths[other] for other in following)
        other = next((other for other in others if other not in (None, truth)), None)
        texts = {
            GROUND_TRUTH: truth,
            PHRASED: None if truth is None else phrased(truth),
            BOXED: None if truth is None else boxed(truth),
            OTHER: other,
            OTHER_PHRASED: None if other is None else phrased(other),
            OTHER_BOXED: None if other is None else boxed(other),
            HALF: None if truth is None else truth[: len(truth) // 2],
            RANDOM: "".join(rng.choices(_ALPHABET, k=RANDOM_CHARACTERS)),
            EMPTY: "",
        }
        answers += [
            Answer(number, kind, text, number, made_up=True)
            for kind, text in texts.items()
            if text is not None
        ]
    return answers


def inside_thought(answer: Answer) -> Answer:
    """The answer as a policy gives it whose prompt opens the thought: without that tag."""
    return replace(answer, text=answer.text.removeprefix(THINK).lstrip("\n"))


def phrased(truth: str) -> str:
    """The truth between answer tags, behind a thought.

    >>> phrased("42")
    '<think>It follows.</think>\\n<answer>42</answer>'
    """
    return f"<think>It follows.</think>\n<answer>{truth}</answer>"


def boxed(truth: str) -> str:
    """The truth in LaTeX's box, behind a thought.

    >>> boxed("42")
    '<think>It follows.</think>\\n\\\\boxed{42}'
    """
    return f"<think>It follows.</think>\n\\boxed{{{truth}}}"


def from_column(rows: Mapping[Any, Mapping[str, Any]], column: str) -> list[Answer]:
    """The answers in a column of the data: a text, or a list of them, in each row.

    Args:
      column: its name, with dots for what is inside: ``extra_info.answer``.

    Raises:
      ValueError: a row has no such column, or holds something else.
    """
    answers = []
    for number, row in rows.items():
        found: Any = row
        for key in column.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        texts = [found] if isinstance(found, str) else found
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"--column {column}: expected a text or a list of texts in row {number} of "
                f"data.train_files, found {found!r}; its columns are {sorted(row)}"
            )
        answers += [Answer(number, column, text, number) for text in texts]
    return answers


def from_file(path: Path, dataset: Sequence[Mapping[str, Any]]) -> list[Answer]:
    """The answers in a file of JSON lines.

    A line is ``{"index": row, "answer": text}``, or one of a rollout dump that verl wrote to
    trainer.rollout_data_dir: it names no row, which is found by its ground truth and prompt.

    Raises:
      ValueError: a line is neither, or refers to no row of the data; names the line.
    """
    answers: list[Answer] = []
    dumped: _Dumped | None = None
    for where, line in _lines(path):
        if isinstance(line.get("answer"), str) and isinstance(line.get("index"), int):
            row = line["index"]
            if not 0 <= row < len(dataset):
                raise ValueError(
                    f"{where}: expected the index of a row of data.train_files, 0 to "
                    f"{len(dataset) - 1}, found {row}"
                )
            answers.append(Answer(row, path.name, line["answer"], row))
        elif isinstance(line.get("output"), str) and "input" in line and "gts" in line:
            dumped = dumped or _Dumped(dataset)
            row = dumped.row_of(line, where)
            group = uid_of(str(line.get("uid", row)))
            answers.append(Answer(row, path.name, line["output"], group))
        else:
            raise ValueError(
                f'{where}: expected {{"index": row, "answer": text}} or a line of a rollout dump '
                f"of verl's (input, output, gts), found the keys {sorted(line)}"
            )
    if not answers:
        raise ValueError(f"--answers {path}: expected JSON lines, found none")
    return answers


class _Dumped:
    """Finds the rows that lines of a rollout dump were made from."""

    def __init__(self, dataset: Sequence[Mapping[str, Any]]) -> None:
        self.rows: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for number in range(len(dataset)):
            row = dataset[number]
            messages = list(row.get("raw_prompt") or [])
            question = str(messages[-1]["content"]) if messages else ""
            self.rows[ground_truth(row) or ""].append((number, question))

    def row_of(self, line: Mapping[str, Any], where: str) -> int:
        truth = ground_truth({"reward_model": {"ground_truth": line["gts"]}}) or ""
        for number, question in self.rows.get(truth, []):
            if question.strip() in str(line["input"]):
                return number
        raise ValueError(
            f"{where}: no row of data.train_files has this line's ground truth and prompt. Give "
            "the files from which the dump was made with --data, for a validation dump "
            "data.val_files."
        )


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            where = f"--answers {path}, line {number}"
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where}: expected JSON, found {text[:60]!r}: {error}") from error
            if not isinstance(line, dict):
                raise ValueError(f"{where}: expected a JSON object, found {text[:60]!r}")
            yield where, line
