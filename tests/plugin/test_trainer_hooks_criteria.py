"""Components by criterion through verl's own trainer method and a real TransferQueue."""

import json

import pytest
from fake_verl import advantages, put, recipe, trainer_of
from fake_verl import emptied as emptied

from gdpo_verl import advantages_of
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import declares
from gdpo_verl.reward_dicts import with_numbers

pytestmark = pytest.mark.real


@declares("correctness", by_criterion=("format",))
def reward():
    """Return an empty dict; only the declaration of this function matters."""


COMPONENTS = reward.components
CONDITION = {"format": {"on": "correctness", "at_least": -1.0}}


def info(rubric, correctness):
    return {"format": rubric, "correctness": correctness}


def rubric(names, rude, name="names"):
    return {name: names, "rude": {"value": rude, "weight": -2.0}}


# The sessions of two prompts with different criteria, in no particular order; a_0 has two outputs.
ROWS = [
    ("b_1_0", [1, 1, 0, 1], info(rubric(1, 0, "cites"), 0.0)),
    ("a_0_1", [1, 0], info(rubric(1, 0), 3.0)),
    ("a_0_0", [1, 0, 0, 1, 1], info(rubric(0, 1), 3.0)),
    ("a_1_0", [1, 0, 1, 1], info(rubric(None, 1), -3.0)),
    ("a_2_0", [1, 1, 1], info(rubric(0, 0), -1.0)),
    ("b_0_0", [0, 1], info(None, 3.0)),
    ("b_2_0", [0, 1], info(rubric(0, 1, "cites"), 3.0)),
]
LAST = [0, 1, 3, 4, 5, 6]  # the rows of the last outputs
GROUPS = ["b", "a", "a", "a", "b", "b"]
TOKENS = [3, 4, 3, 3, 1, 1]  # the first number is that of both outputs of a_0
SESSION_OF_ROW = [0, 1, 1, 2, 3, 4, 5]


def rows_of(settings):
    """Return the rows of the plug-in's reward manager: numbers, and the mappings as text."""
    objective = GdpoConfig.from_algorithm({"gdpo": settings}).resolve(COMPONENTS)
    return [(key, mask, {"score": 0.0, **with_numbers(own, objective)}) for key, mask, own in ROWS]


@pytest.mark.parametrize(
    "settings",
    [{}, {"criteria": "sum"}, {"variant": "rvpo", "conditions": CONDITION}],
)
def test_each_response_has_the_advantage_of_the_pure_function(queue, settings):
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    written = put(queue, rows_of(settings))
    batch = upsample_batch_to_divisible_size(written, 4, eos_token_id=0)
    metrics = {}
    trainer = trainer_of(recipe(**settings), reward=reward)
    trainer._compute_advantage(batch, metrics)

    infos = [ROWS[row][2] for row in LAST]
    pure = advantages_of(infos, GROUPS, TOKENS, config={"gdpo": settings})
    found = advantages(queue, batch)
    for place, (_, mask, _) in enumerate(ROWS):
        expected = [pure[SESSION_OF_ROW[place]] * inside for inside in mask]
        assert found[place] == pytest.approx(expected, abs=1e-6)
    assert not any(found[7])
    assert metrics["rewards/format/max"] == 1.0
    assert metrics["gdpo/format/criteria_varying"] == 1.0
    assert metrics["gdpo/format/all_criteria_met"] == pytest.approx(2 / 4)

    columns = trainer.gdpo_hooks.dump.columns(batch.keys[:7])
    # For each session the criteria of its last output count.
    mappings = [ROWS[LAST[session]][2]["format"] for session in SESSION_OF_ROW]
    assert columns["format_by_criterion"] == mappings
    assert columns["format"] == [1.0, 1.0, -2.0, -1.0, 0.0, None, -2.0]
    json.dumps(columns)


def test_a_criterion_with_two_weights_ends_the_run_with_key_and_row(queue):
    rows = rows_of({})
    rows[2][2]["format_by_criterion"] = json.dumps({"names": {"value": 1, "weight": 3.0}})
    rows[4][2]["format_by_criterion"] = json.dumps({"names": {"value": 1, "weight": 3.0}})
    with pytest.raises(ValueError, match=r"'format': expected one weight .* 'names'.* row a_2_0"):
        trainer_of(recipe(), reward=reward)._compute_advantage(put(queue, rows), {})
