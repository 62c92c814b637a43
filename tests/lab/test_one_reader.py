"""Report, replay, evaluation and training count the same responses and groups of a dump."""

import random
from collections import Counter

import pytest
import torch
from fake_runs import verls_uid, write_lines

from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.lab.evaluate import answers, result
from gdpo_verl.lab.replay import replay
from gdpo_verl.lab.replay.output import to_json
from gdpo_verl.lab.report.drawn import run_of_dumps
from gdpo_verl.lab.report.survey import read_dumps
from gdpo_verl.lab.rundir.run import read_run
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows
from gdpo_verl.plugin.step.dumps import Dump

KEYS = ("format", "correctness", "style")
OBJECTIVE = GdpoConfig().resolve([Component(name, optional=name == "style") for name in KEYS])
# For each mini-batch and group: the rewards of each session, and its number of outputs.
MINI_BATCHES = [
    {
        "varies": [((0, 1, 1), 1), ((1, 1, 1), 2), ((0, 1, 1), 5)],
        "dead": [((1, 0, 0), 5), ((1, 0, 0), 1), ((1, 0, 0), 2)],
        "one session left": [((1, 1, 0), 2)],
    },
    {
        "of five outputs and one": [((0, 0, 1), 5), ((0, 1, 1), 1)],
        "style is not scored": [((0, 1, None), 1), ((0, 1, None), 2)],
        "all vary": [((0, 0, 0), 2), ((1, 1, 1), 1), ((1, 0, 0), 5)],
    },
]
# Numbers of one step, counted by hand. A component counts only in groups in which it is scored.
RESPONSES, GROUPS, DEAD = 14, 6, 2
CONSTANT = {"format": 4, "correctness": 4, "style": 4}
STEPS = 2  # the number of steps whose dump is complete


def uid_of(step, name):
    """Return a uid like verl's."""
    return verls_uid(f"{step} {name}")


def rewards_of(values):
    return {"score": sum(value or 0 for value in values), **dict(zip(KEYS, values, strict=True))}


def step_of_training(step):
    """Return the rows of verl's dump with the plug-in's columns, and each mini-batch's metrics."""
    dump = Dump(OBJECTIVE)
    names = {}
    infos = {}
    metrics = []
    for groups in MINI_BATCHES:
        keys = []
        returned = []
        for name, sessions in groups.items():
            names[uid_of(step, name)] = name
            for session, (values, outputs) in enumerate(sessions):
                for output in range(outputs):
                    keys.append(f"{uid_of(step, name)}_{session}_{output}")
                    # Earlier outputs have other rewards, which must not count.
                    returned.append(rewards_of(values if output == outputs - 1 else (9, 9, 9)))
        is_padding = [False] * len(keys) + [True] * 2
        counts = [3 + int(key[-1]) for key in keys] + [0] * 2
        keys += [f"pad{uid_of(step, keys[0])}_{n}_0" for n in range(2)]
        returned += [returned[0]] * 2
        rows = RewardRows(OBJECTIVE, returned, keys, is_padding, global_step=step)
        uids = [key.partition("_")[0] for key in keys]
        batch = RewardBatch.of(rows, uids, torch.tensor(counts))
        dump.keep(batch)
        metrics.append(batch_metrics(batch.decomposition, OBJECTIVE))
        infos |= dict(zip(keys, returned, strict=True))
    columns = dump.columns([*infos])
    lines = []
    for place, (key, info) in enumerate(infos.items()):
        question = names.get(key.partition("_")[0], "padding")
        # As in verl, the prompt of a later output differs from the question.
        prompt = question if key.endswith("_0") else f"{question} and what followed"
        line = {"input": prompt, "output": key, "gts": question, "uid": key, "step": step}
        line["score"] = info["score"]
        lines.append(line | {name: column[place] for name, column in columns.items()})
    random.Random(step).shuffle(lines)
    return lines, metrics


def mean_of(mini_batches, key):
    """Return the mean of a metric over mini-batches, and the sum of their weights."""
    values = [metrics[key] for metrics in mini_batches]
    weight = sum(value.weight for value in values)
    return sum(value * value.weight for value in values) / weight, weight


@pytest.fixture
def run(tmp_path):
    """Write a run of three steps; the dump of the last step ends within a line."""
    run = tmp_path / "run"
    (run / "rollouts/7.jsonl").mkdir(parents=True)  # this is no dump
    lines = []
    for step in range(1, STEPS + 2):
        rows, metrics = step_of_training(step)
        write_lines(run / f"rollouts/{step}.jsonl", rows)
        lines.append({"step": step, "data": metrics[0]})
    last = run / f"rollouts/{STEPS + 1}.jsonl"
    last.write_text(last.read_text()[:-30])
    write_lines(run / "metrics.jsonl", lines)
    (run / "config.yaml").write_text("algorithm: {adv_estimator: gdpo}")
    return run


def test_training_counts_the_numbers_that_were_counted_by_hand():
    _, metrics = step_of_training(1)
    for key in KEYS:
        share, weight = mean_of(metrics, f"gdpo/{key}/constant_groups")
        assert share * weight == pytest.approx(CONSTANT[key])
    assert mean_of(metrics, "gdpo/unscored_rows")[1] == RESPONSES
    assert mean_of(metrics, "gdpo/singleton_groups") == (pytest.approx(1 / GROUPS), GROUPS)


def test_the_report_counts_like_training(run):
    (found,) = read_dumps([read_run(run)])
    steps = [found.training[step] for step in range(1, STEPS + 1)]
    expected = {}
    for groups in MINI_BATCHES:
        expected |= {name: len(sessions) for name, sessions in groups.items()}
    for step in steps:
        assert (step.responses, step.groups, step.compared) == (RESPONSES, GROUPS, GROUPS)
        assert sum(step.dead.values()) == DEAD
        assert {group["title"]: group["size"] for group in step.shown} == expected
        constant = Counter()
        for group in step.shown:
            # The page does not call a group of one response constant.
            constant.update(group["keys"] if group["size"] == 1 else group["constant"])
        assert constant == CONSTANT
    cut = found.training[STEPS + 1]
    assert cut.shown
    assert (cut.groups, cut.compared, sum(cut.dead.values())) == (0, 0, 0)
    (note,) = found.notes
    assert note.startswith(f"rollouts/{STEPS + 1}.jsonl: 1 lines are not complete rows")


def test_the_report_computes_the_metrics_that_verl_aggregates(run):
    utils = pytest.importorskip("verl.trainer.ppo.v1.utils")
    (run / "rollouts/3.jsonl").unlink()
    found = run_of_dumps(run)
    for step in range(1, STEPS + 1):
        aggregator = utils.MetricsAggregator()
        for metrics in step_of_training(step)[1]:
            aggregator.add_step_metrics(metrics, sample_count=1)
        for key, value in aggregator.get_aggregated_metrics().items():
            assert found.metrics[step][key] == pytest.approx(value, abs=1e-9), key


def test_replay_counts_like_training(run):
    found = to_json(replay([run]))
    assert (found["rows"], found["groups"]) == (STEPS * RESPONSES, STEPS * GROUPS)
    assert (found["dead_groups_recorded"], found["dead_groups"]) == (STEPS * DEAD,) * 2
    _, metrics = step_of_training(1)  # the same numbers as for the other steps
    # In one group style is not scored, so that it is neither varying nor constant.
    scored = {"format": GROUPS, "correctness": GROUPS, "style": GROUPS - 1}
    for key in KEYS:
        varies = STEPS * (scored[key] - CONSTANT[key])
        assert found["components"][key]["varies"] == [varies, varies]
        influence, _ = mean_of(metrics, f"gdpo/{key}/influence")
        share, _ = mean_of(metrics, f"gdpo/{key}/advantage_share")
        assert found["components"][key]["influence"] == pytest.approx([influence] * 2)
        assert found["components"][key]["share"] == pytest.approx([share] * 2)
    assert found["reproduces"] < 1e-9
    assert f"Step {STEPS + 1} is left out" in " ".join(found["notes"])


def test_groups_are_counted_before_conditions_as_in_the_metrics(run):
    # No response reaches the threshold, so that under the condition both other components are 0.
    condition = "{on: correctness, at_least: 2}"
    found = to_json(
        replay([run], [f"algorithm.gdpo.conditions={{format: {condition}, style: {condition}}}"])
    )
    assert found["dead_groups"] == STEPS * DEAD
    assert found["components"]["style"]["varies"] == [STEPS * (GROUPS - 1 - CONSTANT["style"])] * 2
    assert found["components"]["style"]["influence"][1] == 0


def test_an_evaluation_counts_like_training(run):
    read = answers.read(run / "rollouts/1.jsonl")
    record = result.summarise(read)
    assert (record["answers"], record["questions"]) == (RESPONSES, GROUPS)
    constant = Counter()
    for responses in read.answers.values():
        for key in KEYS:
            values = {each[key] for each in responses} - {None}
            constant[key] += len(values) == 1
    assert constant == CONSTANT
