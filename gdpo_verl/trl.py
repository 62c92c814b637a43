"""GDPO and its variants in TRL: a `GRPOTrainer` that computes the advantages differently.

Install TRL and verl in separate environments: verl 0.9.1 cannot train where TRL 1.16 is installed.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections import deque
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOTrainer

from gdpo_verl.advantage import Decomposition
from gdpo_verl.advantage.criteria import rubric_number
from gdpo_verl.config import parsing
from gdpo_verl.config.components import BY_CRITERION, MINI_BATCH, TOKENS
from gdpo_verl.config.wording import Wording
from gdpo_verl.grpo_trainer import GDPOMixin, decimals, row_numbers
from gdpo_verl.reward_dicts import as_written, graded_criteria
from gdpo_verl.upstream.dependencies import Dependency as _D
from gdpo_verl.upstream.dependencies import source_of, violations

_TRL = Wording(
    root="gdpo",
    rewards="reward_funcs",
    group_size="GRPOConfig.num_generations",
    components="Give reward_funcs.",
    ranges="Give them as ranges={name: (low, high)}.",
    absent="Name functions of reward_funcs.",
)
# The functions and attributes of TRL that this module uses, by TRL's module.
# fmt: off
CONTRACT = {"trainer.grpo_trainer": [
    _D("GRPOTrainer", reads="reward_func_names reward_weights scale_rewards "
       "num_generations_eval process_slice log_completions"),
    _D("GRPOTrainer._calculate_rewards", "self inputs prompts completions ..."),
    _D("GRPOTrainer._generate_and_score_completions", "self inputs",
       "_calculate_rewards num_generations completion_mask tool_mask advantages _metrics _logs"),
]}
# fmt: on


class GDPOTrainer(GDPOMixin, GRPOTrainer):
    """TRL's `GRPOTrainer` with the advantages of GDPO, or of another variant.

    Each reward function is a component, and the component has the name of the function. TRL logs
    the same metrics as before, except that `reward` is the weighted sum after the conditions. Our
    metrics (docs/metrics.md) are added. With `log_completions`, the tables of completions also
    contain what `gdpo-verl replay` needs: the rewards that were used, the token counts and the
    number of the batch. The settings are then stored in completions/config.yaml.

    Args:
      reward_funcs: as in TRL, or a dict that maps the name of each component to its function.
      gdpo: the settings as in verl's `algorithm` node, for example {"gdpo": {"variant": "dvao"}}.
        TRL's `reward_weights` are used; its `scale_rewards` and `multi_objective_aggregation`
        have no effect.
      ranges: the lowest and the highest value of each component, by its name. Metrics use them,
        and some variants need them.
      by_criterion: the names of the reward functions that return a mapping for each completion,
        from the name of each criterion to a number, None or {"value": number, "weight": number}.
        TRL logs one number for each mapping, `gdpo_verl.advantage.criteria.rubric_number`.

    Raises:
      RuntimeError: the installed version of TRL does not have what this class uses.
      ValueError: a setting is wrong.
    """

    wording = _TRL
    option = "GRPOConfig."
    rename = "Name them: reward_funcs={name: function, ...}"

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
        self.set_objective(gdpo, ranges, by_criterion)
        self._mappings: dict[str, list[Any]] = {}
        self._wrap_rubrics()
        self._batches = 0
        if self.log_completions and self.accelerator.is_main_process:
            # The keys are those of verl's configuration, which `gdpo-verl replay` reads.
            algorithm = {
                **parsing.plain(gdpo),
                "adv_estimator": "gdpo",
                "gdpo_reward_keys": self.objective.keys,
                "gdpo_reward_weights": self.weights_by_name(),
                "ranges": ranges,
            }
            text = json.dumps({"algorithm": algorithm}, default=float)
            Path(self.args.output_dir, "completions/config.yaml").write_text(text)

    def _wrap_rubrics(self) -> None:
        """Wrap each function that returns mappings, because TRL accepts only numbers."""
        for place, name in enumerate(self.reward_func_names):
            if name in self.objective.by_criterion:
                self.reward_funcs[place] = self._with_numbers(name, self.reward_funcs[place])

    def _with_numbers(self, name: str, function: Any) -> Any:
        """Return a function that stores the mappings and returns one number for each of them."""

        def numbers(returned: Sequence[Any]) -> list[float | None]:
            self._mappings[name] = list(returned)
            rows = [{name: mapping} for mapping in returned]
            graded = graded_criteria(rows, self.objective, row_numbers(rows))[name]
            return as_written([rubric_number(criteria) for criteria in graded])

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> list[float | None]:
            return numbers(await function(*args, **kwargs))

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> list[float | None]:
            return numbers(function(*args, **kwargs))

        return awaited if inspect.iscoroutinefunction(function) else called

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        # We need the reward of each function. TRL passes on only the weighted sum of what
        # `_calculate_rewards` returns, so that method is wrapped during this call.
        returned: list[Tensor] = []
        calculate_rewards = self._calculate_rewards  # type: ignore[has-type]

        def keep(*args: Any, **kwargs: Any) -> Tensor:
            returned.append(calculate_rewards(*args, **kwargs))
            return returned[-1]

        self._calculate_rewards = keep
        try:
            output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        finally:
            self._calculate_rewards = calculate_rewards
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        tokens = self.accelerator.gather(mask.sum(dim=1)).cpu()
        # The mappings of all processes, in the same order as the rewards.
        self._gathered = {
            name: gather_object(mappings) for name, mappings in self._mappings.items()
        }
        rewards = decimals(returned[0])
        decomposition = self.decompose(rewards, tokens, self._gathered)
        self._log_batch(rewards, tokens, decomposition)
        first = self.accelerator.process_index * len(inputs)
        of_this_process = decomposition.advantage[first : first + len(inputs)]
        output["advantages"] = of_this_process.to(output["advantages"])
        return output

    def _log_batch(self, rewards: Tensor, tokens: Tensor, decomposition: Decomposition) -> None:
        """Add to TRL's table of completions the columns that `gdpo-verl replay` needs."""
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


def _replace_last(logged: deque[Any], values: Sequence[Any]) -> None:
    """Replace the last entries of a log by the values, as far as its maximal length allows."""
    for _ in values[: len(logged)]:
        logged.pop()
    logged.extend(values)
