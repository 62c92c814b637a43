"""GDPO and its variants in TRL: a `GRPOTrainer` with other advantages.

verl 0.9.1 cannot train where TRL 1.16 is installed: use another environment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from trl import GRPOTrainer

from gdpo_verl.config import GdpoConfig
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.plugin.upstream import Dependency as _D
from gdpo_verl.plugin.upstream import source_of, violations
from gdpo_verl.rewards.components import Component

# fmt: off
CONTRACT = {"trainer.grpo_trainer": [
    _D("GRPOTrainer", reads="reward_func_names reward_weights num_generations_eval process_slice"),
    _D("GRPOTrainer._calculate_rewards", "self inputs prompts completions ..."),
    _D("GRPOTrainer._generate_and_score_completions", "self inputs",
       "_calculate_rewards num_generations completion_mask tool_mask advantages _metrics _logs"),
]}
# fmt: on


class GDPOTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` with the advantages of GDPO, or of another variant.

    Components have the names of the reward functions. All that TRL logs stays, and our metrics
    (docs/metrics.md) join it.

    Args:
      gdpo: the settings, as verl's `algorithm` node has them: {"gdpo": {"variant": "dvao"}}, say.
        TRL's `reward_weights` are taken; its `scale_rewards` and `multi_objective_aggregation`
        have no effect.
      ranges: the smallest and the largest value of a component by its name, for metrics and for
        the variants that need them.

    Raises RuntimeError for a TRL that does not fit, and ValueError for a wrong setting.
    """

    def __init__(
        self,
        *args: Any,
        gdpo: Mapping[str, Any] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        **kwargs: Any,
    ) -> None:
        if problems := violations(source_of("trl"), CONTRACT):
            raise RuntimeError(
                f"gdpo_verl.trl does not fit TRL {version('trl')}: {'; '.join(problems)}. "
                "Run: pip install trl==1.16.0"
            )
        super().__init__(*args, **kwargs)
        names, settings = self.reward_func_names, dict(gdpo or {})
        if len(set(names)) < len(names):
            raise ValueError(f"reward_funcs: expected functions of distinct names, found {names}")
        if self.args.reward_weights is not None:
            if settings.get("gdpo_reward_weights") is not None:
                raise ValueError("algorithm.gdpo_reward_weights: GRPOConfig.reward_weights is set")
            weights = dict(zip(names, self.reward_weights.tolist(), strict=True))
            settings["gdpo_reward_weights"] = weights
        # TRL scores with functions, which declare nothing: the ranges are an argument.
        components = [Component(name, *(ranges or {}).get(name, ())) for name in names]
        self.objective = GdpoConfig.from_algorithm(settings).resolve(components)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
        # TRL's own method, which calls this one, keeps only their weighted sum.
        self._components = super()._calculate_rewards(*args, **kwargs)
        return self._components

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        mode, size = "train", self.num_generations
        if not self.model.training:
            mode, size = "eval", self.num_generations_eval
        objective, rewards = self.objective, self._components.double().cpu()  # of all processes
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        tokens = self.accelerator.gather(mask.sum(dim=1)).cpu()
        groups = torch.arange(len(rewards)) // size
        found = objective.estimate(rewards, groups, tokens, self.state.global_step)
        first = self.accelerator.process_index * len(inputs)
        own = found.advantage[first : first + len(inputs)]
        output["advantages"] = own.to(output["advantages"])
        # In place of TRL's, which are the last in its log.
        logged = self._logs["advantages"]
        for _ in range(min(len(logged), len(rewards))):
            logged.pop()
        logged.extend(found.advantage.tolist())
        ours = batch_metrics(
            found, objective.keys, ranges=objective.ranges, outcome=objective.outcome_column
        )
        for name, value in ours.items():
            if not re.fullmatch("rewards/.+/(mean|std)", name):  # TRL has them
                self._metrics[mode][name].append(float(value))
        return output
