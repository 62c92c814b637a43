"""The names under which a reader has the settings, and the remedies that exist there.

The same settings come from verl's configuration, or as an argument of a function of ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """The words of an error that depend on where the settings come from.

    Attributes:
      root: before each key of the settings.
      rewards, group_size: the places of what the reward returned, and of the number of responses
        to a prompt.
      components, ranges: the remedy where none are declared.
      absent: the remedy for a component that was not returned.
    """

    root: str
    rewards: str
    group_size: str
    components: str
    ranges: str
    absent: str

    @property
    def weights(self) -> str:
        """The key of the weights."""
        return f"{self.root}.gdpo_reward_weights"


VERL = Wording(
    root="algorithm",
    rewards="algorithm.gdpo_reward_keys",
    group_size="actor_rollout_ref.rollout.n",
    components="Set algorithm.gdpo_reward_keys=[...] (on a stock verl configuration with a leading "
    "+), or declare them with gdpo_verl.rewards.declares: a decorator above that needs "
    "functools.wraps to keep them.",
    ranges="Declare them beside the reward: @declares(Component(name, low, high)) of "
    "gdpo_verl.rewards.",
    absent="Return it from compute_score on every path, failures included, or remove the key.",
)
