"""Advantages from rewards as dicts, for trainers that pass nothing else."""

import math

import pytest
import torch

from gdpo_verl import advantages_of, gdpo_advantages
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import Component
from gdpo_verl.reward_dicts import RewardErrors

GROUPS = ["a", "b", "a", "b"]
ROWS = [
    {"right": 1, "short": 0.5},
    {"right": 0, "short": None},
    {"right": 0, "short": 1.0},
    {"right": 1, "short": math.nan},
]
TABLE = torch.tensor([[1.0, 0.5], [0, math.nan], [0, 1], [1, math.nan]], dtype=torch.float64)


@pytest.mark.parametrize("tokens", [None, [3, 1, 2, 5]])
def test_settings_and_tokens_are_those_of_the_pure_function(tokens):
    mask = torch.arange(5) < torch.tensor(tokens or [1] * 4)[:, None]
    expected = gdpo_advantages(TABLE, GROUPS, mask)[:, 0].tolist()
    assert advantages_of(ROWS, GROUPS, tokens) == expected
    options = {"whiten": "sequence", "epsilon": 0.1, "variant": "rvpo"}
    node = options | {"rvpo": {"k": 2.0}, "gate": {"on": "right"}}
    config = {"norm_adv_by_std_in_grpo": False, "gdpo": node}
    set_up = options | {"scale": False, "k": 2.0, "gate": 0}
    expected = gdpo_advantages(TABLE, GROUPS, mask, **set_up)[:, 0].tolist()
    assert advantages_of(ROWS, GROUPS, tokens, config=config) == expected


def test_verls_algorithm_node_is_accepted_without_settings_of_gdpo():
    node = {
        "_target_": "verl.trainer.config.AlgoConfig",
        "adv_estimator": "gdpo",
        "gamma": 1.0,
        "use_kl_in_reward": False,
        "kl_ctrl": {"type": "fixed", "kl_coef": 0.001},
        "pf_ppo": {"reweight_method": "pow"},
        "filter_groups": {"enable": False, "metric": "reward"},
        "rollout_correction": {"rollout_is": None, "bypass_mode": False},
        "norm_adv_by_std_in_grpo": True,
        "gdpo_reward_keys": None,
    }
    assert advantages_of(ROWS, GROUPS, config=node) == advantages_of(ROWS, GROUPS)


def test_conditions_schedules_and_ranges_have_an_effect():
    config = {
        "gdpo": {
            "variant": "sa_mrpo",
            "conditions": {"short": {"on": "right", "at_least": 1}},
            "schedule": {"short": {"from": 0.0, "to": 1.0, "steps": 10}},
        }
    }
    components = [Component("right", 0, 1), Component("short", 0, 2)]
    conditioned = torch.tensor([[1.0, 0.5], [0, 0], [0, 0], [1, math.nan]])
    expected = gdpo_advantages(
        conditioned.double(),
        GROUPS,
        torch.ones(4, 1),
        weights=[1.0, 0.5],
        variant="sa_mrpo",
        ranges=[(0, 1), (0, 2)],
    )
    found = advantages_of(ROWS, GROUPS, config=config, components=components, step=5)
    assert found == expected[:, 0].tolist()


def test_other_entries_of_a_dict_are_left_out_by_name():
    full = [row | {"score": 9.0, "parse_error": 4, "note": "text"} for row in ROWS]
    names = GdpoConfig(reward_keys=("right", "short"))
    assert advantages_of(full, GROUPS, config=names) == advantages_of(ROWS, GROUPS)
    for row in full:
        # entries that verl and the package's rewards add to components need no name
        del row["note"]
    assert advantages_of(full, GROUPS) == advantages_of(ROWS, GROUPS)


def test_nested_dicts_of_components_of_nemo_gym_and_skyrl_are_read():
    nested = [{"reward": 2.0, "response": {}, "reward_components": row} for row in ROWS]
    assert advantages_of(nested, GROUPS) == advantages_of(ROWS, GROUPS)


NESTED_ROW = {"reward": 1.0, "reward_components": {"a": 1}}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"right": 1}, {"right": 1, "short": 0}],
            "no 'short' for row 0, only .* Every dict needs",
        ),
        ([{}, {"right": 1}], r"no 'right' for row 0, only \[\]\. Every dict needs"),
        ([{"score": 1}, {"score": 0}], "declares no components and none are named. Put them into"),
        ([{"reward": 1, "reward_components": None}] * 2, "declares no components"),
        ([{"reward_components": None}, NESTED_ROW], "'reward_components' for row 0, found None"),
        ([NESTED_ROW, {"x": 1, "reward_components": [1]}], r"for row 1, found \[1\]"),
        ([NESTED_ROW, {"reward_components": {}}], "no 'a' for row 1"),
        ([None, {"a": 1}], "rewards: expected a dict of components for row 0, found None"),
        ([{"a": 1}, 0.5], r"expected a dict of components for row 1, found 0\.5"),
        ({"a": [1, 0]}, "expected a dict of components for row 0, found 'a'"),
        ([{"a": 1}, {"a": -math.inf}], "for 'a', found -inf for row 1"),
    ],
)
def test_a_reward_that_cannot_be_read_is_named(rows, message):
    with pytest.raises(ValueError, match=message) as caught:
        advantages_of(rows, [0] * len(rows))
    assert "algorithm." not in str(caught.value)
    assert "compute_score" not in str(caught.value)


NO_COUNT = "token_counts: expected .*, found .* for row 2"
RAMPS = {name: {"from": 0.0, "to": 1.0, "steps": 4} for name in ("right", "short")}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"config": {"weights": {"right": 2}}}, r"config\.weights: .*{'gdpo_reward_weights': {'ri"),
        ({"config": {"lam": 0.9}}, r"config\.lam: 0\.9 asks verl's trainer"),
        ({"config": {"use_kl_in_reward": True}}, r"config\.use_kl_in_reward: True asks"),
        ({"config": {"adv_estimator": "grpo"}}, r"config\.adv_estimator: 'grpo' asks"),
        ({"config": {"filter_groups": {"enable": True}}}, r"config\.filter_groups: .* asks"),
        ({"config": {"tau": 0.8}}, r"config\.tau: .* config={'gdpo': {'gd2po': {'tau': 0.8"),
        ({"config": {"gdpo.epsilon": 0.1}}, r"epsilon: .* config={'gdpo': {'epsilon': 0.1"),
        ({"config": {"zzz": 1}}, r"config\.zzz: unknown key; known under config are"),
        ({"config": [1]}, "config: expected a mapping"),
        ({"config": {"gdpo": {"variant": "sa_mrpo"}}}, r"components=\[Component\(name, low, high"),
        ({"config": GdpoConfig(variant="sa_mrpo")}, r"components=\[Component\(name, low, high"),
        ({"config": {"gdpo": {"variant": "corr_grpo"}}}, "groups: the variant 'corr_grpo'"),
        ({"config": {"gdpo": {"schedule": RAMPS}}}, "step: .*schedule needs .* found None"),
        ({"config": {"gdpo": {"schedule": RAMPS}}, "step": 0}, "1 for the first; found 0"),
        ({"config": {"gdpo": {"schedule": RAMPS}}, "step": "3"}, "1 for the first; found '3'"),
        ({"components": 3}, "components: expected names or Component objects, found 3"),
        ({"groups": [0, 1, 2, 3]}, "groups: expected at least 2 responses to a prompt, found 1"),
        ({"token_counts": [1, 2]}, "token_counts: expected 4, one for each response"),
        ({"token_counts": [3, 3, -1, 3]}, NO_COUNT),
        ({"token_counts": [3, 3, 1.5, 3]}, NO_COUNT),
        ({"token_counts": [3, 3, math.nan, 3]}, NO_COUNT),
        ({"token_counts": [3, 3, None, 3]}, NO_COUNT),
        ({"token_counts": [3, 3, "3", 3]}, NO_COUNT),
    ],
)
def test_a_setting_that_would_have_no_effect_is_rejected(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        advantages_of(ROWS, **{"groups": GROUPS, **options})
    assert "algorithm." not in str(caught.value)


def test_components_may_be_names():
    rows = iter(ROWS)  # rewards may come from a generator
    assert advantages_of(rows, GROUPS, components=["right", "short"]) == advantages_of(ROWS, GROUPS)
    only = advantages_of(ROWS, GROUPS, components=["short"])
    assert only == advantages_of([{"short": row["short"]} for row in ROWS], GROUPS)


@pytest.mark.parametrize(
    ("most_failed", "of", "most"),
    [(3, 30, 0.1), (6, 8, 0.34), (0, 20, 0.0)],  # fewer than 20 rows may lack as many as 20 rows
)
def test_a_component_that_too_many_responses_lack_raises_an_error(most_failed, of, most):
    components = ["short", Component("judge", 0, 1, most_unscored=most)]
    rows = [{"short": 1.0, "judge": 0.5}] * of
    for row in range(most_failed):
        rows[row] = {"short": 1.0, "judge": None, "judge_error": f"down {row}"}
    advantages_of(rows, ["u"] * of, components=components)
    rows[most_failed] = {"short": 1.0, "judge": None, "judge_error": "down for good"}
    text = rf"{most_failed + 1} of {of} responses of a batch have no 'judge'; at most {most:.0%}"
    with pytest.raises(RewardErrors, match=rf"{text} may.*last error: down for good$"):
        advantages_of(rows, ["u"] * of, components=components)


def test_a_group_of_one_has_the_advantage_zero_and_small_batches_work():
    assert advantages_of([], []) == []
    # a group of one has nothing to be compared with
    assert advantages_of([{"a": 1.0}], ["x"]) == [0.0]
    with pytest.raises(ValueError, match="groups: expected 2"):
        advantages_of(ROWS[:2], [0])
