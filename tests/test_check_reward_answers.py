"""`gdpo-verl check-reward` on answers that are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from reward_checks import check as check
from reward_checks import work as work

DUMPED = {"input": "user\nwhat is 22 + 22?\nassistant\n", "output": "44", "gts": "44"}


def test_answers_of_a_rollout_dump_find_their_rows(check: Callable, work: Path) -> None:
    lines = [DUMPED | {"uid": "ab_0_0"}, DUMPED | {"uid": "ab_1_0", "output": "nothing"}]
    (work / "1.jsonl").write_text("\n".join(map(json.dumps, lines)))
    status, _, report = check("good", "--answers", "1.jsonl")
    assert status == 0
    assert [(a["row"], a["group"], a["score"]) for a in report["answers"]] == [
        (1, "ab", 2.0),
        (1, "ab", 0.0),
    ]


def test_half_of_a_surrogate_pair_is_no_fault(check: Callable, work: Path) -> None:
    lines = [{"index": 0, "answer": text} for text in ("22", "a\ud800")]
    (work / "answers.jsonl").write_text("\n".join(map(json.dumps, lines)))
    status, shown, report = check("half_a_pair", "--answers", "answers.jsonl")
    assert (status, report["answers"][1]["answer"]) == (0, "a\ud800")
    assert "note     row 0 (answers.jsonl): the tokenizer gives back another text" in shown


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            {"index": 3, "answer": ""},
            "answers.jsonl, line 2: expected the index of a row of data.train_files, 0 to 2, "
            "found 3",
            id="no such row",
        ),
        pytest.param(
            {"index": 0, "text": ""}, "found the keys ['index', 'text']", id="not an answer"
        ),
        pytest.param(
            DUMPED | {"gts": "45"},
            "line 2: no row of data.train_files has this line's ground truth and prompt",
            id="dump of other data",
        ),
        pytest.param("text", "line 2: expected a JSON object, found", id="not an object"),
    ],
)
def test_answers_that_cannot_be_used_are_refused(
    check: Callable, work: Path, line: object, expected: str
) -> None:
    (work / "answers.jsonl").write_text(f'{{"index": 0, "answer": ""}}\n{json.dumps(line)}\n')
    status, shown, report = check("good", "--answers", "answers.jsonl")
    assert (status, report) == (1, {})
    assert expected in shown


@pytest.mark.real
def test_answers_sampled_from_a_local_model(check: Callable, toolbox: Path, policy: Path) -> None:
    status, _, report = check(
        None,
        *["--recipe", "toolbox/gdpo", "--data", str(toolbox / "validation.parquet")],
        # verl's own number, one, would not say whether answers to a prompt differ.
        *["--rows", "24", "--model", str(policy), "actor_rollout_ref.rollout.n=1"],
    )
    assert status == 0
    assert [kind["count"] for kind in report["kinds"]] == [24 * 4]
    means = {component["name"]: component["mean"] for component in report["components"]}
    # The policy is made with 55 to 80 % correct formats; 96 answers stray by less than 0.2.
    assert 0.35 < means["format"] < 1.0
    # Sampled at temperature 1, answers to one prompt differ.
    assert len({answer["answer"] for answer in report["answers"][:4]}) > 1
