"""Evaluations: the run of verl, the numbers of its dump, and comparisons."""

import json
from pathlib import Path

import pytest
from fake_runs import verls_uid, write_lines
from gdpo_verl.recipes.toolbox import rows as toolbox_data
from omegaconf import OmegaConf
from processes import run_cli

from gdpo_verl.lab.cli import main
from gdpo_verl.lab.evaluate import answers, result, run
from gdpo_verl.lab.evaluate.compare import compare, to_text
from gdpo_verl.lab.evaluate.model import Model
from gdpo_verl.lab.run import launch
from gdpo_verl.lab.tasks.rows import make_row, write_dataset

TOOLBOX_REWARD = {
    "custom_reward_function": {
        "path": "pkg://gdpo_verl.rewards.tool_call", "name": "compute_score"
    },
    "reward_manager": {"name": "gdpo_components", "source": "register", "module": {}},
}  # fmt: skip


def line(question, sample=0, truth="t", output=0, **values):
    """Return a response as verl dumps it; its uid is derived from the question."""
    uid = f"{verls_uid(question)}_{sample}_{output}"
    known = {"input": f"user\n{question}\nassistant\n", "output": "…", "gts": truth, "uid": uid}
    return {**known, "step": 0, "score": 1.0, **values}


def evaluation(directory, lines, **config):
    """Write a dump, and the configuration if there is one."""
    write_lines(directory / "validation" / "0.jsonl", lines)
    if config:
        OmegaConf.save(OmegaConf.create(config), directory / "config.yaml")
    return directory


def means(directory, row="all"):
    found = result.summarise(answers.read(directory, trust=True))["results"][row]
    return {name: cell["mean"] for name, cell in found.items() if name != "questions" and cell}


def prepared(path, *rows):
    """Write a file of rows (source, question, truth)."""
    made = []
    for source, words, truth in rows:
        asked = [{"role": "user", "content": words}]
        made.append(make_row(source, asked, truth, ability="", extra_info={"index": 0}))
    write_dataset(path, {"test": made}, {})
    return str(path / "test.parquet")


# ------------------------------------------------------------------ what a dump says


def test_each_component_has_a_mean_over_questions_and_pass_at_k(tmp_path):
    lines = [line("b", n, correctness=1.0, depth=2.0, parse_error=0) for n in range(4)]
    lines.append(line("a", 3, correctness=1.0, depth=2.0, parse_error=0))
    lines += [line("a", n, correctness=0.0, depth=2.0, parse_error=4) for n in range(3)]
    # 1 of 4 and 4 of 4 responses are right, so that pass@4 is 1 for both questions.
    assert means(evaluation(tmp_path / "run", lines)) == pytest.approx(
        {"correctness": (1 / 4 + 1) / 2, "pass@4 of correctness": 1, "depth": 2, "score": 1}
    )
    record = result.summarise(answers.read(tmp_path / "run"))
    assert (record["questions"], record["answers"], record["samples"]) == (2, 8, 4)
    assert record["parse_errors"] == {"NOT_JSON": 3}
    assert "NOT_JSON 3" in result.to_text(record)


@pytest.mark.parametrize(
    ("lines", "config", "expected"),
    [
        # A declared reward has its components, and the share of responses that reach the highest
        # value.
        ([line(f"q{value}", correctness=value, other=7.0) for value in (3.0, 2.5, -3.0)],
         {"reward": TOOLBOX_REWARD}, {"correctness": 2.5 / 3, "correctness = 3": 1 / 3}),
        # A value that is not scored does not count.
        ([line("a", joy=None, format=1.0), line("b", joy=1.0, format=0.0),
          line("b", 1, joy=None, format=0.0)], {}, {"joy": 1.0, "format": 0.5}),
        # A list counts as its sum.
        ([line("a", steps=[0.5, 0.25]), line("b", steps=[0.25])], {}, {"steps": 0.5}),
    ],
)  # fmt: skip
def test_the_measures_of_a_response_follow_from_its_rewards(tmp_path, lines, config, expected):
    found = means(evaluation(tmp_path, lines, **config))
    assert found == pytest.approx({**expected, "score": 1.0})


BY_TURN = """
from gdpo_verl.rewards import Component, declares

@declares(Component("steps", 0, 2), Component("near", 0, 0.7), by_turn=["steps"])
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 0.0, "steps": [0.0], "near": 0.0}
"""


def test_the_highest_value_is_reached_in_single_precision_but_never_by_a_sum_over_turns(tmp_path):
    (tmp_path / "rewards.py").write_text(BY_TURN)
    function = {"path": str(tmp_path / "rewards.py"), "name": "compute_score"}
    lines = [line("a", steps=[1.0, 1.0], near=0.699999988), line("b", steps=[2.0], near=0.5)]
    found = means(
        evaluation(tmp_path, lines, reward=TOOLBOX_REWARD | {"custom_reward_function": function})
    )
    assert found.keys() == {"steps", "near", "near = 0.7", "score"}
    assert found["near = 0.7"] == 0.5


def test_responses_count_for_the_data_source_of_their_row(tmp_path):
    # The truths are equal and no texts, and one question is the beginning of another one.
    truth = {"b": [1, 2], "a": "x"}
    rows = [("multiple", "Add 1 and 2", truth), ("parallel", "Add 1 and 23", truth)]
    file = prepared(tmp_path / "data", *rows, ("x", "No", {"b": [], "a": ""}))
    lines = [line("Add 1 and 2", truth=truth, right=1.0)]
    lines.append(line("Add 1 and 23", truth=truth, right=0.0))
    directory = evaluation(tmp_path / "run", lines, data={"val_files": [file]})
    for row, mean in {"multiple": 1, "parallel": 0, "all": 0.5}.items():
        assert means(directory, row)["right"] == mean
    read = answers.read(directory)
    (note,) = run._unanswered(read.questions, read.sources, 3)
    assert f"1 questions have no response and count in no number: {file} row 2. Their" in note
    # with --limit, questions without a response are expected
    assert not [*run._unanswered(read.questions, {}, 2)]


def test_the_last_dump_of_a_run_is_read_and_no_other_file(tmp_path):
    run_of_two = evaluation(tmp_path / "run", [line("a", right=0.0)])
    later = run_of_two / "validation" / "20.jsonl"
    later.write_text(json.dumps(line("a", right=1.0)) + "\n")
    for place in (run_of_two, run_of_two / "validation"):
        assert answers.find_dump(place) == later
    assert answers.find_dump(run_of_two / "validation" / "0.jsonl").stem == "0"
    for path, complaint in ((tmp_path / "none", "found nothing"), (tmp_path, r"found \['run'\]")):
        with pytest.raises(FileNotFoundError, match=complaint):
            answers.find_dump(path)


@pytest.mark.parametrize("second", ["{", '{"input": "a"}', "3"])
def test_a_file_that_is_no_dump_is_rejected_with_its_line(tmp_path, second):
    file = tmp_path / "0.jsonl"
    write_lines(file, [line("a")], end=second)
    with pytest.raises(ValueError, match="line 2: expected a response of verl's validation"):
        answers.read(file)
    file.write_text("")
    with pytest.raises(ValueError, match="expected a line for each response, found none"):
        answers.read(file)


# ------------------------------------------------------------------ comparing


def test_a_difference_is_paired_by_question(tmp_path):
    # Among 200 questions, A is right wherever B is right, and for ten more.
    b = [line(f"q{n}", right=float(n % 4 != 1)) for n in range(200)]
    a = [line(f"q{n}", right=float(n % 4 != 1 or n % 20 == 1)) for n in range(200)]
    found = compare([evaluation(tmp_path / "a", a)], [evaluation(tmp_path / "b", b)])
    cell = found["rows"]["all"]["right"]
    assert [cell[key]["mean"] for key in cell] == pytest.approx([0.8, 0.75, 0.05])
    # 10 of 200 questions differ: the deviation is √(0.05 · 0.95 / 200) = 0.0154. Unpaired, it would
    # be √((0.8 · 0.2 + 0.75 · 0.25) / 200) = 0.042, and the interval would contain 0.
    assert cell["difference"]["low"] == pytest.approx(0.02, abs=0.006)
    assert cell["difference"]["high"] == pytest.approx(0.08, abs=0.006)
    shown = result.estimate_text(cell["difference"], signed=True)
    assert shown.startswith("+0.050 (+0.02")
    assert shown in to_text(found)


def test_training_seeds_are_averaged_and_their_spread_is_shown_separately(tmp_path):
    runs = []
    for place, right in enumerate((20, 30, 10, 10)):
        lines = [line(f"q{n}", right=float(n < right)) for n in range(40)]
        runs.append(evaluation(tmp_path / str(place), lines))
    found = compare(runs[:2], runs[2:])
    cell = found["rows"]["all"]["right"]
    assert (cell["a"]["mean"], cell["b"]["mean"]) == (0.625, 0.25)
    assert found["each_evaluation"]["right"] == {"a": [0.5, 0.75], "b": [0.25, 0.25]}
    # The standard deviation of 0.5 and 0.75 is 0.25/√2.
    assert "right, A: 0.500, 0.750; standard deviation 0.177" in to_text(found)


def test_different_questions_are_rejected_and_different_settings_are_reported(tmp_path):
    def asked(name, *questions, temperature=1.0, **data):
        lines = [line(question, right=1.0) for question in questions]
        sampling = {"rollout": {"val_kwargs": {"temperature": temperature}}}
        return evaluation(tmp_path / name, lines, actor_rollout_ref=sampling, data=data)

    a = asked("a", "q", "r")
    with pytest.raises(ValueError, match=r"found 1 of 2 that are only in .*, and 1 of 2"):
        compare([a], [asked("b", "q", "s")])
    hot = asked("hot", "q", "r", temperature=1.5)
    notes = "\n".join(compare([a], [hot])["notes"])
    assert "CAUTION: not the same actor_rollout_ref.rollout.val_kwargs: " in notes
    assert "fewer than 30 questions, intervals are rough: ['all']" in notes
    # If only one evaluation knows its rows, questions are matched by their texts.
    file = prepared(tmp_path, ("s", "q", "t"), ("s", "r", "t"))
    known = asked("known", "q", "r", val_files=file)
    assert compare([known], [a])["rows"]["all"]["right"]["difference"]["mean"] == 0
    (a / "config.yaml").unlink()
    assert "settings are not compared" in "\n".join(compare([a], [hot])["notes"])


def test_the_same_rows_are_paired_even_if_their_prompts_differ(tmp_path):
    data = {"val_files": prepared(tmp_path / "data", ("s", "one", "t"), ("s", "two", "t"))}
    sides = []
    for opening in ("<|im_start|>", "[INST]"):
        lines = [line(words, input=opening + words) for words in ("one", "two")]
        sides.append([evaluation(tmp_path / opening, lines, data=data)])
    assert compare(*sides)["rows"]["all"]["questions"] == 2


# ------------------------------------------------------------------ what verl is asked


def config_of_run(directory, *overrides):
    """Make a run directory with the configuration of a toolbox run."""
    config, _ = launch.composed("toolbox/gdpo", directory, overrides)
    directory.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, directory / "config.yaml")
    return directory


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def composed(tmp_path):
    """Return verl's configuration for a request of `gdpo-verl evaluate`."""

    def compose(model, name, recipe=None, **options):
        request = run.EvaluationRequest(str(name), recipe, **options)
        own, directory = run._configuration(request, model, tmp_path)
        overrides = [*run._overrides(request, model), *run._given_overrides(request)]
        return launch.composed(own, tmp_path / "out", overrides, directory)[0]

    return compose


def test_a_model_from_a_folder_gets_the_questions_of_a_recipe_and_nothing_is_trained(
    model, composed
):
    config = composed(
        Model("m", folder=model),
        model,
        "gsm8k/gdpo",
        data=["it's mine.parquet"],
        samples=4,
        temperature=0.5,
        limit=10,
        overrides=["hardware=cpu", "actor_rollout_ref.rollout.val_kwargs.top_p=0.9"],
    )
    assert config.trainer.val_only
    assert config.trainer.val_before_train
    assert config.trainer.resume_mode == "disable"
    assert config.actor_rollout_ref.model.path == str(model)
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    assert (sampling.n, sampling.temperature, sampling.top_p) == (4, 0.5, 0.9)
    assert sampling.do_sample
    assert config.data.val_files == ["it's mine.parquet"]
    assert config.data.train_files == ["it's mine.parquet"]
    assert (config.data.val_max_samples, config.data.seed) == (10, 0)
    # a second copy of the weights is not loaded
    assert not config.actor_rollout_ref.actor.use_kl_loss


def test_a_checkpoint_is_loaded_over_the_model_of_its_run_with_the_runs_settings(
    model, composed, tmp_path
):
    settings = [f"actor_rollout_ref.model.path={model}", "data.max_response_length=40"]
    training = config_of_run(tmp_path / "a run", *settings)
    checkpoint = training / "checkpoints" / "global_step_20"
    found = Model("m", checkpoint=checkpoint, run=training)
    config = composed(found, training)
    assert config.trainer.resume_mode == "resume_path"
    assert config.trainer.resume_from_path == str(checkpoint)
    assert config.actor_rollout_ref.actor.checkpoint.load_contents == ["model"]
    assert (config.data.max_response_length, config.trainer.project_name) == (40, "toolbox")
    assert config.trainer.validation_data_dir == str(tmp_path / "out" / "validation")
    # An evaluation on another machine, and one with the questions of another task.
    for recipe in (None, "gsm8k/gdpo"):
        config = composed(found, training, recipe, overrides=["hardware=cpu"])
        assert config.trainer.device == "cpu"
        assert config.actor_rollout_ref.model.path == str(model)


def test_questions_of_bfcl_can_replace_those_of_the_run(model, composed, tmp_path):
    training = config_of_run(tmp_path / "run", f"actor_rollout_ref.model.path={model}")
    of_run = Model("m", folder=model, run=training)
    config = composed(of_run, training, overrides=["+tool_call=bfcl"])
    assert config.reward.custom_reward_function.path == "pkg://gdpo_verl.rewards.bfcl"
    assert Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).is_file()
    assert len(config.data.val_files) == 2
    # The same for another model, with a recipe.
    overrides = ["hardware=cpu"]
    same = composed(Model("m", folder=model), "m", "tool_call/leaderboard", overrides=overrides)
    assert same.data.val_files == config.data.val_files
    assert same.reward.custom_reward_function.path == "pkg://gdpo_verl.rewards.bfcl"
    for key in ("agent", "val_kwargs", "max_model_len"):
        assert same.actor_rollout_ref.rollout[key] == config.actor_rollout_ref.rollout[key]


def test_questions_that_were_in_the_training_data_are_named(tmp_path):
    toolbox_data.prepare(tmp_path, train=4, validation=3)
    train = f"{tmp_path}/train.parquet"
    both = f"data.val_files=[{train},{tmp_path}/validation.parquet]"
    training = config_of_run(tmp_path / "run", f"data.train_files={train}", both)
    questions = answers.questions_of(OmegaConf.load(training / "config.yaml"))
    asked = {question.key: "" for question in questions[2:]}
    trained_on = run._prompts_of_training(Model("m", run=training))
    (note,) = run._seen(questions, asked, trained_on)
    assert note.startswith("CAUTION: 2 questions are in the training data: ")
    assert f"{train} row 3" in note
    assert not [*run._seen(questions[4:], asked, trained_on)]
    assert run._prompts_of_training(Model("m")) == set()


# ------------------------------------------------------------------ the command


TOOLBOX = "--recipe toolbox/gdpo"
REFUSED = {
    f"/no/model {TOOLBOX}": "model: '/no/model' does not exist",
    "nobody/nothing": "`hf download nobody/nothing --local-dir",
    "precious": "neither a Hugging Face model (config.json with weights), nor a run of",
    "precious/notes": "model: expected a folder or a hub id, found the file 'precious/notes'",
    "weightless": "model: 'weightless' has a config.json and no weights",
    "model": "for example --recipe toolbox/gdpo",
    "model --recipe toolbox/gdp": "Did you mean 'toolbox/gdpo'?",
    f"model {TOOLBOX} --samples 0": "--samples: expected at least 1, found 0",
    f"model {TOOLBOX} --limit 0": "--limit: expected at least 1, found 0",
    f"model {TOOLBOX} --samples 2 --temperature 0": "actor_rollout_ref.rollout.val_kwargs.n: "
    "expected 1 at temperature 0, where all responses",
    f"model {TOOLBOX} --data data/aime24/test.parquet": "gdpo-verl prepare aime24",
    # An unfinished training run does not count as an unfinished evaluation.
    f"model {TOOLBOX} --out precious": "--out: expected a new directory, found precious",
    f"model {TOOLBOX} --out precious/notes": "--out: expected a new directory, found",
}


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED.items(), ids=REFUSED)
def test_an_evaluation_that_cannot_run_is_rejected_before_anything_starts(
    model, tmp_path, monkeypatch, capsys, arguments, sentence
):
    monkeypatch.chdir(tmp_path)
    for folder in ("precious", "weightless"):
        Path(folder).mkdir()
    Path("weightless/config.json").write_text("{}")
    Path("precious/notes").write_text("")
    Path("precious/launch.json").write_text('{"recipe": "toolbox/gdpo"}')
    there = sorted(tmp_path.rglob("*"))
    assert main(["evaluate", "--out", "out", *arguments.split()]) == 1
    assert sentence in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == there


def test_a_checkpoint_of_another_number_of_workers_is_rejected_with_the_way_to_merge_it(tmp_path):
    config = OmegaConf.create({"trainer": {"nnodes": 1, "n_gpus_per_node": 1}})
    shard = tmp_path / "global_step_2" / "actor" / "model_world_size_2_rank_0.pt"
    shard.parent.mkdir(parents=True)
    shard.touch()
    found = Model("m", checkpoint=shard.parents[1])
    with pytest.raises(ValueError, match=r"written by 2 workers.*verl\.model_merger merge"):
        run._check_workers(config, found)
    config.trainer.n_gpus_per_node = 2
    run._check_workers(config, found)


def test_compare_accepts_two_evaluations_or_two_sides(tmp_path, capsys):
    a = str(evaluation(tmp_path / "a", [line("q", right=1.0)]))
    b = str(evaluation(tmp_path / "b", [line("q", right=1.0)]))
    file = tmp_path / "c.json"
    assert main(["compare", a, b, "--json", str(file)]) == 0
    assert json.loads(file.read_text())["difference"] == "a - b"
    assert main(["compare", a, "--to", b]) == 0
    assert main(["compare", a]) == 1
    assert "expected two evaluations" in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.slow
def test_a_run_and_its_first_policy_are_evaluated_by_verl(toolbox, policy, tmp_path):
    settings = (
        f"data.train_files={toolbox}/train.parquet data.val_files={toolbox}/validation.parquet "
        f"actor_rollout_ref.model.path={policy} data.train_batch_size=8 "
        "actor_rollout_ref.actor.ppo_mini_batch_size=8 trainer.total_training_steps=1 "
        "trainer.save_freq=1 trainer.val_before_train=false trainer.test_freq=-1"
    )
    training = str(tmp_path / "run")
    run_cli("train", "toolbox/gdpo", "--run", training, *settings.split())
    sampling = ["--samples", "2", "--limit", "24", "--out"]
    of_run = tmp_path / "of_run"
    table = run_cli("evaluate", training, *sampling, str(of_run))
    questions = ["--recipe", "toolbox/gdpo", "--data", f"{toolbox}/validation.parquet"]
    of_policy = str(tmp_path / "of_policy")
    run_cli("evaluate", str(policy), *questions, *sampling, of_policy)

    assert "step 1: 24 questions, 2 responses each, temperature 1, top-p 1" in table
    assert not (of_run / "checkpoints").exists()
    record = json.loads((of_run / run.NUMBERS).read_text())
    assert (record["questions"], record["answers"], record["notes"]) == (24, 48, [])
    # The policy was made so that the format is right in most responses.
    assert record["results"]["all"]["format"]["mean"] > 0.5
    report = run_cli("compare", str(of_run), of_policy)
    assert "correctness = 3" in report
    assert "CAUTION" not in report
