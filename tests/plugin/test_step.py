"""One step through the trainer hooks, without Ray: metrics, dump columns, check of the score."""

import math
import re
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.advantage import EstimatorSettings, Gate, decompose
from gdpo_verl.advantage.schedule import Schedule
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.diagnostics import batch_metrics, parse_error_metrics
from gdpo_verl.plugin.step import estimator, replay_buffer
from gdpo_verl.plugin.step.batch import RewardRows
from gdpo_verl.plugin.step.estimator import AdvantageStep
from gdpo_verl.plugin.step.trainer import TrainerHooks

NAN = math.nan
GARBAGE = {"format": "none", "correctness": math.inf, "parse_error": 9}

# Key, response tokens, format, correctness, parse error. The format counts if correctness is 0 or
# more. a_1 has two outputs, and only the last one, 10, counts. The rows are in no particular order.
ROWS = [
    ("c_1_0", 2, 0.0, -1.0, 0),
    ("a_1_10", 3, 1.0, -3.0, 4),
    ("d_0_0", 1, 1.0, None, 1),
    ("b_0_0", 4, 1.0, 3.0, 0),
    ("a_1_9", 2, 0.0, 3.0, 6),
    ("a_0_0", 1, 1.0, 1.0, 0),
    ("c_0_0", 2, 1.0, -1.0, 4),
    ("a_2_0", 5, 1.0, 0.0, 0),
    ("b_1_0", 1, 1.0, 3.0, 0),
]
KEYS = [key for key, *_ in ROWS]
# The sum of the rewards of each row that count.
SCORES = dict(zip(KEYS, [-1.0, -3.0, 0.0, 4.0, 3.0, 2.0, -1.0, 1.0, 4.0], strict=True))
# The rewards of the sessions a_0, a_1, a_2, b_0, b_1, c_0, c_1, d_0 under the condition.
COUNTED = torch.tensor(
    [[1, 1], [0, -3], [1, 0], [1, 3], [1, 3], [0, -1], [0, -1], [NAN, NAN]], dtype=torch.float64
)
GROUPS = ["a", "a", "a", "b", "b", "c", "c", "d"]
# the masks of their tokens
MASK = torch.arange(7) < torch.tensor([1, 5, 5, 4, 1, 2, 2, 1])[:, None]
SESSION_OF_ROW = [6, 1, 7, 3, 1, 0, 5, 2, 4]


def hooks_of(adv_estimator="gdpo", *, dump=True, **settings):
    condition = {"format": {"on": "correctness", "at_least": 0.0}}
    declared = [Component("format", 0, 1), Component("correctness", -3, 3, optional=True)]
    objective = GdpoConfig(conditions=condition, **settings).resolve(declared)
    trainer = {"rollout_data_dir": "rollouts"} if dump else {}
    return TrainerHooks(
        OmegaConf.create({"algorithm": {"adv_estimator": adv_estimator}, "trainer": trainer}),
        objective,
    )


def step_of(hooks, global_step=1, rows=ROWS):
    """Take a step of verl on rows between two padding rows; return the step and the metrics."""
    real = [{"format": f, "correctness": c, "parse_error": code} for _, _, f, c, code in rows]
    own_keys, own_tokens = [row[0] for row in rows], [row[1] for row in rows]
    keys = ["pad 0", *own_keys, "pad 1"]
    padding = [key.startswith("pad") for key in keys]
    handed = RewardRows(hooks.objective, [GARBAGE, *real, GARBAGE], keys, padding, global_step)
    prompts = [key[0] for key in own_keys]
    uids = ["a", *prompts, "b"]
    mask = torch.arange(7) < torch.tensor([7, *own_tokens, 7])[:, None]
    scores = torch.zeros(mask.shape)
    scores[:, 0] = torch.tensor([SCORES.get(key, 99.0) for key in keys])
    tensors = {"response_mask": mask, "token_level_scores": scores}
    data = SimpleNamespace(non_tensor_batch={"uid": uids}, batch=tensors)
    step = AdvantageStep(handed, data)
    if hooks.estimates:
        with estimator.advantage_step(step):
            estimator.gdpo(scores, mask, uids)
    metrics = {}
    hooks.report(step, metrics)
    return step, metrics


def test_each_metric_counts_the_right_sessions_before_or_after_conditions():
    hooks = hooks_of()
    _, metrics = step_of(hooks)
    returned = COUNTED.clone()
    # This is the format as it was returned, before the condition.
    returned[:, 0] = torch.tensor([1, 1, 1, 1, 1, 1, 0, 1])
    found = decompose(returned, GROUPS, MASK.sum(dim=1), conditioned=COUNTED)
    expected = batch_metrics(found, hooks.objective)
    # The parse errors are 4 for the last output of a_1 and for c_0, and 1 for d_0.
    expected |= parse_error_metrics([0, 4, 0, 0, 0, 4, 0, 1]) | {"gdpo/reward_errors": 0.0}
    assert metrics == pytest.approx(expected)
    assert metrics["rewards/format/mean"] == 7 / 8
    assert metrics["gdpo/phantom_groups"] == 0  # in a group of wrong responses no format counts
    # Group b, in which nothing varies, has the same advantages as in the pure function.
    pure = gdpo_advantages(COUNTED, GROUPS, MASK)[:, 0]
    assert float(pure[3]) > 0.1
    assert metrics["gdpo/whiten_shift"] == pytest.approx(float(pure[3]))
    # The first two of group a: (1 + 2) / sqrt(3) and (5 + 7) / sqrt(39) apart before it.
    apart = 3 / math.sqrt(3) + 12 / math.sqrt(39)
    gain = pytest.approx(float(pure[0] - pure[1]) / apart, rel=1e-5)
    assert metrics["gdpo/whiten_gain"] == gain


def test_metrics_of_mini_batches_add_up_to_those_of_all_rows():
    from verl.trainer.ppo.v1.utils import MetricsAggregator

    import gdpo_verl.plugin.entry  # noqa: F401  where the tests run without verl's plug-ins

    # In the second mini-batch, a session is not scored for correctness, and a parse error is new.
    hooks, aggregator = hooks_of("grpo", dump=False), MetricsAggregator()
    for groups in ("ab", "cd"):
        rows = [row for row in ROWS if row[0][0] in groups]
        _, metrics = step_of(hooks, rows=rows)
        aggregator.add_step_metrics(metrics, sample_count=len(rows))
    found, (_, whole) = aggregator.get_aggregated_metrics(), step_of(hooks)
    # A deviation is averaged over mini-batches, and an advantage is compared only within its
    # mini-batch.
    own = {name for name in whole if name.endswith(("/std", "/influence"))}
    assert found.keys() == whole.keys()
    for name in found.keys() - own:
        assert found[name] == pytest.approx(float(whole[name])), name


def test_failed_sessions_are_counted_and_reported_once_with_the_last_error(monkeypatch, caplog):
    monkeypatch.setattr(replay_buffer, "last_error", lambda: "KeyError: 'no such table'")
    hooks, failures = hooks_of(), iter([0, 2, 1])
    hooks.failures = SimpleNamespace(take=lambda: next(failures))
    shares = [step_of(hooks)[1]["gdpo/failed_sessions"] for _ in range(3)]
    assert shares == pytest.approx([0, 2 / 10, 1 / 9])
    # the weights in the mean over mini-batches
    assert [share.weight for share in shares] == [8, 10, 9]
    (message,) = caplog.messages
    assert message.startswith("2 of 10 rollout sessions failed and are left out")
    assert "KeyError: 'no such table'" in message


def in_reverse(table):
    """Return the number of each row in reverse order, from a table of sessions."""
    return [pytest.approx(value) for value in table[SESSION_OF_ROW[::-1], 0].tolist()]


RAMP = Schedule((0, 10), (0.0, 1.0))
UNWHITENED = {"estimator": EstimatorSettings(whiten="none")}


@pytest.mark.parametrize(
    ("adv_estimator", "settings", "options", "expected"),
    [
        ("gdpo", {}, {}, {}),
        ("grpo", {}, {}, {}),
        ("grpo", UNWHITENED, {"whiten": "none"}, {}),
        ("gdpo", UNWHITENED, {"whiten": "none"}, {"gdpo/whiten_shift": 0.0}),
        (
            "gdpo",
            {"estimator": EstimatorSettings(whiten="sequence")},
            {"whiten": "sequence"},
            {},
        ),
        (
            "gdpo",
            {"schedule": {"format": RAMP}},
            {"weights": [0.3, 1.0]},
            {"gdpo/format/weight": 0.3, "gdpo/correctness/weight": 1.0},
        ),
        # These are b and c among four groups; d has no correctness.
        (
            "gdpo",
            {"gate": {"on": "correctness", "when": "constant"}},
            {"gate": Gate(1)},
            {"gdpo/gated_groups": 2 / 4},
        ),
        ("gdpo", {"variant": "sa_mrpo"}, {}, {}),  # this variant needs the ranges
    ],
)
def test_a_dump_and_metrics_have_raw_components_and_the_advantages_of_the_settings(
    adv_estimator, settings, options, expected
):
    hooks = hooks_of(adv_estimator, **settings)
    _, metrics = step_of(hooks, 3)
    assert {name: metrics[name] for name in expected} == expected
    # trackers cannot write tensors
    assert all(isinstance(value, float) for value in metrics.values())
    weights = options.get("weights")
    columns = {
        "format": [row[2] for row in reversed(ROWS)],
        "correctness": [row[3] for row in reversed(ROWS)],
        "response_tokens": in_reverse(MASK.sum(dim=1, keepdim=True)),
        "gdpo_advantage": in_reverse(gdpo_advantages(COUNTED, GROUPS, MASK, **options)),
        "grpo_advantage": in_reverse(grpo_advantages(COUNTED, GROUPS, MASK, weights=weights)),
    }
    if "variant" in settings:
        columns["sa_mrpo_advantage"] = in_reverse(
            gdpo_advantages(COUNTED, GROUPS, MASK, variant="sa_mrpo", ranges=[(0, 1), (-3, 3)])
        )
    found = hooks.dump.columns(["pad 1", *reversed(KEYS), "other"])
    assert found == {name: [None, *values, None] for name, values in columns.items()}


def test_columns_are_added_to_those_of_verl_only_once():
    hooks = hooks_of()
    step_of(hooks)
    infos = {"uid": ["b_0_0", "a_0_0"], "acc": [1, 2]}
    for other in ({}, {"uid": ["of validation"]}):
        assert hooks.dump.move_into(other) == other
    columns = hooks.dump.columns(infos["uid"])
    assert columns["format"] == [1.0, 1.0]
    assert hooks.dump.move_into(infos) == infos | columns
    assert hooks.dump.move_into(infos) == infos


def test_mini_batches_of_a_step_are_dumped_together_and_the_next_step_starts_anew():
    hooks = hooks_of()
    formats = [row[2] for row in ROWS]
    for rows in (ROWS[:4], ROWS[4:]):
        step_of(hooks, 1, rows)
    found = hooks.dump.columns(KEYS)
    assert found["mini_batch"] == [0] * 4 + [1] * 5
    assert found["format"] == formats
    step_of(hooks, 2, ROWS[:4])
    found = hooks.dump.columns(KEYS)
    assert found["format"] == formats[:4] + [None] * 5
    assert "mini_batch" not in found


@pytest.mark.parametrize("adv_estimator", ["gdpo", "grpo"])
def test_without_metrics_and_dumps_nothing_extra_is_computed(adv_estimator):
    hooks = hooks_of(adv_estimator, dump=False, metrics=False)
    step, metrics = step_of(hooks)
    assert metrics == {}
    assert hooks.dump.columns(KEYS) == {}
    assert (step.batch is None) == (adv_estimator == "grpo")


def test_a_grpo_baseline_reports_all_metrics_except_the_shift_by_whitening():
    _, ours = step_of(hooks_of())
    _, control = step_of(hooks_of("grpo", dump=False))
    assert ours.keys() - control.keys() == {"gdpo/whiten_shift", "gdpo/whiten_gain"}
    same = {name for name in control if not name.endswith("influence")}
    assert {name: control[name] for name in same} == {name: ours[name] for name in same}
    # GRPO's advantage in group a is at most half as large as the sum of the two z.
    assert 0 < control["gdpo/correctness/influence"] < ours["gdpo/correctness/influence"]


@pytest.mark.parametrize(
    ("weight", "warned"),
    [
        # Half of each format is missing. Relative to its size, the score 1 of a_2 differs most.
        (0.5, ["for row a_2_0 the score is 1, but the weighted sum of the components .* is 0.5."]),
        (1.0005, ["the weighted sum"]),
        (1.00001, []),  # scores are sums in float32
    ],
)
def test_a_score_that_is_another_sum_is_reported_once_with_its_row(weight, warned, caplog):
    hooks = hooks_of("grpo", reward_weights={"format": weight})
    step_of(hooks)
    step_of(hooks)
    assert len(caplog.messages) == len(warned)
    for message, words in zip(caplog.messages, warned, strict=True):
        assert re.search(words, message)
