"""The part that our trainers in TRL and ms-swift share: a `GRPOTrainer` with other advantages."""

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
    """The settings, advantages and metrics of a `GRPOTrainer`, which has the other attributes.

    Attributes:
      wording: the names of the settings in errors.
      option: what the name of an argument of the trainer begins with in errors.
      rename: the remedy where two reward functions have one name.
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
        """Read the settings and fit them to the reward functions.

        `by_criterion` names the functions that return a mapping for each completion, from its
        criteria to their grades.

        Raises ValueError for a wrong setting.
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
        # The functions declare nothing: the ranges are an argument.
        components = _components(names, ranges)
        for name in as_names(by_criterion):
            parsing.check_component("by_criterion", name, names)
        mapped = as_names(by_criterion)
        self.objective: Objective = config.resolve(components, names, mapped=mapped)
        self.objective.check_groups(self.num_generations)
        self.objective.try_derived({})
        self._warn()
        # What the trainer logs as `reward` is then the sum of what is trained.
        weights = self.weights_by_name()
        self.reward_weights = torch.tensor([weights.get(name, 0.0) for name in names]).to(
            self.reward_weights
        )

    def weights_by_name(self) -> dict[str, float]:
        """The weight of each component, without schedules."""
        return dict(zip(self.objective.keys, self.objective.weights, strict=True))

    def _settings(self, gdpo: Mapping[str, Any] | None) -> GdpoConfig:
        """The settings, with the trainer's own weights."""
        settings = parsing.plain(parsing.mapping(self.wording.root, gdpo))
        weights = self.args.reward_weights
        if weights is not None:
            if settings.get("gdpo_reward_weights") is not None:
                raise ValueError(
                    f"{self.wording.weights}: {self.option}reward_weights is set, too. Remove one "
                    "of them."
                )
            # The trainer wants one for each function, whichever the keys leave out.
            keys = settings.get("gdpo_reward_keys") or self.reward_func_names
            named = dict(zip(self.reward_func_names, weights, strict=False))
            settings["gdpo_reward_weights"] = {key: named[key] for key in keys if key in named}
        return GdpoConfig.from_algorithm(settings, self.wording)

    def _warn(self) -> None:
        """Warn of settings that have no effect, and of too small groups in evaluations."""
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
        """Compute the advantages of all processes' responses, and log their metrics.

        Args:
          rewards: float64, shape (B, K), in reward units, a group's responses one after the other;
            NaN where not scored.
          tokens: of each response, shape (B,).
          mappings: the grades of each response, for the components by criterion.

        Raises ValueError for a reward that is no finite number, with its row.
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
        # The trainer counts the steps that are done, and a schedule the one that is taken.
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
                # The trainer has them of its functions.
                if (MEAN.name_in(name) or STD.name_in(name)) not in names:
                    metrics[name].append(float(value))
        return decomposition


def row_numbers(rows: Sequence[Any]) -> list[str]:
    """Return what an error calls each row."""
    return [str(row) for row in range(len(rows))]


def decimals(rewards: Tensor) -> Tensor:
    """Return rewards in float32 as float64 with the same decimals: 0.7 and not 0.69999999.

    Up to seven digits, this is the number that a reward function returned.
    """
    return torch.from_numpy(rewards.float().cpu().numpy().astype(str).astype(float))


def _components(names: list[str], ranges: Mapping[str, Any] | None) -> list[Component]:
    """Return a component for each reward function, with its range.

    Raises ValueError for a range of an unknown function, and for a value that is not a range.
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
