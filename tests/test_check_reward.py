"""`gdpo-verl check-reward`: verl's real managers on small data, and each complaint."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gdpo_verl.check_reward.answers import GROUND_TRUTH, PHRASED, Answer
from gdpo_verl.check_reward.report import Report, measure
from gdpo_verl.check_reward.table import to_json, to_text
from gdpo_verl.check_reward.tokens import byte_tokenizer
from gdpo_verl.check_reward.worker import Outcome, Scored
from gdpo_verl.cli import main
from gdpo_verl.config import GdpoConfig
from gdpo_verl.rewards import Component
from gdpo_verl.sandbox.protection import working_protections
from gdpo_verl.tasks import parquet

REWARDS = """
import asyncio, os, random, time
from gdpo_verl.rewards import Component, declares

@declares(Component("right", 0, 1), Component("short", 0, 1))
def good(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right, short = float(solution_str == ground_truth), float(len(solution_str) < 4)
    return {"score": right + short, "right": right, "short": short}

@declares(Component("right", 0, 1), Component("short", 0, 1))
async def good_async(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    await asyncio.sleep(0.001)
    return good(data_source, solution_str, ground_truth)

def undeclared(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return good(data_source, solution_str, ground_truth)

@declares("right", "short")
def raises_on_empty(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    1 / len(solution_str)
    return good(data_source, solution_str, ground_truth)

@declares("right", "short")
def sleeps_on_empty(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if not solution_str:
        time.sleep(1000)
    return good(data_source, solution_str, ground_truth)

@declares("right", "short")
def holds_the_interpreter_on_empty(data_source, solution_str, *args, ground_truth, **kwargs):
    if not solution_str:
        sum(range(10 ** 12))
    return good(data_source, solution_str, ground_truth)

@declares("right", "short")
def dies_on_empty(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if not solution_str:
        os._exit(7)
    return good(data_source, solution_str, ground_truth)

@declares("right", "short")
def prints(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    print("a reward that prints")
    return good(data_source, solution_str, ground_truth)

@declares("right", "short")
def by_chance(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = random.random()
    return {"score": right, "right": right, "short": 0.0}

seen = []

@declares("right", "short")
def new_answers_only(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = float(solution_str == ground_truth) + (solution_str[:1] in seen) / 8
    seen.append(solution_str[:1])
    return {"score": right, "right": right, "short": 0.0}

@declares("right", "short")
def constant(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1.0, "right": 1.0, "short": 0.0}

@declares("right", "short")
def inverted(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    wrong = float(solution_str != ground_truth)
    return {"score": wrong, "right": wrong, "short": 0.0}

@declares("right", "short")
def text(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    result = good(data_source, solution_str, ground_truth)
    return result | {"score": str(result["score"])}

@declares("right", "short")
def number(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return float(solution_str == ground_truth)

@declares("right", "short")
def slow(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    time.sleep(0.2)
    return good(data_source, solution_str, ground_truth)

@declares(Component("format", 0, 1), Component("right", 0, 1))
def thoughtful(data_source, solution_str, ground_truth, extra_info=None, *, strict=True, **kwargs):
    form = float(solution_str.startswith("<think>") and "</think>" in solution_str)
    right = float(f"<answer>{ground_truth}</answer>" in solution_str)
    return {"score": form + right, "format": form, "right": right}

@declares("tokens", "mentions")
def measures(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    tokens = extra_info["response_length"]
    return {"score": 0.0, "tokens": tokens, "mentions": float(ground_truth in solution_str)}
"""

MANAGER = """
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

class Doubling(NaiveRewardManager):
    components = ("right", "twice")

    async def run_single(self, data):
        result = await super().run_single(data)
        right = result["reward_score"]
        info = {"right": right, "twice": 2 * right}
        return {"reward_score": 3 * right, "reward_extra_info": info}
"""


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with rewards.py, managers.py and data.parquet of three rows."""
    (tmp_path / "rewards.py").write_text(REWARDS)
    (tmp_path / "managers.py").write_text(MANAGER)
    write_data(tmp_path / "data.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_data(
    path: Path,
    *,
    drop: str | None = None,
    without_truth: int | None = None,
    keep: int = 3,
    truths: Sequence[str] = ("22", "44", "66"),
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        parquet.row(
            "sums",
            [{"role": "user", "content": f"what is {number} + {number}?"}],
            truth,
            ability="math",
            extra_info={"index": number, "split": "train", "solved": [str(2 * number), "no"]},
        )
        for number, truth in zip((11, 22, 33), truths, strict=True)
    ]
    if without_truth is not None:
        rows[without_truth]["reward_model"]["ground_truth"] = None
    for row in rows:
        row.pop(drop, None)
    pq.write_table(pa.Table.from_pylist(rows)[:keep], path)


@pytest.fixture
def check(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Run the command; returns its status, what it printed, and its JSON."""

    def run(function: str | None, *options: str) -> tuple[int, str, dict[str, Any]]:
        named = ["--function", f"rewards.py:{function}"] if function else []
        data = [] if "--data" in options else ["--data", "data.parquet"]
        # A busy machine is no slow reward. Of an option that is given twice the last counts.
        patient = ("--step-seconds", "1e6", "--timeout", "600")
        options = (*patient, "--json", "report.json", *options)
        status = main(["check-reward", *named, *data, *options])
        report = Path("report.json")
        printed = capsys.readouterr()
        shown = printed.out + "\n".join(
            line for line in printed.err.splitlines() if line.startswith("gdpo-verl: ")
        )
        return status, shown, json.loads(report.read_text()) if report.exists() else {}

    return run


def scores(report: Mapping[str, Any]) -> dict[str, list[float | None]]:
    kinds: dict[str, list[float | None]] = {}
    for answer in report["answers"]:
        kinds.setdefault(answer["kind"], []).append(answer["score"])
    return kinds


@pytest.mark.parametrize("function", ["good", "good_async"])
def test_made_up_answers_through_verls_naive_manager(check: Callable, function: str) -> None:
    status, shown, report = check(function)
    # Three rows with the truths 22, 44 and 66. "right" + "short": an empty answer and half a truth
    # are short, the 200 random characters are neither, nor is a truth within tags.
    assert scores(report) == {
        "ground truth": [2.0, 2.0, 2.0],
        "as an answer": [0.0, 0.0, 0.0],
        "another row's": [1.0, 1.0, 1.0],
        "another row's, as an answer": [0.0, 0.0, 0.0],
        "in a box": [0.0, 0.0, 0.0],
        "another row's, in a box": [0.0, 0.0, 0.0],
        "cut in half": [1.0, 1.0, 1.0],
        "random text": [0.0, 0.0, 0.0],
        "empty": [1.0, 1.0, 1.0],
    }
    assert status == 0
    assert f"rewards.py:{function}" in shown
    assert "score = 1·right + 1·short in 27 of 27 answers" in shown
    assert shown.rstrip().endswith("ok")
    assert report["seconds"]["max"] >= report["seconds"]["median"] > 0
    if function == "good_async":  # its sleep was waited for
        assert report["seconds"]["median"] >= 0.001


def test_our_manager_makes_the_configured_sum_and_counts_tokens(
    check: Callable, work: Path
) -> None:
    (work / "answers.jsonl").write_text('{"index": 2, "answer": "é66"}\n')
    options = ["--answers", "answers.jsonl", "+algorithm.gdpo_reward_weights={mentions:5}"]
    status, shown, report = check(
        "measures", *options, "reward.reward_manager.name=gdpo_components"
    )
    # Without the policy's tokenizer a token is a byte: é has two, and the end token counts.
    (answer,) = report["answers"]
    assert answer["returned"] == {"score": 10.0, "tokens": 5, "mentions": 1.0}
    assert (status, answer["score"]) == (0, 10.0)
    assert "bytes, for there is no actor_rollout_ref.model.path here" in shown
    naive, shown, _ = check("measures", *options)
    assert naive == 1
    assert "KeyError: 'response_length'" in shown


def test_users_manager_from_a_file(check: Callable) -> None:
    status, shown, report = check(
        None,
        "reward.reward_manager.source=importlib",
        "reward.reward_manager.name=Doubling",
        "reward.reward_manager.module.path=managers.py",
        "reward.custom_reward_function.path=rewards.py",
        "reward.custom_reward_function.name=undeclared",
        "+algorithm.gdpo_reward_keys=[right,twice]",
    )
    assert status == 0
    assert "managers.py:Doubling" in shown
    # "undeclared" gives 2 for the truth: right 2, twice 4, score 6.
    assert scores(report)["ground truth"] == [6.0, 6.0, 6.0]
    assert "score = 1·right + 1·twice in 27 of 27 answers" in shown


def test_recipe_brings_reward_manager_and_weights(check: Callable, toolbox: Path) -> None:
    status, _, report = check(
        None,
        *["--recipe", "toolbox/gdpo", "--data", str(toolbox / "validation.parquet")],
        *["--rows", "1000", "+algorithm.gdpo_reward_weights={format:0.5}"],
    )
    # Half of format's 1, and correctness 3; nothing in an empty answer is right. All 256 rows.
    assert scores(report)["ground truth"] == [3.5] * 256
    assert scores(report)["empty"] == [-3.0] * 256
    assert status == 0


TESTS = [
    json.dumps({"inputs": [f"{number}\n"], "outputs": [f"{2 * number}\n"]}) for number in (1, 2, 3)
]


@pytest.fixture
def recipe(check: Callable, work: Path) -> Callable[..., tuple[int, str, dict[str, Any]]]:
    """Check a recipe's reward, without its model, on three rows of these ground truths."""

    def run(
        name: str, truths: list[str], *options: str, **reward_kwargs: object
    ) -> tuple[int, str, dict[str, Any]]:
        write_data(work / "rows.parquet", truths=truths)
        overrides = [
            f"+reward.custom_reward_function.reward_kwargs.{key}={value}"
            for key, value in reward_kwargs.items()
        ]
        return check(
            None,
            *["--recipe", name, "--data", "rows.parquet", *options],
            *["actor_rollout_ref.model.path=null", *overrides],
        )

    return run


def test_gsm8k_reads_a_number_between_answer_tags(recipe: Callable) -> None:
    status, _, report = recipe("gsm8k/gdpo_strict", ["22", "1,044", "-66"])
    assert status == 0
    # correctness, integer and format; a number without tags is no answer.
    assert scores(report)["as an answer"] == [3.0] * 3
    assert scores(report)["ground truth"] == [0.0] * 3
    assert report["parse_errors"]["0"] == 6  # another row's number is read, too


def test_gsm8k_as_published_reads_a_bare_number(recipe: Callable) -> None:
    status, _, report = recipe("gsm8k/gdpo", ["22", "1,044", "-66"])
    assert status == 0
    # Published, an integer is digits alone, in tags or not.
    assert scores(report)["as an answer"] == [3.0, 2.0, 2.0]
    assert scores(report)["ground truth"] == [2.0, 1.0, 1.0]


def test_mathematics_reads_a_formula_in_a_box(recipe: Callable) -> None:
    status, shown, report = recipe("math_length/gdpo", [r"\frac{1}{2}", "x = 3", "(1, 2]"])
    assert status == 0
    assert scores(report)["in a box"] == [2.0] * 3  # right, and within 4,000 tokens
    assert scores(report)["ground truth"] == [1.0] * 3  # no box
    assert scores(report)["empty"] == [1.0] * 3
    assert report["parse_errors"] == {"0": 6, "1": 21}
    assert "note     'length' is 1 for every answer" in shown


def test_conditioned_mathematics_passes_too(recipe: Callable) -> None:
    status, _, report = recipe("math_length/gdpo_conditioned", ["1", "2", "3"])
    assert status == 0
    assert scores(report)["in a box"] == [2.0] * 3
    assert scores(report)["empty"] == [0.0] * 3  # short, but not right


needs_sandbox = pytest.mark.skipif(
    next(working_protections(), None) is None,
    reason="no sandbox works here: apt install bubblewrap",
)


@needs_sandbox
def test_programs_cannot_be_made_up_of_their_tests_and_that_is_a_note(recipe: Callable) -> None:
    status, shown, report = recipe("code/gdpo_strict", TESTS)
    assert status == 0
    assert all(answer["score"] == 0.0 for answer in report["answers"])
    assert "note     no component differs between two answers to one prompt" in shown
    assert "give real ones with --answers, or sample them with --model" in shown


@needs_sandbox
def test_given_programs_that_all_fail_are_a_problem(recipe: Callable, work: Path) -> None:
    def lines(*programs: str) -> str:
        fenced = [f"```python\n{program}\n```" for program in programs]
        return "\n".join(json.dumps({"index": 0, "answer": text}) for text in fenced)

    (work / "answers.jsonl").write_text(lines("print(2 * int(input()))", "print(3)"))
    status, _, report = recipe("code/gdpo_strict", TESTS, "--answers", "answers.jsonl")
    # Both run; the right one passes and is short.
    assert (status, scores(report)) == (0, {"answers.jsonl": [3.0, 1.0]})
    assert report["sandboxes"] == [next(working_protections()).name]

    (work / "answers.jsonl").write_text(lines("print(4)", "print(3)"))
    status, shown, report = recipe("code/gdpo_strict", TESTS, "--answers", "answers.jsonl")
    assert (status, scores(report)) == (1, {"answers.jsonl": [1.0, 1.0]})
    assert "PROBLEM  no component differs between two answers to one prompt" in shown


@needs_sandbox
def test_programs_as_published_are_the_whole_text(recipe: Callable) -> None:
    status, shown, report = recipe("code/gdpo", TESTS)
    assert (status, "PROBLEM" in shown) == (0, False)
    # The text of the tests is a dict, which runs and prints nothing.
    assert scores(report)["ground truth"] == [1.0] * 3
    assert scores(report)["as an answer"] == [0.0] * 3


def test_what_a_reward_prints_is_no_part_of_the_report(check: Callable) -> None:
    status, shown, _ = check("prints", "--rows", "1")
    assert (status, "a reward that prints" in shown) == (0, False)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        pytest.param(
            "raises_on_empty",
            "it raised ZeroDivisionError: division by zero (",
            id="raises",
        ),
        pytest.param("sleeps_on_empty", "it did not end within 3 s", id="hangs in a thread"),
        pytest.param(
            "holds_the_interpreter_on_empty",
            "it did not end within 3 s",
            id="holds the interpreter",
        ),
        pytest.param("dies_on_empty", "it ended its process with status 7", id="crashes"),
    ],
)
def test_one_bad_answer_is_named_and_the_others_are_scored(
    check: Callable, function: str, expected: str
) -> None:
    status, shown, report = check(function, "--rows", "2", "--timeout", "3")
    assert status == 1
    assert f"PROBLEM  row 0 (empty): {expected}" in shown
    assert "(and 1 more)" in shown
    assert scores(report) == {
        "ground truth": [2.0, 2.0],
        "as an answer": [0.0, 0.0],
        "another row's": [1.0, 1.0],
        "another row's, as an answer": [0.0, 0.0],
        "in a box": [0.0, 0.0],
        "another row's, in a box": [0.0, 0.0],
        "cut in half": [1.0, 1.0],
        "random text": [0.0, 0.0],
        "empty": [None, None],
    }


@pytest.mark.parametrize(
    ("function", "options", "expected"),
    [
        pytest.param("by_chance", [], "scored twice, in another order: 'score' 0.", id="chance"),
        pytest.param("new_answers_only", [], "scored twice, in another order: 'sco", id="memory"),
        pytest.param("constant", [], "every advantage would be 0 and nothing", id="constant"),
        pytest.param(
            "inverted",
            [],
            "the ground truth (ground truth) scores less than a wrong answer in 3 of 3 rows, and "
            "in none of its forms more than every wrong answer in half of them: the reward is "
            "inverted",
            id="inverted",
        ),
        pytest.param("text", [], "expected a finite number as its score, found '2.0'", id="text"),
        pytest.param(
            "number",
            [],
            "expected compute_score to return a dict with 'score' and the components, found 1.0",
            id="a number in place of a dict",
        ),
        pytest.param(
            "thoughtful",
            ["+reward.custom_reward_function.reward_kwargs.stric=false"],
            "reward.custom_reward_function.reward_kwargs.stric: rewards.py:thoughtful names no "
            "such argument, only ['data_source', 'solution_str', 'ground_truth', 'extra_info', "
            "'strict']. Did you mean 'strict'?",
            id="a misspelt argument",
        ),
        pytest.param("slow", ["--step-seconds", "3"], "more than 5% of a step of 3 s", id="slow"),
    ],
)
def test_a_broken_reward_is_named(
    check: Callable, function: str, options: list[str], expected: str
) -> None:
    status, shown, _ = check(function, *options)
    assert status == 1
    assert expected in "\n".join(line for line in shown.splitlines() if line.startswith("PROBLEM"))


@pytest.mark.parametrize("manager", ["naive", "gdpo_components"])
def test_a_template_that_opens_the_thought_is_named(
    check: Callable, work: Path, manager: str
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}\n<think>\n"
    tokenizer.save_pretrained(work / "policy")
    status, shown, report = check(
        "thoughtful",
        "actor_rollout_ref.model.path=policy",
        f"reward.reward_manager.name={manager}",
    )
    assert status == 0
    # The answers are written as the policy writes them: without the opening tag.
    assert report["answers"][1]["answer"] == "It follows.</think>\n<answer>22</answer>"
    if manager == "naive":
        assert scores(report)["as an answer"] == [1.0] * 3
        assert "note     reward.reward_manager.name=naive: the prompt ends in '<think>" in shown
        assert "gives its format 0 for every answer. Set it to gdpo_components" in shown
    else:
        assert scores(report)["as an answer"] == [2.0] * 3
        assert "note     the prompt ends in '<think>" in shown


def test_too_many_lost_answers_end_the_check(check: Callable, work: Path) -> None:
    lines = [json.dumps({"index": 0, "answer": text}) for text in [""] * 5 + ["22"]]
    (work / "answers.jsonl").write_text("\n".join(lines))
    status, shown, report = check("dies_on_empty", "--answers", "answers.jsonl")
    assert status == 1
    assert len(report["answers"]) == 5
    assert "PROBLEM  1 answers were left out" in shown


def test_killed_command_leaves_no_process(work: Path) -> None:
    (work / "hangs.py").write_text(
        "import os, pathlib\n"
        "def compute_score(*args, **kwargs):\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    sum(range(10 ** 12))\n"
    )
    command = [sys.executable, "-m", "gdpo_verl.cli", "check-reward", "--function", "hangs.py"]
    process = subprocess.Popen([*command, "--data", "data.parquet", "--timeout", "500"])
    try:
        wait_for(lambda: (work / "pid").exists() and bool((work / "pid").read_text()), 120)
    finally:
        process.kill()
        process.wait()
    worker = int((work / "pid").read_text())
    wait_for(lambda: not runs(worker), 30)


def runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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


def test_answers_of_a_column(check: Callable) -> None:
    status, _, report = check("good", "--column", "extra_info.solved", "--rows", "2")
    assert status == 0
    assert scores(report) == {"extra_info.solved": [2.0, 1.0, 2.0, 1.0]}


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


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param(
            ["--function", "pkg://no.such:compute_score"],
            "reward.custom_reward_function: cannot load 'compute_score' from 'pkg://no.such'",
            id="no such module",
        ),
        pytest.param(
            ["--function", "rewards.py:missing"],
            "reward.custom_reward_function: cannot load 'missing' from 'rewards.py'",
            id="no such function",
        ),
        pytest.param(
            ["reward.reward_manager.name=naiv"],
            "reward.reward_manager: Unknown reward manager: naiv",
            id="no such manager",
        ),
        pytest.param(
            ["--data", "none.parquet"],
            "data.train_files: cannot read none.parquet (working directory ",
            id="no such data",
        ),
        pytest.param(
            ["--column", "solution"],
            "--column solution: expected a text or a list of texts in row 0 of data.train_files, "
            "found None",
            id="no such column of answers",
        ),
        pytest.param(
            ["--recipe", "toolbox/gdop"], "configuration toolbox/gdop: Cannot find", id="no recipe"
        ),
        pytest.param(
            ["algorithm.gdpo_reward_keys=[right]"],
            "configuration ppo_trainer: Could not override 'algorithm.gdpo_reward_keys'",
            id="no such key in verl's configuration",
        ),
        pytest.param(["--rows", "0"], "--rows: expected a number above 0, found 0", id="no rows"),
        pytest.param(
            ["+algorithm.gdpo.whitten=token"],
            "algorithm.gdpo.whitten: unknown key",
            id="unknown key of ours",
        ),
        pytest.param(
            ["reward.reward_model.enable=true"],
            "reward.reward_model.enable: expected false, found true",
            id="reward model",
        ),
    ],
)
def test_what_cannot_be_checked_is_refused(
    check: Callable, options: list[str], expected: str
) -> None:
    status, shown, report = check(None if "--function" in options else "good", *options)
    assert (status, report) == (1, {})
    assert expected in shown


@pytest.mark.parametrize(
    ("flaw", "expected"),
    [
        pytest.param(
            {"drop": "prompt"},
            "verl's data set reads a column 'prompt', found only",
            id="no prompt",
        ),
        pytest.param(
            {"drop": "data_source"},
            "verl's reward managers read a column 'data_source', found only",
            id="no data source",
        ),
        pytest.param(
            {"keep": 0}, "expected at least one row, found none in flawed.parquet", id="no rows"
        ),
        pytest.param(
            {"without_truth": 1},
            "expected a ground truth in reward_model.ground_truth of every row, found none in row "
            "1 of flawed.parquet",
            id="a row without ground truth",
        ),
    ],
)
def test_data_that_lacks_something_is_refused(
    check: Callable, work: Path, flaw: dict[str, Any], expected: str
) -> None:
    write_data(work / "flawed.parquet", **flaw)
    status, shown, report = check("good", "--data", "flawed.parquet")
    assert (status, report) == (1, {})
    assert expected in shown


def test_components_neither_declared_nor_named_are_a_problem(check: Callable) -> None:
    status, shown, report = check("undeclared", "--rows", "1")
    assert status == 1
    assert "PROBLEM  algorithm.gdpo_reward_keys: the reward declares no components" in shown
    assert "although it returns ['score', 'right', 'short']" in shown
    assert scores(report)["ground truth"] == [2.0]  # what can be said is said all the same
    assert check("undeclared", "--rows", "1", "+algorithm.gdpo_reward_keys=[right,short]")[0] == 0


@pytest.mark.real
def test_answers_sampled_from_a_local_model(check: Callable, toolbox: Path, policy: Path) -> None:
    status, shown, report = check(
        None,
        *["--recipe", "toolbox/gdpo", "--data", str(toolbox / "validation.parquet")],
        *["--rows", "24", "--model", str(policy), "actor_rollout_ref.rollout.n=4"],
    )
    assert status == 0
    assert f"{policy}" in shown
    assert [kind["count"] for kind in report["kinds"]] == [24 * 4]
    means = {component["name"]: component["mean"] for component in report["components"]}
    # The policy is made with 55 to 80 % correct formats; 96 answers stray by less than 0.2.
    assert 0.35 < means["format"] < 1.0
    # Sampled at temperature 1, answers to one prompt differ.
    assert len({answer["answer"] for answer in report["answers"][:4]}) > 1


# The pure part, on answers and outcomes written by hand.


def outcome(score: object, seconds: float = 0.002, **info: object) -> Outcome:
    return Outcome(score=score, info={"score": score, **info}, seconds=seconds)


DECLARED = (Component("a", 0, 1), Component("b", -3, 3))
# Two rows with two answers each; "b" differs in neither.
ANSWERS = [
    Answer(0, GROUND_TRUTH, "yes", 0),
    Answer(0, "empty", "", 0),
    Answer(7, GROUND_TRUTH, "no", 7),
    Answer(7, "empty", "", 7),
]
GOOD = [
    outcome(3.0, 1.5, a=1.0, b=2.0, parse_error=0),
    outcome(2.0, 0.002, a=0.0, b=2.0, parse_error=4),
    outcome(0.0, 0.004, a=1.0, b=-1.0, parse_error=0),
    outcome(-1.0, 0.006, a=0.0, b=-1.0, parse_error=4),
]
GOOD[0] = Outcome(GOOD[0].score, GOOD[0].info, seconds=1.5, first=True)


def report_of(
    outcomes: list[Outcome] = GOOD,
    *,
    answers: list[Answer] = ANSWERS,
    declared: tuple[Component, ...] = DECLARED,
    **algorithm: object,
) -> Report:
    return measure(answers, Scored(declared, outcomes), GdpoConfig.from_algorithm(algorithm))


def test_summary_of_hand_made_outcomes() -> None:
    report = report_of()
    assert report.problems == []
    a, b = report.components
    assert (a.name, a.weight, a.declared) == ("a", 1.0, (0, 1))
    assert (a.low, a.mean, a.high, a.constant_groups, a.unscored) == (0.0, 0.5, 1.0, 0.0, 0.0)
    assert (b.low, b.mean, b.high, b.constant_groups, b.unscored) == (-1.0, 0.5, 2.0, 1.0, 0.0)
    assert list(report.notes) == [
        "'b' never differs between two answers to one prompt: if that is so in the training it "
        "teaches nothing"
    ]
    # The first call, 1.5 s, is reported by itself: 2, 4 and 6 ms stay; 98 % of the way from the
    # second to the third is 5.96.
    assert report.seconds == pytest.approx((0.004, 0.00596, 0.006))
    assert report.first_seconds == 1.5
    assert report.slowest is not None
    assert report.slowest.name == "7 (empty)"
    assert report.worst is not None
    assert (report.worst.name, report.worst.score) == ("7 (empty)", -1.0)
    assert report.parse_errors == {0: 2, 4: 2}
    assert [(k.kind, k.count, k.low, k.mean, k.high, k.unread) for k in report.kinds] == [
        ("ground truth", 2, 0.0, 1.5, 3.0, 0),
        ("empty", 2, -1.0, 0.5, 2.0, 2),
    ]


def with_last(**changes: object) -> list[Outcome]:
    """GOOD with another last outcome."""
    return [*GOOD[:3], outcome(**{"score": -1.0, "a": 0.0, "b": -1.0, "parse_error": 4} | changes)]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        pytest.param(
            with_last(a=2.0, score=1.0),
            "row 7 (empty): 'a' is 2, declared as 0 to 1",
            id="out of range",
        ),
        pytest.param(
            with_last(score=0.5),
            "row 7 (empty): its score is 0.5, but the weighted sum of the components ['a', 'b'] "
            "is -1. A GRPO control would optimise something else than GDPO decouples; use "
            "reward.reward_manager.name=gdpo_components, or return the sum as 'score'",
            id="score is another sum",
        ),
        pytest.param(
            with_last(score=float("nan")),
            "row 7 (empty): expected a finite number as its score, found nan",
            id="no score",
        ),
        pytest.param(
            [*GOOD[:3], outcome(-1.0, a=0.0, parse_error=4)],
            "algorithm.gdpo_reward_keys: the reward returned no 'b' for row 7 (empty), only "
            "['a', 'parse_error', 'score']. Return it from compute_score on every path, failures "
            "included.",
            id="missing key",
        ),
        pytest.param(
            [outcome(0.0, a=0.0, c=0.0) for _ in ANSWERS],
            "algorithm.gdpo_reward_keys: 'b' is not among the reward components ['a', 'c']. Return "
            "it from compute_score or remove the key.",
            id="key in no answer",
        ),
        pytest.param(
            with_last(b="x"),
            "algorithm.gdpo_reward_keys: expected a finite number, None or NaN for 'b', found 'x' "
            "for row 7 (empty). Numbers are at most 1e+300 in size.",
            id="not a number",
        ),
        pytest.param(
            [outcome(1.0, a=1.0, b=0.0) for _ in ANSWERS],
            "no component differs between two answers to one prompt, in any of 2 prompts: every "
            "advantage would be 0 and nothing would be learnt",
            id="nothing to learn",
        ),
        pytest.param(
            with_last(score="-1.0"),
            "row 7 (empty): expected a finite number as its score, found '-1.0'",
            id="a score as text",
        ),
        pytest.param(
            [Outcome(score, {"acc": score}, 0.001) for score in (1.0, 0.0, 1.0, 0.0)],
            "row 0 (ground truth): expected compute_score to return a dict with 'score' and the "
            "components, found 1.0. Return {'score': …, 'correctness': …} and declare the "
            "components (gdpo_verl.rewards.declares), or name them in algorithm.gdpo_reward_keys "
            "(and 3 more)",
            id="numbers in place of dicts",
        ),
        pytest.param(
            [*GOOD[:3], dataclasses.replace(GOOD[3], seconds=3.01)],
            "row 7 (empty): it took 3.01 s, more than 5% of a step of 1 min 0 s, whose rewards "
            "wait for the slowest answer. Make it faster, or say with --step-seconds how long your "
            "steps are",
            id="slow",
        ),
        pytest.param(
            [*GOOD[:2], outcome(-3.0, a=0.0, b=-3.0, parse_error=9), GOOD[3]],
            "row 7 (ground truth): parse_error 9 with the row's own ground truth as the answer: "
            "correct the ground truth, or leave the row out of the data",
            id="malformed ground truth",
        ),
        pytest.param(
            GOOD[:2],
            "2 answers were left out, after too many that did not come back",
            id="left out",
        ),
    ],
)
def test_each_problem_is_named_once(outcomes: list[Outcome], expected: str) -> None:
    assert list(report_of(outcomes).problems) == [expected]


@pytest.mark.parametrize(
    ("codes", "made_up", "problem"),
    [
        pytest.param([1, 1, 1, 1], True, False, id="made up, none read"),
        pytest.param([1, 1, 1, 0], True, False, id="made up, only another text read"),
        pytest.param([None] * 4, True, True, id="made up, nobody says what was read"),
        pytest.param([0, 1, 1, 1], True, True, id="made up, a ground truth read"),
        pytest.param([1, 1, 0, 1], True, True, id="made up, a phrased ground truth read"),
        pytest.param([1, 1, 1, 1], False, True, id="given"),
    ],
)
def test_made_up_answers_that_may_not_fit_and_do_not_differ_are_a_note(
    codes: list[int | None], made_up: bool, problem: bool
) -> None:
    kinds = [GROUND_TRUTH, "empty", PHRASED, "empty"]
    answers = [
        dataclasses.replace(answer, kind=kind, made_up=made_up)
        for answer, kind in zip(ANSWERS, kinds, strict=True)
    ]
    outcomes = [
        outcome(1.0, a=1.0, b=0.0, **({} if code is None else {"parse_error": code}))
        for code in codes
    ]
    report = report_of(outcomes, answers=answers)
    about = "no component differs between two answers to one prompt, in any of 2 prompts"
    assert [text.startswith(about) for text in report.problems] == [True] * problem
    assert any("--answers" in note for note in report.notes) is not problem


def test_score_follows_weights_and_conditions() -> None:
    conditions = {"b": {"on": "a", "at_least": 1.0}}
    # 2 a + b where a is 1, else 2 a: 4, 0, 1, 0.
    scores = [4.0, 0.0, 1.0, 0.0]
    outcomes = [
        outcome(score, a=case.info["a"], b=case.info["b"])
        for score, case in zip(scores, GOOD, strict=True)
    ]
    settings = {"gdpo_reward_weights": {"a": 2.0}, "gdpo": {"conditions": conditions}}
    assert list(report_of(outcomes, **settings).problems) == []
    assert report_of(outcomes, **settings).agree == 4
    assert "the weighted sum" in report_of(outcomes).problems[0]


def test_ground_truths_in_another_form_than_answers_are_no_problem() -> None:
    unread = [outcome(2.0, a=1.0, b=1.0, parse_error=1), outcome(1.0, a=0.0, b=1.0, parse_error=1)]
    assert list(report_of(unread * 2).problems) == []


MADE_UP = [dataclasses.replace(answer, made_up=True) for answer in ANSWERS]
# What GOOD gives to the truth goes to the empty answer, and the reverse.
SWAPPED = [GOOD[1], GOOD[0], GOOD[3], GOOD[2]]


def without_code(outcomes: list[Outcome]) -> list[Outcome]:
    return [
        dataclasses.replace(
            each, info={key: value for key, value in each.info.items() if key != "parse_error"}
        )
        for each in outcomes
    ]


@pytest.mark.parametrize(
    ("outcomes", "problem", "note"),
    [
        pytest.param(GOOD, "", "", id="ordered"),
        pytest.param(without_code(SWAPPED), "less than a wrong answer in 2 of 2 rows", "",
                     id="inverted"),
        pytest.param(without_code([GOOD[0], GOOD[0], GOOD[2], GOOD[2]]),
                     "less than a wrong answer in 0 of 2 rows", "", id="unordered"),
        pytest.param(SWAPPED, "", "less than a wrong answer in 2 of 2 rows", id="truths unread"),
    ],
)  # fmt: skip
def test_a_reward_that_does_not_prefer_the_truth_is_a_problem(
    outcomes: list[Outcome], problem: str, note: str
) -> None:
    report = report_of(outcomes, answers=MADE_UP)
    found = ["the ground truth (ground truth) scores" in text for text in report.problems]
    assert any(found) == bool(problem)
    assert problem in "".join(report.problems)
    assert note in "".join(report.notes)


def test_a_truth_that_is_an_object_is_no_answer() -> None:
    truths = [dataclasses.replace(answer, text='{"inputs": []}') for answer in MADE_UP]
    report = report_of(without_code(SWAPPED), answers=truths)
    assert list(report.problems) == []
    assert "a ground truth is not written as an answer" in report.notes[0]


@pytest.mark.parametrize(
    ("again", "expected"),
    [
        pytest.param({3: GOOD[3]}, None, id="the same"),
        pytest.param(
            {3: outcome(-1.0 + 1e-13, a=0.0, b=-1.0)}, None, id="but for the sum's rounding"
        ),
        pytest.param(
            {3: outcome(0.0, a=1.0, b=-1.0), 2: outcome(1.0, a=1.0, b=0.0)},
            "row 7 (ground truth): scored twice, in another order: 'score' 0.0 and then 1.0, 'b' "
            "-1.0 and then 0.0. The reward of an answer must not depend on chance, on the time, or "
            "on the answers before it (and 1 more)",
            id="another reward",
        ),
        pytest.param(
            {0: Outcome(error="did not end within 3 s")},
            "row 0 (ground truth): scored twice, in another order: the second time it did not end "
            "within 3 s. The reward of an answer must not depend on chance, on the time, or on the "
            "answers before it",
            id="no reward",
        ),
    ],
)
def test_another_reward_for_the_same_answer_is_a_problem(
    again: dict[int, Outcome], expected: str | None
) -> None:
    scored = Scored(DECLARED, GOOD, again)
    report = measure(ANSWERS, scored, GdpoConfig.from_algorithm({}))
    assert list(report.problems) == ([expected] if expected else [])


def test_the_time_of_an_answer_is_the_shorter_of_two() -> None:
    slow = [*GOOD[:3], dataclasses.replace(GOOD[3], seconds=9.0)]
    scored = Scored(DECLARED, slow, {3: GOOD[3]})
    assert measure(ANSWERS, scored, GdpoConfig.from_algorithm({})).problems == []
    limits = measure(ANSWERS, Scored(DECLARED, slow), GdpoConfig.from_algorithm({}), 181.0)
    assert limits.problems == []  # 5 % of 181 s is 9.05 s
    assert "longest 9 s; first call 1.5 s; at most 9.05 s, 5% of a step of 3 min 1 s" in to_text(
        limits, {}
    )


def test_unscored_and_optional_components() -> None:
    declared = (Component("a", 0, 1), Component("b", -3, 3, optional=True))
    outcomes = [outcome(1.0, a=1.0), outcome(0.0, a=0.0), outcome(1.0, a=1.0), outcome(0.0, a=0.0)]
    report = report_of(outcomes, declared=declared)
    assert list(report.problems) == []
    assert list(report.notes) == ["'b' is not scored in any answer"]
    assert (report.components[1].mean, report.components[1].unscored) == (None, 1.0)


def test_answers_that_the_reward_did_not_see_as_they_are_are_noted() -> None:
    outcomes = [*GOOD[:3], Outcome(-1.0, GOOD[3].info, seconds=0.006, altered=True)]
    assert report_of(outcomes).notes[0] == (
        "row 7 (empty): the tokenizer gives back another text, which is what the reward saw"
    )


def test_differing_diagnostics_are_noted() -> None:
    notes = report_of(with_last(extra=1)).notes
    assert notes[0].startswith(
        "row 7 (empty): the keys ['a', 'b', 'extra', 'parse_error', 'score']"
    )


def test_pages_of_a_report_hold_what_was_found() -> None:
    report = report_of(with_last(a=2.0, score=1.0))
    text = to_text(report, {"reward": "mine"})
    assert text.startswith("reward  mine\n")
    assert [" ".join(line.split()) for line in text.splitlines() if line[:2] in ("a ", "b ")] == [
        "a 1 0 to 1 0 to 2 1.000 0% of prompts 0% of answers",
        "b 1 -3 to 3 -1 to 2 0.500 100% of prompts 0% of answers",
    ]
    assert "score = 1·a + 1·b in 4 of 4 answers" in text
    assert "parse_error codes and their answers: 0: 2, 4: 2" in text
    assert text.endswith("PROBLEM  row 7 (empty): 'a' is 2, declared as 0 to 1")
    record = json.loads(to_json(report, {"reward": "mine"}))
    assert record["answers"][3]["returned"] == {"score": 1.0, "a": 2.0, "b": -1.0, "parse_error": 4}
