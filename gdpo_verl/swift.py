"""GDPO and its variants in ms-swift: a `GRPOTrainer` that computes the advantages differently.

To use it, give `swift rlhf` a file with these lines as `--external_plugins`:

    from gdpo_verl.swift import use_gdpo
    use_gdpo({"gdpo_reward_weights": {"Short": 0.5}})
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from gdpo_verl.config.components import TOKENS
from gdpo_verl.config.wording import Wording
from gdpo_verl.grpo_trainer import GDPOMixin, decimals
from gdpo_verl.upstream.dependencies import Dependency as _D
from gdpo_verl.upstream.dependencies import source_of, violations

_SWIFT = Wording(
    root="gdpo",
    rewards="--reward_funcs",
    group_size="--num_generations",
    components="Give --reward_funcs.",
    ranges="Give them to use_gdpo as ranges={name: (low, high)}.",
    absent="Name functions of --reward_funcs, which ms-swift calls by the names of their classes.",
)
# The functions and attributes of ms-swift that this module uses, by ms-swift's module.
# fmt: off
CONTRACT = {
    "rlhf_trainers.grpo_trainer": [
        _D("GRPOTrainer", reads="reward_func_names reward_weights num_generations_eval "
           "dynamic_num_samples sequence_parallel_size"),
        _D("GRPOTrainer._prepare_algorithm_params",
           reads="scale_rewards advantage_estimator kl_in_reward dynamic_sample"),
        _D("GRPOTrainer._compute_advantages", "self samples rewards_per_func batch_encoded_inputs",
           "grpo_batch completion_mask num_generations _metrics _logs reward reward_std"),
    ],
    "trainers.trainer_factory": [
        _D("TrainerFactory", reads="TRAINER_MAPPING grpo swift.rlhf_trainers.GRPOTrainer"),
    ],
}
# fmt: on
# Arguments of `swift rlhf` that do not fit GDPO: the only value that is accepted, and what to do.
_EXPECTED: dict[str, tuple[Any, str]] = {
    "advantage_estimator": (
        "grpo",
        "GDPO computes the advantages in its place. Remove this argument.",
    ),
    "kl_in_reward": (
        False,
        "The sum of the rewards, which the KL divergence would be subtracted from, is not what "
        "GDPO normalises. Remove this argument: --beta then adds the divergence to the loss.",
    ),
    "dynamic_sample": (
        False,
        "It replaces groups in which the sum of the rewards is constant, and GDPO learns from "
        "those in which a single reward varies. Remove this argument.",
    ),
}

# The check is made before the import, because another version of ms-swift may have moved these
# modules, and the import would then fail with a less helpful error.
_problems = violations(source_of("swift"), CONTRACT)
if _problems:
    raise RuntimeError(
        f"gdpo_verl.swift does not fit ms-swift {version('ms-swift')}: {'; '.join(_problems)}. "
        "Run: pip install ms-swift==4.6.0"
    )
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer  # noqa: E402
from swift.trainers.trainer_factory import TrainerFactory  # noqa: E402


class GDPOTrainer(GDPOMixin, GRPOTrainer):
    """ms-swift's `GRPOTrainer` with the advantages of GDPO, or of another variant.

    Each reward function is a component, with the name under which ms-swift logs the function.
    ms-swift logs the same metrics as before, except that `reward` is the weighted sum after the
    conditions. Our metrics (docs/metrics.md) are added. `use_gdpo` gives the settings.

    Raises:
      ValueError: a setting is wrong.
    """

    wording = _SWIFT
    option = "--"
    rename = "Rename a class or a function."
    scales = ("group", "gdpo")
    gdpo: Mapping[str, Any] | None = None
    ranges: Mapping[str, tuple[float, float]] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name, (expected, remedy) in _EXPECTED.items():
            found = getattr(kwargs["args"], name)
            if found != expected:
                raise ValueError(f"--{name}: expected {expected}, found {found}. {remedy}")
        super().__init__(*args, **kwargs)
        size = self.template.sequence_parallel_size
        if size > 1:
            raise ValueError(
                f"--sequence_parallel_size: expected 1, found {size}. With more, the lengths of "
                "the responses are in another order than their rewards. Remove this argument."
            )
        self.set_objective(self.gdpo, self.ranges)

    def _compute_advantages(
        self, samples: Any, rewards_per_func: Tensor, batch_encoded_inputs: Any
    ) -> Tensor:
        if self.dynamic_num_samples:
            raise ValueError(
                "--multi_turn_scheduler: expected one sample for each response, found a scheduler "
                "that returns several, whose rewards would count several times. Return one sample "
                "from its `run`."
            )
        # ms-swift's method also fills its metrics and its log. Its advantages are not used.
        replaced = super()._compute_advantages(samples, rewards_per_func, batch_encoded_inputs)
        lengths = []
        for batch in batch_encoded_inputs:
            lengths += batch["grpo_batch"].completion_mask.sum(dim=1).tolist()
        tokens = gather_object(lengths)
        decomposition = self.decompose(decimals(rewards_per_func), torch.tensor(tokens))
        # ms-swift writes each column of its log to completions.jsonl, and we add the token counts.
        if TOKENS not in self._logs:
            self._logs[TOKENS] = deque(maxlen=self.args.generation_batch_size)
        self._logs[TOKENS].extend(tokens)
        return decomposition.advantage.to(replaced)


def use_gdpo(
    gdpo: Mapping[str, Any] | None = None,
    ranges: Mapping[str, tuple[float, float]] | None = None,
) -> None:
    """Let `swift rlhf --rlhf_type grpo` train with `GDPOTrainer` in this process.

    Args:
      gdpo: the settings as in verl's `algorithm` node, for example {"gdpo": {"variant": "dvao"}}.
        ms-swift's `--reward_weights` are used; its `--scale_rewards` has no effect.
      ranges: the lowest and the highest value of each component, by its name. Metrics use them,
        and some variants need them.

    Raises:
      RuntimeError: the command is `megatron rlhf`, which uses a different trainer.
    """
    if "swift.megatron" in sys.modules or "swift.ray.megatron" in sys.modules:
        raise RuntimeError(
            "gdpo_verl.swift: expected the command swift rlhf, found megatron rlhf, whose trainer "
            "computes its own advantages. Train with swift rlhf, or remove use_gdpo."
        )
    GDPOTrainer.gdpo = gdpo
    GDPOTrainer.ranges = ranges
    # ms-swift imports its trainer by the name in this mapping.
    TrainerFactory.TRAINER_MAPPING["grpo"] = f"{__name__}.{GDPOTrainer.__name__}"
