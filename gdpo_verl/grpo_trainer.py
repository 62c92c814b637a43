"""The code that our trainers for TRL and ms-swift share: GDPO's advantages for a `GRPOTrainer`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from gdpo_verl.advantage import Decomposition, EstimatorSettings
from gdpo_verl.config import GdpoConfig, Objective, parsing
from gdpo_verl.config.components import Component, as_names
from gdpo_verl.config.wording import Wording
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.names import MEAN, STD
from gdpo_verl.reward_dicts import graded_criteria, read_components

logger = logging.getLogger(__name__)


class GDPOMixin:
    """The settings, advantages and metrics of GDPO, to be combined with a `GRPOTrainer`.

    A subclass sets the attributes below. The `GRPOTrainer` has the other annotated attributes.

    Attributes:
      wording: the names of the settings in error messages.
      option: the text before the name of a trainer's argument in error messages, such as "--".
      rename: what to do if two reward functions have the same name, for error messages.
      scales: the values of `scale_rewards` that need no warning.
    """

    wording: Wording
    option: str
    rename: str
    scales: tuple[str, ...] = ("group",)
    args: Any
    model: Any
    state: Any
    _metrics: Any
    num_generations: int
    num_generations_eval: int
    reward_func_names: list[str]
    reward_weights: Tensor
    scale_rewards: str

    def set_objective(
        self,
        gdpo: Mapping[str, Any] | None,
        ranges: Mapping[str, tuple[float, float]] | None,
        by_criterion: str | Sequence[str] = (),
    ) -> None:
        """Read the settings, compare them with the reward functions, and set `self.objective`.

        Args:
          gdpo: the settings as in verl's `algorithm` node.
          ranges: the lowest and the highest value of each component, by its name.
          by_criterion: the names of the functions that return a mapping for each completion, from
            each criterion to its value.

        Raises:
          ValueError: a setting is wrong.
        """
        names = self.reward_func_names
        if len(set(names)) < len(names):
            raise ValueError(
                f"{self.wording.rewards}: expected functions of distinct names, found {names}. "
                f"{self.rename}"
            )
        config = self._settings(gdpo)
        if config.estimator.credit != EstimatorSettings.credit:
            raise ValueError(
                f"{self.wording.root}.gdpo.credit: reward functions return one number per "
                "completion, and none per turn. Remove this setting."
            )
        # TRL's and ms-swift's reward functions have no declarations, so the ranges are given here.
        components = _components(names, ranges)
        for name in as_names(by_criterion):
            parsing.check_component("by_criterion", name, names)
        mapped = as_names(by_criterion)
        self.objective: Objective = config.resolve(components, names, mapped=mapped)
        self.objective.check_groups(self.num_generations)
        self.objective.try_derived({})
        self._warn()
        # The trainer logs the sum with `reward_weights` as `reward`. With the weights of the
        # objective, that is the score that GDPO's weights describe.
        weights = self.weights_by_name()
        self.reward_weights = torch.tensor([weights.get(name, 0.0) for name in names]).to(
            self.reward_weights
        )

    def weights_by_name(self) -> dict[str, float]:
        """Return the weight of each component, without schedules."""
        return dict(zip(self.objective.keys, self.objective.weights, strict=True))

    def _settings(self, gdpo: Mapping[str, Any] | None) -> GdpoConfig:
        """Read the settings, with the trainer's `reward_weights` if they are set."""
        settings = parsing.plain(parsing.mapping(self.wording.root, gdpo))
        weights = self.args.reward_weights
        if weights is not None:
            if settings.get("gdpo_reward_weights") is not None:
                raise ValueError(
                    f"{self.wording.weights}: {self.option}reward_weights is set, too. Remove one "
                    "of them."
                )
            # The trainer has a weight for each function, also for those that are not components.
            keys = settings.get("gdpo_reward_keys") or self.reward_func_names
            named = dict(zip(self.reward_func_names, weights, strict=False))
            settings["gdpo_reward_weights"] = {key: named[key] for key in keys if key in named}
        return GdpoConfig.from_algorithm(settings, self.wording)

    def _warn(self) -> None:
        """Warn about settings that have no effect, and about groups too small for evaluations."""
        if self.scale_rewards not in self.scales:
            logger.warning(
                "%sscale_rewards=%r has no effect in GDPOTrainer, which divides each "
                "component by its group's deviation. To leave the deviations out: gdpo=%s.",
                self.option,
                self.scale_rewards,
                {parsing.SCALE: False},
            )
        size = self.num_generations_eval
        if size < max(2, self.objective.config.chosen_variant.least_group):
            logger.warning(
                "%snum_generations_eval=%d: too few responses to a prompt for the variant "
                "%r. In evaluations the metrics of advantages have no meaning.",
                self.option,
                size,
                self.objective.config.variant,
            )

    def decompose(
        self, rewards: Tensor, tokens: Tensor, mappings: Mapping[str, Sequence[Any]] | None = None
    ) -> Decomposition:
        """Compute the advantages of the responses of all processes, and log their metrics.

        Args:
          rewards: float64, shape (B, K), in reward units; NaN where not scored. The responses of a
            group are adjacent rows.
          tokens: the number of tokens of each response, shape (B,).
          mappings: for each component by criterion, the mapping of each response from a criterion
            to its value.

        Raises:
          ValueError: a reward is not a finite number. The error names its row.
        """
        objective = self.objective
        names = self.reward_func_names
        rows = []
        for row in rewards.tolist():
            scored = [None if math.isnan(value) else value for value in row]
            rows.append(dict[str, Any](zip(names, scored, strict=True)))
        for name, graded_rows in (mappings or {}).items():
            for row, mapping in zip(rows, graded_rows, strict=True):
                row[name] = mapping
        numbers = row_numbers(rows)
        graded = graded_criteria(rows, objective, numbers)
        raw = read_components(rows, objective, numbers, graded)
        # `global_step` counts finished steps, while schedules use the number of the current step.
        done = self.state.global_step
        if self.model.training:
            metrics, size, step = self._metrics["train"], self.num_generations, done + 1
        else:
            metrics, size, step = self._metrics["eval"], self.num_generations_eval, max(done, 1)
        groups = torch.arange(len(rows)) // size
        raw = objective.with_derived(raw, rows, tokens.tolist(), groups.tolist())
        decomposition = objective.decompose(raw, groups, tokens, step, graded, numbers)
        sums = objective.score(raw)[decomposition.scored]
        metrics["reward"][-1] = float(sums.mean())
        metrics["reward_std"][-1] = float(sums.std())
        if objective.config.metrics:
            for name, value in batch_metrics(decomposition, objective).items():
                # The trainer itself logs the mean and the deviation of each reward function.
                if (MEAN.name_in(name) or STD.name_in(name)) not in names:
                    metrics[name].append(float(value))
        return decomposition


def row_numbers(rows: Sequence[Any]) -> list[str]:
    """Return the name of each row in error messages, which is its number."""
    return [str(row) for row in range(len(rows))]


def decimals(rewards: Tensor) -> Tensor:
    """Convert float32 rewards to float64 with the same decimals: 0.7 and not 0.69999999.

    A reward with up to seven digits becomes exactly the number that its function returned.
    """
    return torch.from_numpy(rewards.float().cpu().numpy().astype(str).astype(float))


def _components(names: list[str], ranges: Mapping[str, Any] | None) -> list[Component]:
    """Return a component for each reward function, with its range.

    Raises ValueError if a range is given for an unknown function, or is not a pair of numbers.
    """
    components = {name: Component(name) for name in names}
    for name, pair in parsing.mapping("ranges", ranges, "{name: (low, high)}").items():
        parsing.check_component("ranges", name, names)
        with suppress(TypeError, ValueError):
            low, high = pair
            components[name] = Component(name, low, high)
        if components[name].range is None:
            raise ValueError(
                f"ranges: expected (low, high) for {name!r}, two finite numbers with low < high, "
                f"found {pair!r}. Leave out a component that is unbounded."
            )
    return list(components.values())
