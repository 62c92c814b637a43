"""Rows of other programs and trainers: texts, components, keys, groups and settings."""

import json

import pyarrow.parquet as pq
import pytest
import torch
from fake_runs import summary_of, verls_uid, write_lines
from prepared import write
from test_evaluate import evaluation, line, means, prepared
from test_replay import KEYS, drawn, dump, lines_of, two_rewards

from gdpo_verl.lab.check_reward.tokens import byte_tokenizer
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.evaluate import answers
from gdpo_verl.lab.replay import replay
from gdpo_verl.lab.report.drawn import run_of_dumps

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("a reward that prints")
    return {"score": 1.0, "length": len(solution_str), "right": float(ground_truth == "4")}

def nested(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0, "reward_components": {"length": len(solution_str)}}

def sometimes(data_source, solution_str, ground_truth, extra_info=None):
    style = float(len(solution_str)) if "style" in solution_str else None
    return {"score": 1.0, "right": 1.0, "style": style}
"""
QUESTION = [{"role": "user", "content": "2 + 2?"}]
SAID = [
    {"role": "assistant", "content": "<call>"},
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": "four"},
]


# ---------------------------------------------------------------- the text of a response


@pytest.mark.parametrize(
    ("columns", "length"),
    [
        ({"output": "four"}, 4),
        ({"completion": "four"}, 4),
        ({"response": "four"}, 4),
        ({"completion": SAID}, len("<call>\nfour")),
        ({"reply": SAID}, len("<call>\nfour")),
    ],
)
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_the_text_consists_of_the_assistants_messages(tmp_path, capfd, columns, length, name):
    (tmp_path / "reward.py").write_text(REWARD)
    rows = [{"prompt": QUESTION, "gts": "4", "score": 1.0, **columns}] * 4
    write(tmp_path / name, rows)
    text = "reply" if "reply" in columns else ""
    file = tmp_path / "scored.jsonl"
    function = f"{tmp_path}/reward.py"
    replay([tmp_path / name], text=text, function=function, rows_file=file)
    for scored in map(json.loads, file.read_text().splitlines()):
        assert scored["components"] == {"length": length, "right": 1.0}
    assert capfd.readouterr().out == ""


def test_without_a_text_the_columns_are_listed(tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    byte_tokenizer().save_pretrained(tmp_path / "model")
    where = tmp_path / "rows.jsonl"
    where.write_text(lines_of([{"prompt": "q", "reply": "4", "gts": "4", "right": 1.0}] * 2))
    for options in (
        {"function": f"{tmp_path}/reward.py"},
        {"tokenizer": str(tmp_path / "model")},
    ):
        with pytest.raises(ValueError, match=r"line 1: expected the text of the .*'reply'.*--resp"):
            replay([where], **options)


# ---------------------------------------------------------------- components


def test_components_are_those_of_all_files(tmp_path):
    steps = {step: drawn(6, two_rewards, seed=step) for step in (1, 2, 3)}
    for place, row in enumerate(steps[1]):
        row["style"] = None  # style is not scored in the first step
        row["brevity"] = None if place % 8 else 1.0
    steps[1][0]["correctness"] = None  # the order is nevertheless that of the columns
    for row in (*steps[2], *steps[3]):
        row |= {"style": row["length"] ** 2, "brevity": 1.0}
    for row in steps[3]:
        row["late"] = row["correctness"]  # this column is missing in earlier rows
    found = replay([dump(tmp_path / "dumps", steps)]).asked
    assert found.keys == (*KEYS, "style", "brevity", "late")
    assert found.varying[found.keys.index("style")] == 12
    assert found.varying[found.keys.index("late")] > 0
    summary = summary_of(tmp_path / "page", tmp_path / "dumps")
    assert "training late, mean of all steps" in summary


def test_components_of_a_function_are_those_of_all_its_results(tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    rows = drawn(4, two_rewards)
    for place, row in enumerate(rows):
        row["output"] = "style" * (place % 3) if place > 3 else "plain"
    where = dump(tmp_path / "dumps", {1: rows})
    found = replay([where], function=f"{tmp_path}/reward.py:sometimes").asked
    assert found.keys == ("right", "style")
    nested = replay([where], function=f"{tmp_path}/reward.py:nested").asked
    assert nested.keys == ("length",)


def test_numbers_that_are_written_as_texts_are_named(tmp_path):
    rows = [row | {"style": "0.76", "id": "a1"} for row in drawn(4, two_rewards)]
    result = replay([dump(tmp_path / "dumps", {1: rows})])
    assert result.asked.keys == KEYS
    (note,) = [note for note in result.notes if "are texts" in note]
    assert note.startswith(f"{tmp_path}/dumps/1.jsonl, line 1: the numbers of 'style' are texts")
    named = {"components": [*KEYS, "style"]}
    with pytest.raises(ValueError, match=r"for 'style', found '0.76' for row .*1.jsonl, line 1"):
        replay([tmp_path / "dumps"], **named)


# ---------------------------------------------------------------- keys, groups and steps


def test_a_uid_that_is_not_verls_joins_no_rows(tmp_path):
    rows = drawn(10, two_rewards)
    for place, row in enumerate(rows):
        row["uid"] = f"math_12_{place // 8}"
    result = replay([dump(tmp_path, {1: rows})])
    assert (result.rows, result.asked.groups) == (80, 10)


# ---------------------------------------------------------------- TRL's tables


def table(run, step, rewards, advantages, prompt=""):
    """Write a table of 16 completions in groups of four, as TRL's trainer logs it."""
    rows = []
    for place, advantage in enumerate(advantages):
        right, length = rewards[place]
        rows.append(
            {
                "step": step,
                "prompt": prompt or f"q{step} {place // 4}",
                "completion": f"a{step} {place}",
                "right": right,
                "length": length,
                "advantage": advantage,
            }
        )
    write(run / f"completions_{step:05d}.parquet", rows)


def rewards_of(seed):
    generator = torch.Generator().manual_seed(seed)
    right = torch.randint(0, 2, (16,), generator=generator).double()
    length = 10 * torch.rand(16, generator=generator, dtype=torch.float64)
    return torch.stack([right, length], dim=1)


def grpo(rewards, scale):
    """Compute advantages as TRL does (trl/trainer/grpo_trainer.py, 1.16.0), in single precision."""
    total = rewards.float().sum(dim=1)
    groups = total.view(-1, 4)
    mean = groups.mean(dim=1).repeat_interleave(4)
    deviation = groups.std(dim=1).repeat_interleave(4) if scale == "group" else total.std()
    return ((total - mean) / (deviation + 1e-4)).tolist()


def gdpo(rewards):
    groups = rewards.float().view(-1, 4, 2)
    deviation = groups.std(dim=1, keepdim=True) + 1e-4
    summed = ((groups - groups.mean(dim=1, keepdim=True)) / deviation).reshape(-1, 2).sum(dim=1)
    return ((summed - summed.mean()) / (summed.std() + 1e-4)).tolist()


@pytest.mark.parametrize(
    ("name", "advantages"),
    [
        ("grpo", lambda rewards: grpo(rewards, "group")),
        ("grpo", lambda rewards: grpo(rewards, "batch")),
        ("gdpo", gdpo),
    ],
    ids=["by group", "by batch", "gdpo"],
)
def test_trls_settings_are_those_of_the_first_step_that_has_advantages(tmp_path, name, advantages):
    table(tmp_path / "run", 1, [(None, None)] * 16, [0.0] * 16)
    for step in (2, 3):
        rewards = rewards_of(step)
        table(tmp_path / "run", step, rewards.tolist(), advantages(rewards))
    result = replay([tmp_path / "run"])
    assert result.recorded.name == name
    assert result.reproduces < 1e-3
    assert result.asked.keys == ("right", "length")


def test_a_generation_that_is_logged_twice_counts_once(tmp_path):
    rewards = rewards_of(1)
    table(tmp_path / "run", 1, rewards.tolist(), grpo(rewards, "group"))
    rows = pq.read_table(tmp_path / "run/completions_00001.parquet").to_pylist()
    again = [row | {"step": 2} for row in rows]
    write(tmp_path / "run/completions_00002.parquet", again)
    result = replay([tmp_path / "run"])
    assert (result.rows, result.asked.groups, result.steps) == (16, 4, 1)
    assert "holds the generation of an earlier table again" in " ".join(result.notes)
    run = run_of_dumps(tmp_path / "run")
    assert list(run.metrics) == [1]
    assert run.metrics[1]["rewards/right/mean"] == rewards[:, 0].mean()


def test_equal_prompts_of_several_groups_are_named(tmp_path):
    rewards = rewards_of(1)
    table(tmp_path / "run", 1, rewards.tolist(), grpo(rewards, "group"), "Write a joke.")
    result = replay([tmp_path / "run"])
    said = "all responses of step 1 have one prompt and count as one group"
    assert said in " ".join(result.notes)


# ---------------------------------------------------------------- reports


def test_an_entry_of_trls_state_that_is_no_mapping_is_ignored(tmp_path):
    entries = [{"rewards/short/mean": 0.5, "step": 1}, "cut", {"loss": 1.0}, {"step": 2, "x": 1.0}]
    state = {"log_history": entries, "global_step": 2, "max_steps": 2}
    (tmp_path / "run").mkdir()
    (tmp_path / "run/trainer_state.json").write_text(json.dumps(state))
    summary = summary_of(tmp_path / "page", tmp_path / "run")
    assert "training short" in summary
    assert "2 entries of trainer" in summary.replace("\\", "")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (("input", "output", "step", *KEYS), "The metrics of 1.jsonl are left out: "),
        (("output", *KEYS), "No metrics: "),
        (("input", "output", "score"), "hold no components; the score is drawn"),
    ],
    ids=["a row of another step", "no groups", "scores alone"],
)
def test_a_report_shows_what_replay_rejects(tmp_path, columns, said):
    rows = []
    for place, row in enumerate(drawn(2, two_rewards)):
        row["step"] = 7 if place == 3 else 1
        rows.append({key: row[key] for key in columns})
    write_lines(tmp_path / "dumps/1.jsonl", rows)
    with pytest.raises(ValueError, match=r"line [14]: "):
        replay([tmp_path / "dumps"])
    summary = summary_of(tmp_path / "page", tmp_path / "dumps")
    assert said in summary
    if "score" in columns:
        assert "training score, mean of all steps" in summary
    assert "answer 3" in (tmp_path / "page/index.html").read_text()


# ---------------------------------------------------------------- evaluate and compare


@pytest.mark.parametrize(
    ("text", "replays", "compares"),
    [
        ("[1, 2]", 1, 1),
        ("algorithm: grpo", 1, 1),
        ("5", 1, 1),
        ("reward: 3", 0, 1),
        ("data: [1]", 0, 1),
        ("{actor_rollout_ref: 3, reward: {a: 1}, data: {b: 2}}", 0, 0),
    ],
)
def test_a_configuration_of_another_program_gives_an_error_without_traceback(
    tmp_path, capsys, text, replays, compares
):
    write_lines(tmp_path / "rollouts/1.jsonl", drawn(2, two_rewards))
    evaluation(tmp_path, [line("q", right=1.0)])
    (tmp_path / "config.yaml").write_text(text)
    assert main(["replay", str(tmp_path)]) == replays
    assert main(["compare", str(tmp_path), str(tmp_path)]) == compares
    printed = capsys.readouterr().err
    complaint = f"{tmp_path}/config.yaml: expected the run's configuration"
    assert printed.count(complaint) == replays + compares
    assert "Traceback" not in printed


@pytest.mark.parametrize("named", [False, True])
def test_a_question_in_two_data_sources_counts_in_both(tmp_path, named):
    file = prepared(tmp_path / "data", ("one", "2 + 2?", "4"), ("two", "2 + 2?", "4"))
    rows = []
    for source, uid in (("two", "b"), ("one", "a")):
        for session in range(2):
            row = line("2 + 2?", session, truth="4", right=float(source == "two"))
            row["uid"] = f"{verls_uid(uid)}_{session}_0"
            if named:
                row["data_source"] = source
            rows.append(row)
    directory = evaluation(tmp_path / "run", rows, data={"val_files": [file]})
    found = answers.read(directory)
    assert sorted(map(len, found.answers.values())) == [2, 2]
    assert sorted(found.sources.values()) == ["one", "two"]
    if named:
        assert means(directory, "two")["right"] == 1
        assert means(directory, "one")["right"] == 0
