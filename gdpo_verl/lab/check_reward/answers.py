"""Make the responses to score: read them from a file, or make them up from the ground truths."""

from __future__ import annotations

import random
import string
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo_verl.lab.rundir.dumps import Row, numbered_rows
from gdpo_verl.lab.rundir.responses import Response, responses_of
from gdpo_verl.lab.tasks.examples import Finder, example_of, truth_text
from gdpo_verl.rewards.thought import THINK

GROUND_TRUTH = "ground truth"
RANDOM = "random text"
EMPTY = "empty"
FORMS = {
    GROUND_TRUTH: "{}",
    "as an answer": THINK + "It follows.</think>\n<answer>{}</answer>",
    "in a box": THINK + "It follows.</think>\n\\boxed{{{}}}",
}
"""The layouts in which rewards often expect an answer."""
WRONG = {form: f"another row's, {form}" for form in FORMS} | {GROUND_TRUTH: "another row's"}
"""The kind of another row's ground truth in each layout."""
RANDOM_CHARACTERS = 200
Rows = Mapping[Any, Mapping[str, Any]]
"""Rows by their number in data.train_files, or by a name for a row of other files."""
TURNS = 3
"""The number of turns of the made-up response with several turns."""
_ALPHABET = string.printable + "äßéπ≤漢字🙂\u200b"


@dataclass(frozen=True)
class CheckedAnswer:
    """One response to one row.

    Attributes:
      row: the row's number in data.train_files, from 0, or a name for a row of other files.
      kind: the origin of the response, for the report.
      text: the text of the response.
      group: responses with the same value belong to one group.
      token_ids: the tokens of the response, including the end token; None if they are unknown.
      made_up: True if the response comes neither from a file nor from a model.
      turns: the number of the model's turns, which the reward function receives.
    """

    row: Any
    kind: str
    text: str
    group: Hashable
    token_ids: tuple[int, ...] | None = None
    made_up: bool = False
    turns: int = 1

    @property
    def name(self) -> str:
        """The name of the response in messages."""
        return f"{self.row} ({self.kind})"


def ground_truth(row: Mapping[str, Any]) -> str | None:
    """Return the ground truth of a row as text; None if there is none.

    A ground truth that is no text is written as JSON.
    """
    truth = (row.get("reward_model") or {}).get("ground_truth")
    return None if truth is None else truth_text(truth)


def made_up(rows: Rows, *, inside_thought: bool = False) -> list[CheckedAnswer]:
    """Make up nine responses to each row, or fewer if there is no ground truth.

    They are the row's own and another row's ground truth in each layout of `FORMS`, the first half
    of the row's own ground truth, random text, and the empty text.

    Args:
      rows: the rows by number or name.
      inside_thought: True if the prompt opens the thought; responses then omit the opening tag.
    """
    rng = random.Random(0)  # the same random text each time, so that two reports can be compared
    truths = [ground_truth(row) for row in rows.values()]
    answers = []
    for place, (number, truth) in enumerate(zip(rows, truths, strict=True)):
        following = truths[place + 1 :] + truths[:place]
        # Another row may have the same ground truth, which would be right for this row as well.
        other = next((text for text in following if text not in (None, truth)), None)
        texts: dict[str, str] = {}
        if truth is not None:
            texts |= {kind: form.format(truth) for kind, form in FORMS.items()}
            texts["cut in half"] = truth[: len(truth) // 2]
        if other is not None:
            texts |= {WRONG[kind]: form.format(other) for kind, form in FORMS.items()}
        texts[RANDOM] = "".join(rng.choices(_ALPHABET, k=RANDOM_CHARACTERS))
        texts[EMPTY] = ""
        for kind, text in texts.items():
            text = text.removeprefix(THINK) if inside_thought else text
            answers.append(CheckedAnswer(number, kind, text, number, made_up=True))
    return answers


def of_several_turns(rows: Rows) -> CheckedAnswer:
    """Make up a response to the first row that calls a tool in each turn except the last."""
    number, row = next(iter(rows.items()))
    call = "<tool_call>\n{}\n</tool_call>\ntool\nnothing\nassistant\n"
    text = call * (TURNS - 1) + (ground_truth(row) or "")
    return CheckedAnswer(number, f"of {TURNS} turns", text, number, made_up=True, turns=TURNS)


def from_file(path: Path, dataset: Sequence[Mapping[str, Any]]) -> list[CheckedAnswer]:
    """Read responses from a file of JSON lines.

    A line is ``{"index": row, "answer": text}``, or a line of a rollout dump that verl wrote to
    trainer.rollout_data_dir. A dumped line does not contain the number of its row. The row is found
    by its ground truth and its prompt.

    Raises:
      ValueError: a line is neither of both, or refers to no row of the data. The message names the
        line.
    """
    answers: list[CheckedAnswer] = []
    dumped: list[tuple[int, Row | None]] = []
    for number, line in numbered_rows(path):
        where = f"--answers {path}, line {number}"
        if line is None:
            raise ValueError(
                f"{where}: expected one JSON object, found none. Correct or remove the line"
            )
        if isinstance(line.get("answer"), str) and "index" in line and "output" not in line:
            row = line["index"]
            # JSON's true would be an int in Python.
            if type(row) is not int or not 0 <= row < len(dataset):
                raise ValueError(
                    f"{where}: expected the index of a row of data.train_files, 0 to "
                    f"{len(dataset) - 1}, found {row!r}"
                )
            answers.append(CheckedAnswer(row, path.name, line["answer"], row))
        elif isinstance(line.get("output"), str) and "input" in line and "gts" in line:
            dumped.append((number, line))
        else:
            raise ValueError(
                f'{where}: expected {{"index": row, "answer": text}} or a line of a rollout dump '
                f"of verl's (input, output, gts), found the keys {sorted(line)}"
            )
    if dumped:
        responses, _ = responses_of(dumped, path)
        answers += _from_dump(responses, dataset)
    if not answers:
        raise ValueError(f"--answers {path}: expected JSON lines, found none")
    return answers


def _from_dump(
    responses: Sequence[Response], dataset: Sequence[Mapping[str, Any]]
) -> Iterator[CheckedAnswer]:
    rows = (dataset[number] for number in range(len(dataset)))
    finder = Finder([example_of(row, prompt="raw_prompt") for row in rows])
    for response in responses:
        numbers = finder.fitting(response.prompt, response.row["gts"], by_truth_alone=False)
        if not numbers:
            raise ValueError(
                f"--answers {response.place}: no row of data.train_files has this line's ground "
                "truth and prompt. Give the files from which the dump was made with --data, for a "
                "validation dump data.val_files."
            )
        place = numbers[0]
        group: Hashable = response.group if "uid" in response.row else place
        yield CheckedAnswer(place, response.file.name, response.text, group)
