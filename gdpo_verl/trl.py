"""GDPO and its variants in TRL: a `GRPOTrainer` with other advantages.

verl 0.9.1 cannot train where TRL 1.16 is installed: use another environment.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer

from gdpo_verl.advantage import Decomposition, EstimatorSettings
from gdpo_verl.advantage.criteria import rubric_number
from gdpo_verl.config import GdpoConfig, parsing
from gdpo_verl.config.components import (
    BY_CRITERION,
    MINI_BATCH,
    TOKENS,
    Component,
    as_names,
)
from gdpo_verl.config.wording import Wording
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.names import MEAN, STD
from gdpo_verl.reward_dicts import as_written, graded_criteria, read_components
from gdpo_verl.upstream.dependencies import Dependency as _D
from gdpo_verl.upstream.dependencies import source_of, violations

logger = logging.getLogger(__name__)

_TRL = Wording(
    root="gdpo",
    rewards="reward_funcs",
    group_size="GRPOConfig.num_generations",
    components="Give reward_funcs.",
    ranges="Give them as ranges={name: (low, high)}.",
    absent="Name functions of reward_funcs.",
)
# fmt: off
CONTRACT = {"trainer.grpo_trainer": [
    _D("GRPOTrainer", reads="reward_func_names reward_weights scale_rewards "
       "num_generations_eval process_slice log_completions"),
    _D("GRPOTrainer._calculate_rewards", "self inputs prompts completions ..."),
    _D("GRPOTrainer._generate_and_score_completions", "self inputs",
       "_calculate_rewards num_generations completion_mask tool_mask advantages _metrics _logs"),
]}
# fmt: on


class GDPOTrainer(GRPOTrainer):
    """TRL's `GRPOTrainer` with the advantages of GDPO, or of another variant.

    Components have the names of the reward functions. All that TRL logs stays, and our metrics
    (docs/metrics.md) are added; `reward` is the weighted sum after the conditions. With
    `log_completions` the tables also hold what `gdpo-verl replay` needs: the rewards that were
    used, the token counts and the batch. The settings are in completions/config.yaml.

    Args:
      reward_funcs: as in TRL, or a dict that maps the name of each component to its function.
      gdpo: the settings as in verl's `algorithm` node, for example {"gdpo": {"variant": "dvao"}}.
        TRL's `reward_weights` are used; its `scale_rewards` and `multi_objective_aggregation`
        have no effect.
      ranges: the smallest and the largest value of each component by its name, for metrics and for
        the variants that need them.
      by_criterion: the names of the reward functions that return a mapping for each completion,
        from the name of each criterion to a number, None or {"value": number, "weight": number}.
        TRL logs the number of the rubric.

    Raises RuntimeError for a TRL that does not fit, and ValueError for a wrong setting.
    """

    def __init__(
        self,
        model: Any = None,
        reward_funcs: Any = None,
        *args: Any,
        gdpo: Mapping[str, Any] | None = None,
        ranges: Mapping[str, tuple[float, float]] | None = None,
        by_criterion: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        problems = violations(source_of("trl"), CONTRACT)
        if problems:
            raise RuntimeError(
                f"gdpo_verl.trl does not fit TRL {version('trl')}: {'; '.join(problems)}. "
                "Run: pip install trl==1.16.0"
            )
        chosen_names: list[str] = []
        if isinstance(reward_funcs, Mapping):
            chosen_names = list(reward_funcs)
            reward_funcs = list(reward_funcs.values())
        super().__init__(model, reward_funcs, *args, **kwargs)
        self.reward_func_names[: len(chosen_names)] = chosen_names
        names = self.reward_func_names
        if len(set(names)) < len(names):
            raise ValueError(
                f"reward_funcs: expected functions of distinct names, found {names}. Name them: "
                "reward_funcs={name: function, ...}"
            )
        config = self._settings(gdpo)
        if config.estimator.credit != EstimatorSettings.credit:
            raise ValueError(
                f"{_TRL.root}.gdpo.credit: TRL's reward functions return one number per "
                "completion, and none per turn. Remove this setting."
            )
        # TRL scores with functions, which declare nothing: the ranges are an argument.
        components = _components(names, ranges)
        for name in as_names(by_criterion):
            parsing.check_component("by_criterion", name, names)
        self.objective = config.resolve(components, names, mapped=as_names(by_criterion))
        self._mappings: dict[str, list[Any]] = {}
        self._wrap_rubrics()
        self.objective.check_groups(self.num_generations)
        self.objective.try_derived({})
        self._warn_of_trls()
        # What TRL logs as `reward` is then the sum of what is trained.
        weights = dict(zip(self.objective.keys, self.objective.weights, strict=True))
        self.reward_weights = torch.tensor([weights.get(name, 0.0) for name in names])
        self._batches = 0
        if self.log_completions and self.accelerator.is_main_process:
            # Under the keys that the configuration of a verl run has.
            algorithm = {
                **parsing.plain(gdpo),
                "adv_estimator": "gdpo",
                "gdpo_reward_keys": self.objective.keys,
                "gdpo_reward_weights": weights,
                "ranges": ranges,
            }
            text = json.dumps({"algorithm": algorithm}, default=float)
            Path(self.args.output_dir, "completions/config.yaml").write_text(text)

    def _wrap_rubrics(self) -> None:
        """Have each function that returns mappings return the numbers of its rubrics to TRL."""
        for place, name in enumerate(self.reward_func_names):
            if name in self.objective.by_criterion:
                self.reward_funcs[place] = self._with_numbers(name, self.reward_funcs[place])

    def _with_numbers(self, name: str, function: Any) -> Any:
        """The function with the number of each rubric, which TRL takes; its mappings are kept."""

        def numbers(returned: Sequence[Any]) -> list[float | None]:
            self._mappings[name] = list(returned)
            rows = [{name: mapping} for mapping in returned]
            graded = graded_criteria(rows, self.objective, _numbered(rows))[name]
            return as_written([rubric_number(each) for each in graded])

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> list[float | None]:
            return numbers(await function(*args, **kwargs))

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> list[float | None]:
            return numbers(function(*args, **kwargs))

        return awaited if inspect.iscoroutinefunction(function) else called

    def _settings(self, gdpo: Mapping[str, Any] | None) -> GdpoConfig:
        """The settings, with TRL's own weights."""
        settings = parsing.plain(parsing.mapping(_TRL.root, gdpo))
        weights = self.args.reward_weights
        if weights is not None:
            if settings.get("gdpo_reward_weights") is not None:
                raise ValueError(
                    f"{_TRL.weights}: GRPOConfig.reward_weights is set, too. Remove one of them."
                )
            # TRL wants one for each function, whichever the keys leave out.
            keys = settings.get("gdpo_reward_keys") or self.reward_func_names
            named = dict(zip(self.reward_func_names, weights, strict=False))
            settings["gdpo_reward_weights"] = {key: named[key] for key in keys if key in named}
        return GdpoConfig.from_algorithm(settings, _TRL)

    def _warn_of_trls(self) -> None:
        """Warn of TRL's settings that have no effect, and of too small groups in evaluations."""
        if self.scale_rewards != "group":
            logger.warning(
                "GRPOConfig.scale_rewards=%r has no effect in GDPOTrainer, which divides each "
                "component by its group's deviation. To leave the deviations out: gdpo=%s.",
                self.scale_rewards,
                {parsing.SCALE: False},
            )
        size = self.num_generations_eval
        if size < max(2, self.objective.config.chosen_variant.least_group):
            logger.warning(
                "GRPOConfig.num_generations_eval=%d: too few responses to a prompt for the variant "
                "%r. In evaluations the metrics of advantages have no meaning.",
                size,
                self.objective.config.variant,
            )

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        # TRL keeps only the weighted sum of what its method, or a subclass's, returns.
        returned: list[Tensor] = []
        score = self._calculate_rewards  # type: ignore[has-type]

        def keep(*args: Any, **kwargs: Any) -> Tensor:
            returned.append(score(*args, **kwargs))
            return returned[-1]

        self._calculate_rewards = keep
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        finally:
            self._calculate_rewards = score
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        tokens = self.accelerator.gather(mask.sum(dim=1)).cpu()
        # Those of all processes, in the order of the rewards.
        self._gathered = {name: gather_object(each) for name, each in self._mappings.items()}
        advantage = self._advantages(_decimals(returned[0]), tokens)
        first = self.accelerator.process_index * len(inputs)
        own = advantage[first : first + len(inputs)]
        output["advantages"] = own.to(output["advantages"])
        return output

    def _log_batch(self, rewards: Tensor, tokens: Tensor, decomposition: Decomposition) -> None:
        """Add to TRL's table of completions what `gdpo-verl replay` needs of a batch."""
        _replace_last(self._logs["advantages"], decomposition.advantage.tolist())
        for name, column in zip(self.reward_func_names, rewards.T.tolist(), strict=True):
            _replace_last(self._logs["rewards"][name], column)
        extra = self._logs["extra"]
        extra[TOKENS].extend(tokens.tolist())
        extra["uid"].extend(map(str, decomposition.groups.codes.tolist()))
        extra[MINI_BATCH].extend([self._batches] * len(rewards))
        self._batches += 1
        for name, mappings in self._gathered.items():
            extra[f"{name}{BY_CRITERION}"].extend(map(json.dumps, mappings))

    def _advantages(self, rewards: Tensor, tokens: Tensor) -> Tensor:
        """The advantages of all processes' responses, and their metrics in TRL's log."""
        objective = self.objective
        names = self.reward_func_names
        rows = []
        for row in rewards.tolist():
            scored = [None if math.isnan(value) else value for value in row]
            rows.append(dict(zip(names, scored, strict=True)))
        for name, mappings in self._gathered.items():
            for row, mapping in zip(rows, mappings, strict=True):
                row[name] = mapping
        numbers = _numbered(rows)
        graded = graded_criteria(rows, objective, numbers)
        raw = read_components(rows, objective, numbers, graded)
        # TRL counts the steps that are done, and a schedule the one that is taken.
        done = self.state.global_step
        if self.model.training:
            metrics, size, step = self._metrics["train"], self.num_generations, done + 1
        else:
            metrics, size, step = self._metrics["eval"], self.num_generations_eval, max(done, 1)
        groups = torch.arange(len(rows)) // size
        raw = objective.with_derived(raw, rows, tokens.tolist(), groups.tolist())
        decomposition = objective.decompose(raw, groups, tokens, step, graded, numbers)
        self._log_batch(rewards, tokens, decomposition)
        sums = objective.score(raw)[decomposition.scored]
        metrics["reward"][-1] = float(sums.mean())
        metrics["reward_std"][-1] = float(sums.std())
        if objective.config.metrics:
            for name, value in batch_metrics(decomposition, objective).items():
                # TRL has them of its functions.
                if (MEAN.name_in(name) or STD.name_in(name)) not in self.reward_func_names:
                    metrics[name].append(float(value))
        return decomposition.advantage


def _numbered(rows: Sequence[Any]) -> list[str]:
    """What an error calls each row."""
    return [str(row) for row in range(len(rows))]


def _decimals(rewards: Tensor) -> Tensor:
    """Return TRL's rewards, float32, as float64 with the same decimals: 0.7 and not 0.69999999.

    Up to seven digits, this is the number that a reward function returned.
    """
    return torch.from_numpy(rewards.float().cpu().numpy().astype(str).astype(float))


def _replace_last(logged: deque[Any], values: Sequence[Any]) -> None:
    """Replace the last entries of a log, which keeps no more than its maximal length."""
    for _ in values[: len(logged)]:
        logged.pop()
    logged.extend(values)


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
