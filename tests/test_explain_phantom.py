"""The explorer's phantom gradients: one group that fails, and policies trained on many."""

from __future__ import annotations

import pytest
import torch

from gdpo_verl import gdpo_advantages, grpo_advantages
from gdpo_verl.explain import phantom, toy


def test_where_all_fail_the_shortest_is_praised_and_a_remedy_stops_it():
    short = next(each for each in phantom.group(0) if each.name == "40 tokens")
    # Brevity alone: (tokens' mean 139 - 40) over their unbiased deviation, 74.06.
    assert short.grpo == pytest.approx(99 / 74.06, abs=1e-3)
    assert short.gdpo == pytest.approx(short.grpo, abs=1e-3)
    for remedy in ("condition", "gate"):
        assert set(phantom.remedied(0, remedy).values()) == {0.0}
        assert f"With the {remedy} every advantage is 0." in phantom.group_sentence(0, remedy)
    assert phantom.group_sentence(0, "none").startswith(
        "All 8 answers are wrong: correctness is the same for all and says nothing, and all of "
        "the advantage is brevity's. GRPO gives the shortest +1.337 and the longest -1.472"
    )


def test_the_gate_leaves_a_group_alone_whose_outcome_varies():
    gated = phantom.remedied(3, "gate")
    assert gated == pytest.approx({each.name: each.gdpo for each in phantom.group(3)})
    assert phantom.remedied(3, "condition") != pytest.approx(gated)
    assert "Of 8 answers 3 are right" in phantom.group_sentence(3, "gate")


def test_where_all_are_right_the_condition_keeps_brevity_and_the_gate_does_not():
    assert "All 8 answers are right" in phantom.group_sentence(8, "gate")
    assert set(phantom.remedied(8, "gate").values()) == {0.0}
    assert phantom.remedied(8, "condition")["40 tokens"] > 1.0


@pytest.mark.parametrize("method", phantom.METHODS, ids=lambda method: method.name)
def test_the_policy_s_advantages_are_the_library_s(method):
    task = phantom.task(2, 8)
    _, rewards = toy.draw(task, toy.start(task, 3), torch.Generator().manual_seed(1))
    found = method.advantages(method.combine(rewards))
    for seed in range(3):
        rows = rewards[seed].reshape(-1, 2).clone()
        if method.conditioned:
            rows[:, 1] *= rows[:, 0]
        groups, mask = [i // 8 for i in range(32)], torch.ones(32, 1)
        if method.decoupled:
            gate = 0 if method.gated else None
            expected = gdpo_advantages(rows, groups, mask, whiten="sequence", gate=gate)
        else:
            expected = grpo_advantages(rows, groups, mask)
        torch.testing.assert_close(found[seed].flatten(), expected[:, 0])


def test_the_share_of_phantoms_is_that_of_groups_with_one_outcome():
    # A hard prompt's answers succeed with 0.02 * 0.3: eight fail together in 0.994^8 = 0.953.
    # Their lengths are all the same in 0.3^8 + 0.7^8 = 0.058.
    assert phantom.share_of_phantoms(4, 8) == pytest.approx(0.953 * 0.942, abs=0.06)
    assert phantom.share_of_phantoms(0, 32) == pytest.approx(0.0, abs=0.03)


def test_without_a_remedy_the_length_reward_costs_the_correctness():
    ends = {
        method.name: float(each.each(0)[-1].mean())
        for method, each in phantom.trainings(2, 8, 1.0).items()
    }
    assert max(ends["GRPO"], ends["GDPO"]) < 0.06
    assert min(ends["GRPO + condition"], ends["GDPO + condition"]) > 0.6


def test_the_sentences_follow_the_ends():
    ends = dict(zip(phantom.METHODS, (0.2, 0.3, 0.2, 0.6, 0.25), strict=True))
    found = {
        method: toy.Training(
            torch.tensor([0.5, end]).double().reshape(2, 1, 1).expand(2, 3, 2), 1.0
        )
        for method, end in ends.items()
    }
    head, falls, remedies = phantom.training_sentences(found, 0.25)
    assert head.startswith("In the first epoch 25% of the groups are phantoms")
    assert "begins at 0.5000 and ends at: GRPO 0.2000 ± 0.0000, GDPO 0.3000" in head
    assert falls == (
        "Correctness ends below its beginning with GRPO, GDPO, GRPO + condition, GDPO + gate."
    )
    assert remedies == (
        "Added to GRPO, the condition makes no difference that these seeds could show. Added to "
        "GDPO, the condition raises the end by 0.3000. Added to GDPO, the gate lowers the end by "
        "0.0500."
    )
