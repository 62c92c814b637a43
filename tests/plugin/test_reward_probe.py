"""The rule for values that a reward may return, compared with what verl itself does with them."""

import decimal
import json
import pickle
import warnings

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from gdpo_verl.plugin.checks.reward import raised, score_problem, unloggable
from gdpo_verl.rewards import math_length

# For each value: whether verl can train on it as a score, and whether verl can validate with it,
# with one response and with four responses to a prompt.
VALUES = {
    "numpy's float64": (np.float64(1), True, True, True),
    "numpy's truth value": (np.bool_(True), False, True, True),
    "an array": (np.array([1.0]), False, True, True),
    "a tensor": (torch.tensor(1.0), True, True, True),
    "a Decimal": (decimal.Decimal(1), False, False, False),
    "None": (None, False, True, True),
    "a text": ("1.0", False, True, True),
    "a dict": ({"a": 1}, False, False, False),
    "numbers": ([1.0, 2.0], False, True, True),
    "nothing in a list": ([], False, True, False),
    "bytes": (b"1", False, False, False),
}


def config(answers, dumps=None):
    rollout = {"val_kwargs": {"n": answers}}
    trainer = {"validation_data_dir": dumps} if dumps else {}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "trainer": trainer})


def train_on(score):
    """Use the score as verl's agent loop does."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    tokens = {"prompt_ids": [1], "response_ids": [1], "response_mask": [1]}
    output = AgentLoopOutput(**tokens, num_turns=2, metrics=AgentLoopMetrics())
    output.reward_score = score
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of pydantic about the type
        return "rm_scores" in output.as_dict()


def validate_with(value, answers, directory):
    """Aggregate and dump the values of one prompt, as verl's validation does."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    column, names = {"value": [value] * answers}, [""] * answers
    process_validation_metrics(names, names, column)
    PPOTrainer._write_generations(names, names, names, names, column, str(directory), 1)


def succeeds(call, *args):
    try:
        return call(*args) is not False
    except Exception:
        return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VALUES)
def test_exactly_the_values_that_verl_cannot_use_are_rejected(name, tmp_path):
    value, trains, validates, validates_groups = VALUES[name]
    assert succeeds(train_on, value) is trains
    assert (score_problem(value) == "") is trains
    for answers, expected in ((1, validates), (4, validates_groups)):
        assert succeeds(validate_with, value, answers, tmp_path) is expected
        problems = unloggable(config(answers, dumps="somewhere"), [{"value": value}])
        assert (problems == []) is expected, problems
        assert all(type(value).__name__ in problem for problem in problems)


def test_texts_mixed_with_numbers_for_one_prompt_are_rejected():
    rows = [{"why": "late"}, {"why": 1.0, "acc": 1}, {"why": 2.0}]
    assert unloggable(config(1), rows) == []
    (problem,) = unloggable(config(2), rows)
    assert problem.startswith("'why' is 2.0 (float) and 'late' (str), with which verl's validation")


def test_a_value_with_the_name_of_a_column_of_the_dump_is_rejected(tmp_path):
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    columns = [["asked"], ["answered"], ["truth"], [1.0]]
    PPOTrainer._write_generations(*columns, {"step": [0.25]}, str(tmp_path), 7)
    # verl's own column is lost
    assert json.loads((tmp_path / "7.jsonl").read_text())["step"] == 0.25
    (problem,) = unloggable(config(1), [{"score": 1.0, "step": 0.25}])
    assert problem.startswith("'step' is a column of verl's validation")


def test_an_error_about_an_argument_of_a_reward_names_its_key_in_verls_configuration():
    with pytest.raises(ValueError, match=r"^limit: expected a positive number") as refused:
        math_length.compute_score("", "1", "1", {"response_length": 1}, limit=0)
    again = pickle.loads(pickle.dumps(refused.value))  # Ray pickles errors between processes
    for error in (refused.value, again):
        told = raised(error.with_traceback(refused.tb))
        assert "ArgumentError: reward.custom_reward_function.reward_kwargs.limit: expec" in told
