"""The names of the settings in errors, and the remedies that apply to them.

The same settings come from verl's configuration, or as an argument of one of our functions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """The words of an error that depend on where the settings come from.

    Attributes:
      root: the prefix of each key of the settings.
      rewards, group_size: the names of the setting with the components, and of the number of
        responses to a prompt.
      components, ranges: the remedies where none are declared.
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
    components="Set algorithm.gdpo_reward_keys=[...] (with a leading + outside of our recipes), or "
    "declare them with gdpo_verl.rewards.declares. A decorator above that one "
    "must use functools.wraps, or the declaration is lost.",
    ranges="Declare them with @declares(Component(name, low, high)) of gdpo_verl.rewards on the "
    "reward function.",
    absent="Return it from compute_score in every case, also after a failure, or remove the key.",
)

NEEDS_TRAINER_HOOKS = (
    "works only in verl's default trainer. Train with verl.trainer.main_ppo and "
    "trainer.use_v1=true, or remove this setting."
)
