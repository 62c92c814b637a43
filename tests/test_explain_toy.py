"""The toy policy of the explorer, and the conclusions drawn from it."""

from __future__ import annotations

import math

import pytest
import torch
from browser import browser as browser

from gdpo_verl.explain import study, toy


@pytest.mark.parametrize(
    ("method", "middle", "end"),
    [(toy.GRPO, 0.863, 0.976), (toy.UNWHITENED, 0.936, 0.988), (toy.GDPO, 0.862, 0.975)],
    ids=lambda value: getattr(value, "name", None),
)
def test_independent_rewards_reproduce_the_known_figures(method, middle, end):
    # A separate program's means over 20 other seeds at epochs 50 and 149.
    curve = toy.train(toy.Skills(), method).mean.mean(dim=1)
    assert float(curve[50]) == pytest.approx(middle, abs=0.004)
    assert float(curve[149]) == pytest.approx(end, abs=0.002)


def test_gdpo_does_not_see_the_scales_of_the_rewards():
    scaled = toy.Skills(scales=(10.0, 1.0, 0.1))
    torch.testing.assert_close(
        toy.train(scaled, toy.GDPO).quality,
        toy.train(toy.Skills(), toy.GDPO).quality,
        atol=1e-3,
        rtol=0,
    )
    assert toy.train(scaled, toy.GRPO).slowest[149].max() < 0.8


def test_rewards_that_show_another_skill_alone_teach_no_skill_of_their_own():
    skill = toy.train(toy.Skills(correlation=1.0), toy.GDPO).quality[149].mean(dim=0)
    assert skill[0] > 0.95
    torch.testing.assert_close(
        skill[1:], torch.full((2,), 0.5, dtype=torch.float64), atol=0.05, rtol=0
    )


def test_unwhitened_advantages_of_three_rewards_spread_wider_by_the_root_of_three():
    case = study.study("even", "", toy.Skills(), seeds=20, learning_rate=0.15)
    assert case.faster.faster == pytest.approx(math.sqrt(3), abs=0.01)
    assert case.mean(case.faster, 50).mean == pytest.approx(
        case.mean(toy.UNWHITENED, 50).mean, abs=0.005
    )


def test_a_noise_reward_is_no_skill():
    assert toy.train(toy.Skills(noise=0.1), toy.GRPO).quality.shape == (150, 20, 2)


@pytest.mark.parametrize(
    ("ours", "control", "expected"),
    [
        ((0.9, 0.01), (0.8, 0.01), 1),
        ((0.8, 0.01), (0.9, 0.01), -1),
        ((0.9, 0.1), (0.8, 0.1), 0),
        ((0.805, 0.0), (0.8, 0.0), 0),
    ],
    ids=["ahead", "behind", "within the errors", "too small to matter"],
)
def test_the_verdict_asks_for_size_and_for_certainty(ours, control, expected):
    assert toy.verdict(toy.Figure(*ours), toy.Figure(*control)) == expected


def case_of(gdpo: float, grpo: float, unwhitened: float, faster: float) -> study.Case:
    """A case whose trainings stand still at these values, over three seeds."""

    def still(value: float) -> toy.Training:
        return toy.Training(torch.full((150, 3, 3), value, dtype=torch.float64), 1.0)

    control = toy.Method("faster", decoupled=False, faster=1.5)
    trainings = {toy.GRPO: grpo, toy.GDPO: gdpo, toy.UNWHITENED: unwhitened, control: faster}
    return study.Case(
        "Name", "something", toy.Skills(), {m: still(v) for m, v in trainings.items()}, "Do this."
    )


def test_the_conclusions_follow_the_numbers():
    found = study.when_to_use(
        [case_of(0.9, 0.5, 0.9, 0.6), case_of(0.5, 0.9, 0.5, 0.9), case_of(0.7, 0.7, 0.7, 0.7)]
    )
    assert found == {
        "GDPO is ahead": [
            "When something: over all epochs the slowest skill averages 0.9000 ± 0.0000 with GDPO "
            "and 0.5000 ± 0.0000 with GRPO; in the end it is at 0.9000 ± 0.0000 and "
            "0.5000 ± 0.0000. Do this."
        ],
        "Neither is ahead": [
            "When something: over all epochs the slowest skill averages 0.7000 ± 0.0000 with GDPO "
            "and 0.7000 ± 0.0000 with GRPO; in the end it is at 0.7000 ± 0.0000 and "
            "0.7000 ± 0.0000."
        ],
        "GRPO is ahead": [
            "When something: over all epochs the slowest skill averages 0.5000 ± 0.0000 with GDPO "
            "and 0.9000 ± 0.0000 with GRPO; in the end it is at 0.5000 ± 0.0000 and "
            "0.9000 ± 0.0000. Do this."
        ],
    }


def test_a_lead_that_a_learning_rate_buys_is_said_to_be_one():
    (sentence,) = study.when_to_use([case_of(0.8, 0.5, 0.9, 0.95)])["GDPO is ahead"]
    assert "A learning rate 1.50 times as large does more for GRPO here: 0.9500" in sentence
    artefact = study.whitening_sentence(case_of(0.8, 0.8, 0.9, 0.9))
    assert "no merit of the decoupling" in artefact
    assert "no merit" not in study.whitening_sentence(case_of(0.9, 0.5, 0.9, 0.6))
    assert "changes nothing" in study.whitening_sentence(case_of(0.8, 0.8, 0.8, 0.8))
