"""Per-turn components through verl's own trainer method and a real TransferQueue."""

import json
import math

import numpy as np
import pytest
from fake_verl import advantages, put, recipe, trainer_of
from fake_verl import emptied as emptied
from test_trainer_hooks import rejecting

from gdpo_verl import advantages_of
from gdpo_verl.config import GdpoConfig
from gdpo_verl.config.components import declares
from gdpo_verl.plugin.step.replay_buffer import _silent_groups
from gdpo_verl.reward_dicts import with_numbers

pytestmark = pytest.mark.real


@declares("correctness", by_turn=("format",))
def reward():
    """Return an empty dict; only the declaration of this function matters."""


def info(form, correctness):
    return {"format": form, "correctness": correctness}


# Masks with two, three, one, two and no turns. a and b have three sessions each, in no particular
# order.
ROWS = [
    ("b_1_0", [1, 1, 0, 1], info([1, 0], None)),
    ("a_0_0", [1, 0, 0, 1, 1], info([1, 0], 3.0)),
    ("a_1_0", [1, 0, 1, 1, 0, 1], info([0, 1, None], -1.0)),
    ("a_2_0", [1, 1, 1], info([1], -3.0)),
    ("b_0_0", [0, 1, 0, 1], info(None, 3.0)),
    ("b_2_0", [0, 0], info([], -3.0)),
]
TOKENS = [[2, 1], [1, 2], [1, 2, 1], [3], [1, 1], []]
GROUPS = ["b", "a", "a", "a", "b", "b"]
INFOS = [each for _, _, each in ROWS]


def rows_of(rows=ROWS):
    """Return the rows as the plug-in's reward manager writes them: sums, and the lists as text."""
    objective = GdpoConfig().resolve(reward.components)
    written = []
    for key, mask, own in rows:
        complete = with_numbers(own, objective)
        total = sum(complete[name] or 0.0 for name in ("format", "correctness"))
        written.append((key, mask, {"score": total, **complete}))
    return written


def on_tokens(lists):
    found = []
    for (_, mask, _), turns in zip(ROWS, lists, strict=True):
        number, before, row = -1, 0, []
        for inside in mask:
            number += inside > before
            before = inside
            row.append(turns[number] if inside else 0.0)
        found.append(row)
    return found


@pytest.mark.parametrize("settings", [{}, {"variant": "rvpo", "credit": "turn"}])
def test_each_turn_has_the_advantage_of_the_pure_function(queue, settings):
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    batch = upsample_batch_to_divisible_size(put(queue, rows_of()), 4, eos_token_id=0)
    metrics = {}
    trainer = trainer_of(recipe(**settings), reward=reward)
    trainer._compute_advantage(batch, metrics)

    pure = advantages_of(INFOS, GROUPS, TOKENS, config={"gdpo": settings})
    found = advantages(queue, batch)
    for row, expected in zip(found, on_tokens(pure), strict=False):
        assert row == pytest.approx(expected, abs=1e-6)
    assert all(not any(row) for row in found[6:])
    assert metrics["rewards/format/mean"] == pytest.approx(1.0)  # the sums are 1, 1, 1, 1
    spread = (3 * math.sqrt(0.5)) / 3  # the turns are 1 0 | 1 0 | 0 1
    assert metrics["gdpo/format/turn_spread"] == pytest.approx(spread)

    columns = trainer.gdpo_hooks.dump.columns(batch.keys[:6])
    assert columns["format"] == [1.0, 1.0, 1.0, 1.0, None, None]
    assert columns["format_by_turn"] == [[1, 0], [1, 0], [0, 1, None], [1], None, []]
    assert columns["response_tokens_by_turn"] == TOKENS
    name = "rvpo_advantage" if settings.get("variant") else "gdpo_advantage"
    for listed_, expected in zip(columns[f"{name}_by_turn"], pure, strict=True):
        assert listed_ == pytest.approx(expected)
    for mean, turns, tokens in zip(columns[name], pure, TOKENS, strict=True):
        expected = np.average(turns, weights=tokens) if tokens else 0.0
        assert mean == pytest.approx(expected)
    json.dumps(columns)


def test_a_session_of_several_outputs_is_rejected_only_with_per_turn_credit(queue):
    rows = [*rows_of(), ("a_0_1", [1, 1], rows_of()[1][2])]
    batch = put(queue, rows)
    with pytest.raises(ValueError, match=r"credit=to_go: the session of row a_0_1 has several"):
        trainer_of(recipe(), reward=reward)._compute_advantage(batch, {})
    trainer_of(recipe(credit="answer"), reward=reward)._compute_advantage(batch, {})


def test_a_rejected_response_keeps_its_turns_and_is_excluded_from_whitening(queue):
    batch = put(queue, rows_of())
    # The last two tokens of a_0_0, its second turn.
    config = rejecting(recipe(), "a_0_0", [-0.5, -0.5, -0.5, -9.0, -9.0])
    trainer_of(config, reward=reward)._compute_advantage(batch, {})
    tokens = [list(each) for each in TOKENS]
    tokens[1] = [1, 0]
    pure = advantages_of(INFOS, GROUPS, tokens)
    expected = on_tokens(pure)
    expected[1][3:] = [0.0, 0.0]
    for row, own in zip(advantages(queue, batch), expected, strict=True):
        assert row == pytest.approx(own, abs=1e-6)


def test_groups_with_equal_sums_are_not_filtered_if_their_turns_differ(queue):
    rows = []
    for key, calls in (("c_0", [1, 0]), ("c_1", [0, 1]), ("d_0", [1, 0]), ("d_1", [1, 0])):
        rows.append((f"{key}_0", [1, 0, 1], info(calls, 1.0)))
    batch = put(queue, rows_of(rows))
    objective = GdpoConfig().resolve(reward.components)
    assert set(_silent_groups(batch.keys, "train", objective, 1)) == {"d"}
