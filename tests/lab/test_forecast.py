"""The push on a reward, computed by hand."""

import pytest
import torch

from gdpo_verl.config import GdpoConfig
from gdpo_verl.lab.replay.forecast import Forecast, forecast_lines


def forecast_of_two_groups(per_step, **gdpo):
    """In group 0 both rewards are equal; in group 1 only the common reward varies."""
    config = GdpoConfig.from_algorithm({"adv_estimator": "gdpo", "gdpo": gdpo})
    objective = config.resolve(["common", "rare"])
    raw = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    forecast = Forecast()
    forecast.add(objective.keys, objective.decompose(raw, [0, 0, 1, 1], torch.ones(4), 0))
    return forecast.for_step(per_step)


def test_the_push_is_the_influence_times_the_number_of_groups_in_a_step():
    found = forecast_of_two_groups(per_step=16)["push"]
    # Each z is ±0.7071, and so is GRPO's advantage.
    # The mean of A z over the responses is (0.5 + 0.5 + 0 + 0) / 4 for rare, and 0.5 for common.
    assert found["grpo"] == pytest.approx({"rare": 16 * 0.25, "common": 16 * 0.5}, abs=1e-4)
    # For GDPO the sums ±1.4142 and ±0.7071 are divided by their deviation sqrt(5 / 3).
    deviation = (5 / 3) ** 0.5
    expected = {"rare": 16 * 0.5 / deviation, "common": 16 * 0.75 / deviation}
    assert found["gdpo"] == pytest.approx(expected, abs=1e-4)


def test_the_configured_variant_has_a_column_of_its_own():
    forecast = forecast_of_two_groups(per_step=2, variant="dara")
    assert list(forecast["push"]) == ["grpo", "gdpo", "dara"]
    assert forecast["push"]["dara"]["rare"] > forecast["push"]["gdpo"]["rare"]
    head, *_ = forecast_lines(forecast)
    assert head.split() == ["push,", "2", "groups", "a", "step", "grpo", "gdpo", "dara"]
