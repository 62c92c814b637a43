"""Report, replay, evaluation and the training count the same responses and groups of a dump."""

from __future__ import annotations

import json
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
from gdpo_verl.lab.report import write_report
from gdpo_verl.lab.report.drawn import run_of_dumps
from gdpo_verl.lab.report.survey import read_dumps
from gdpo_verl.lab.rundir.run import read_run
from gdpo_verl.plugin.step.batch import RewardBatch, RewardRows
from gdpo_verl.plugin.step.dumps import Dump

KEYS = ("format", "correctness", "style")
OBJECTIVE = GdpoConfig().resolve([Component(name, optional=name == "style") for name in KEYS])
# By mini-batch and group: the rewards of each session, and its number of outputs.
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
# Of one step, counted by hand. A component counts in the groups in which it is scored.
RESPONSES, GROUPS, DEAD = 14, 6, 2
CONSTANT = {"format": 4, "correctness": 4, "style": 4}
STEPS = 2  # those whose dump is complete


def uid_of(step, name):
    """A uid as verl makes it."""
    return verls_uid(f"{step} {name}")


def rewards_of(values):
    return {"score": sum(value or 0 for value in values), **dict(zip(KEYS, values, strict=True))}


def step_of_training(step):
    """The rows that verl dumps of a step, with our columns, and the metrics of the step."""
    dump = Dump(OBJECTIVE)
    infos, metrics = {}, []
    for groups in MINI_BATCHES:
        uids, keys, returned, counts = [], [], [], []
        for name, sessions in groups.items():
            for session, (values, outputs) in enumerate(sessions):
                for output in range(outputs):
                    # Earlier outputs have other rewards, which count in nothing.
                    own = values if output == outputs - 1 else (9, 9, 9)
                    uids.append(uid_of(step, name))
                    keys.append(f"{uids[-1]}_{session}_{output}")
                    returned.append(rewards_of(own))
                    counts.append(3 + output)
        padding = [f"pad{verls_uid(uids[0])}_{n}_0" for n in range(2)]
        is_padding = [False] * len(keys) + [True] * 2
        keys, uids = keys + padding, uids + padding
        returned, counts = returned + [returned[0]] * 2, counts + [0] * 2
        rows = RewardRows(OBJECTIVE, returned, keys, is_padding, global_step=step)
        batch = RewardBatch.of(rows, uids, torch.tensor(counts))
        dump.keep(batch)
        metrics.append(batch_metrics(batch.decomposition, OBJECTIVE))
        infos |= dict(zip(keys, returned, strict=True))
    names = {uid_of(step, name): name for groups in MINI_BATCHES for name in groups}
    keys = list(infos)
    columns = dump.columns(keys)
    lines = []
    for place, key in enumerate(keys):
        # As in verl, a later output begins with another text than the question.
        question = names.get(key.split("_")[0], "padding")
        prompt = question if key.endswith("_0") else f"{question} and what followed"
        line = {"input": prompt, "output": key, "gts": question, "uid": key, "step": step}
        line |= {"score": infos[key]["score"]}
        lines.append(line | {name: column[place] for name, column in columns.items()})
    random.Random(step).shuffle(lines)
    return lines, mean_of_mini_batches(metrics)


def mean_of_mini_batches(metrics):
    """Each mean over its mini-batches with its weights, as verl's aggregator takes it."""
    found = {}
    for key in dict.fromkeys(key for each in metrics for key in each):
        values = [each[key] for each in metrics if key in each]
        if key.startswith("rewards/") and key.endswith(("/min", "/max")):
            found[key] = (min if key.endswith("/min") else max)(values), 1.0
            continue
        weights = [getattr(value, "weight", 1.0) for value in values]
        total = sum(value * weight for value, weight in zip(values, weights, strict=True))
        found[key] = total / (sum(weights) or 1.0), sum(weights)
    return found


@pytest.fixture
def run(tmp_path):
    """A run of three steps, of which the dump of the last one ends within a line."""
    (tmp_path / "run/rollouts/7.jsonl").mkdir(parents=True)  # no dump
    lines = []
    for step in range(1, STEPS + 2):
        rows, metrics = step_of_training(step)
        file = tmp_path / f"run/rollouts/{step}.jsonl"
        if step <= STEPS:
            write_lines(file, rows)
        else:
            write_lines(file, rows[:-1], end=json.dumps(rows[-1])[:-30])
        lines.append({"step": step, "data": {key: mean for key, (mean, _) in metrics.items()}})
    write_lines(tmp_path / "run/metrics.jsonl", lines)
    (tmp_path / "run/config.yaml").write_text("algorithm: {adv_estimator: gdpo}")
    return tmp_path / "run"


def test_the_training_counts_what_was_counted_by_hand():
    _, metrics = step_of_training(1)
    for key in KEYS:
        share, weight = metrics[f"gdpo/{key}/constant_groups"]
        assert share * weight == pytest.approx(CONSTANT[key])
    assert metrics["gdpo/unscored_rows"][1] == RESPONSES
    assert metrics["gdpo/singleton_groups"] == (pytest.approx(1 / GROUPS), GROUPS)


def test_the_report_counts_as_the_training(run):
    (found,) = read_dumps([read_run(run)])
    steps = [found.training[step] for step in range(1, STEPS + 1)]
    assert [step.responses for step in steps] == [RESPONSES] * STEPS
    assert [step.groups for step in steps] == [GROUPS] * STEPS
    assert [step.compared for step in steps] == [GROUPS] * STEPS
    assert [sum(step.dead.values()) for step in steps] == [DEAD] * STEPS
    for step in steps:
        constant = Counter(name for group in step.shown for name in group["constant"])
        sizes = {group["title"]: group["size"] for group in step.shown}
        # A group of one is not called constant on the page.
        alone = Counter(k for group in step.shown if group["size"] == 1 for k in group["keys"])
        assert constant + alone == CONSTANT
        assert sizes == {
            name: len(each) for groups in MINI_BATCHES for name, each in groups.items()
        }
    cut = found.training[STEPS + 1]
    assert cut.shown
    assert (cut.groups, cut.compared, sum(cut.dead.values())) == (0, 0, 0)
    (note,) = found.notes
    assert note.startswith(f"rollouts/{STEPS + 1}.jsonl: 1 lines are not complete rows")


def test_the_report_computes_the_metrics_of_the_training_from_its_dump(run, tmp_path):
    (run / "metrics.jsonl").unlink()
    (run / "rollouts/3.jsonl").unlink()
    page = write_report([run], tmp_path / "page")
    assert page.exists()
    found = run_of_dumps(run)
    for step in range(1, STEPS + 1):
        _, metrics = step_of_training(step)
        for key, (value, _) in metrics.items():
            assert found.metrics[step][key] == pytest.approx(value, abs=1e-9), key


def test_replay_counts_as_the_training(run):
    found = to_json(replay([run]))
    assert (found["rows"], found["groups"]) == (STEPS * RESPONSES, STEPS * GROUPS)
    assert (found["dead_groups_recorded"], found["dead_groups"]) == (STEPS * DEAD,) * 2
    # In one group style is not scored, so that it neither varies nor is constant.
    scored = {"format": GROUPS, "correctness": GROUPS, "style": GROUPS - 1}
    for key in KEYS:
        varies = STEPS * (scored[key] - CONSTANT[key])
        assert found["components"][key]["varies"] == [varies, varies]
    assert found["reproduces"] < 1e-9
    assert f"Step {STEPS + 1} is left out" in " ".join(found["notes"])


def test_groups_are_counted_before_conditions_as_in_the_metrics(run):
    # No response is so correct, so that the two other components are 0 under the condition.
    condition = "{on: correctness, at_least: 2}"
    found = to_json(
        replay([run], [f"algorithm.gdpo.conditions={{format: {condition}, style: {condition}}}"])
    )
    assert found["dead_groups"] == STEPS * DEAD
    assert found["components"]["style"]["varies"] == [STEPS * (GROUPS - 1 - CONSTANT["style"])] * 2
    assert found["components"]["style"]["influence"][1] == 0


def test_an_evaluation_counts_as_the_training(run):
    read = answers.read(run / "rollouts/1.jsonl")
    record = result.summarise(read)
    assert (record["answers"], record["questions"]) == (RESPONSES, GROUPS)
    for key in KEYS:
        scored = [
            {each[key] for each in responses if each[key] is not None}
            for responses in read.answers.values()
        ]
        assert [len(values) for values in scored].count(1) == CONSTANT[key]
    values = [value for groups in MINI_BATCHES for each in groups.values() for value, _ in each]
    found = [each["format"] for responses in read.answers.values() for each in responses]
    assert sorted(found) == sorted(value[0] for value in values)
