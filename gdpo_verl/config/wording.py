"""The words of error messages that differ between verl, TRL, ms-swift and our functions.

The same settings come from verl's configuration, or from an argument of one of our functions. An
error should name the setting as the user wrote it, and a remedy that the user can apply.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """The words of error messages that depend on where the settings come from.

    Attributes:
      root: the prefix of each key of the settings.
      rewards: the name of the setting that chooses the components.
      group_size: the name of the setting for the number of responses to a prompt.
      components: what to do if no components are declared.
      ranges: what to do if a range is missing.
      absent: what to do if the reward function did not return a component.
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
