"""Validate a run before its first rollout."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from gdpo_verl.advantage import VARIANTS
from gdpo_verl.advantage.trial import try_variant
from gdpo_verl.config import GdpoConfig, Objective
from gdpo_verl.plugin import contract
from gdpo_verl.plugin.batch import read_components
from gdpo_verl.plugin.reward import MANAGER_NAME, declared_reward, random_state_kept
from gdpo_verl.run.memory import check_memory
from gdpo_verl.tasks.catalog import command_for
from gdpo_verl.text import VLLM

logger = logging.getLogger(__name__)

# Under `algorithm`.
OUR_KEYS = ("gdpo", "gdpo_reward_keys", "gdpo_reward_weights")
# algorithm.filter_groups.metric: a group is dropped only if every component is constant.
FILTER_METRIC = "components"


def is_gdpo(config: Any) -> bool:
    """Tell whether the run asks for GDPO."""
    estimator = config.algorithm.get("adv_estimator")
    return str(getattr(estimator, "value", estimator)) == "gdpo"


def asks(config: Any) -> bool:
    """Tell whether a run asks for anything of ours; any other is left alone.

    It does by its estimator, by one of our keys, by our reward manager or group filter, or by a
    reward whose source mentions this package, as one that declares its components does. Nothing
    is imported to find out, and what the configuration lacks is not asked for.
    """
    algorithm = config.algorithm
    if is_gdpo(config) or any(algorithm.get(key) is not None for key in OUR_KEYS):
        return True
    if (algorithm.get("filter_groups") or {}).get("metric") == FILTER_METRIC:
        return True
    if OmegaConf.select(config, "reward.reward_manager.name") == MANAGER_NAME:
        return True
    path = OmegaConf.select(config, "reward.custom_reward_function.path")
    return bool(path) and "gdpo_verl" in f"{path}\n{_source(path)}"


def _source(path: str) -> str:
    """The text of a reward's file or ``pkg://`` module, not imported; empty without one."""
    try:
        if path.startswith("pkg://"):
            first, *others = path.removeprefix("pkg://").split(".")
            spec, name = importlib.util.find_spec(first), first
            for part in others:
                name = f"{name}.{part}"
                spec = PathFinder.find_spec(name, spec.submodule_search_locations if spec else [])
            path = str(spec and spec.origin)
        return Path(path.removeprefix("file://")).read_text(encoding="utf-8", errors="ignore")
    except (OSError, ImportError, ValueError):  # verl will say so
        return ""


def check_run(config: Any) -> None:
    """Refuse a GDPO run that cannot work, in the driver, before Ray starts.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    check_settings(config)
    if not (os.environ.get("RAY_ADDRESS") or config.ray_kwargs.get("ray_init", {}).get("address")):
        # verl writes trainer.device from what it finds itself; a platform is chosen by variable.
        platform = os.environ.get("VERL_PLATFORM") or OmegaConf.select(
            config, "ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"
        )
        if not platform:
            _check_gpu(config)
        check_machine(config)
        check_memory(config, on_cpu=platform == "cpu")


def check_settings(config: Any) -> None:
    """Refuse settings under which GDPO cannot work, whatever the machine.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    if reason := contract.misfit():
        raise ValueError(f"algorithm.adv_estimator=gdpo: {reason}")
    settings = GdpoConfig.from_algorithm(config.algorithm)
    with random_state_kept():
        _ = settings.estimator
    if config.algorithm.get("use_kl_in_reward", False):
        raise ValueError(
            "algorithm.use_kl_in_reward: true has no effect under GDPO, which reads the reward "
            "components before any penalty. Set it to false and use "
            "actor_rollout_ref.actor.use_kl_loss=true."
        )
    if not settings.scale:
        logger.warning(
            "algorithm.norm_adv_by_std_in_grpo=false: without the groups' standard deviations the "
            "components are only centred, and decoupling them makes no difference."
        )
    _check_micro_batches(config)
    _warn_about_filter(config)


def check_machine(config: Any) -> None:
    """Refuse what the machine lacks on which the trainer runs; on a cluster not the driver's.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    _check_rollout_engine(config.actor_rollout_ref.rollout.name)
    check_data_files(config.data)
    objective = GdpoConfig.from_algorithm(config.algorithm).resolve(declared_reward(config))
    check_estimator(objective, config.actor_rollout_ref.rollout.n)


def check_estimator(objective: Objective, group_size: int) -> None:
    """Refuse a variant that cannot work with these components and groups; try one's own.

    Raises:
      ValueError: names the configuration key in full.
    """
    settings, where = objective.config, "algorithm.gdpo.variant"
    settings.estimator.check_group_size(
        group_size, len(objective.keys), "actor_rollout_ref.rollout.n"
    )
    if settings.variant not in VARIANTS:
        with random_state_kept():
            try_variant(
                settings.estimator,
                where,
                weights=objective.weights,
                ranges=objective.range_list,
                epsilon=settings.epsilon,
                scale=settings.scale,
            )


def check_schedule(config: Any, *, legacy: bool = False) -> None:
    """Refuse scheduled weights where they would have no effect.

    Args:
      legacy: the trainer does not tell an estimator the global step.

    Raises:
      ValueError: says why.
    """
    if OmegaConf.select(config, "algorithm.gdpo.schedule") is None:
        return
    if not is_gdpo(config):
        raise ValueError(
            "algorithm.gdpo.schedule: the weights of a schedule act after each component is "
            f"normalised, which algorithm.adv_estimator={config.algorithm.get('adv_estimator')} "
            "does not do: it optimises the reward's score as it is. Remove the schedule, or set "
            "algorithm.adv_estimator=gdpo."
        )
    if legacy:
        raise ValueError(
            "algorithm.gdpo.schedule: verl's legacy trainer does not tell an estimator the global "
            "step. Set trainer.use_v1=true, or remove the schedule."
        )


def objective_of(config: Any, returned: Mapping[str, Any] | None = None) -> Objective | None:
    """The run's objective, or None when it has no components for us.

    A run with another estimator gets metrics when its reward declares components; if its
    declaration cannot be read, it is left alone.

    Args:
      config: verl's whole configuration.
      returned: a dict that the reward returned, where one is known.

    Raises:
      ValueError: what a GDPO run needs is missing, or another estimator has scheduled weights.
    """
    check_schedule(config)
    try:
        settings = GdpoConfig.from_algorithm(config.algorithm)
        declared = declared_reward(config)
        asked = is_gdpo(config) or (settings.metrics and (declared or settings.reward_keys))
        if not asked:
            return None
        objective = settings.resolve(declared, None if returned is None else list(returned))
        if returned is not None:
            read_components([returned], objective, ["0 of data.train_files with an empty answer"])
        return objective
    except Exception:
        if is_gdpo(config):
            raise
        logger.warning("no metrics for the reward components", exc_info=True)
        return None


def _check_micro_batches(config: Any) -> None:
    """Refuse micro-batches of a fixed size that do not divide a worker's responses.

    verl fills a batch up to whole mini-batches, and stops at its first log-probabilities or update
    where these cannot be cut (verl/workers/engine/utils.py, `prepare_micro_batches`).
    """
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    if actor.strategy not in ("fsdp", "fsdp2") or not config.trainer.get("use_v1", True):
        return
    devices = config.trainer.nnodes * config.trainer.n_gpus_per_node
    workers = max(1, devices // actor.get("ulysses_sequence_parallel_size", 1))
    mini_batches = -(-config.data.train_batch_size // actor.ppo_mini_batch_size)
    of_mini_batch = actor.ppo_mini_batch_size * rollout.n // workers
    for key, dynamic, responses in (
        ("actor.ppo_micro_batch_size_per_gpu", actor.use_dynamic_bsz, of_mini_batch),
        (
            "rollout.log_prob_micro_batch_size_per_gpu",
            rollout.log_prob_use_dynamic_bsz,
            mini_batches * of_mini_batch,
        ),
    ):
        size = OmegaConf.select(config.actor_rollout_ref, key)
        if size and not dynamic and responses % size:
            raise ValueError(
                f"actor_rollout_ref.{key}: {size} does not divide the {responses} responses that "
                f"a worker has there (data.train_batch_size={config.data.train_batch_size}, "
                f"actor.ppo_mini_batch_size={actor.ppo_mini_batch_size}, rollout.n={rollout.n}, "
                f"{workers} worker(s)). Set it to {math.gcd(size, responses)}, or "
                "actor_rollout_ref.actor.use_dynamic_bsz=true."
            )


def _warn_about_filter(config: Any) -> None:
    node = config.algorithm.get("filter_groups") or {}
    metric = node.get("metric")
    if node.get("enable", False) and metric and metric != FILTER_METRIC:
        logger.warning(
            "algorithm.filter_groups.metric=%s drops groups in which %s does not vary although "
            "other components may, from which GDPO learns. Use algorithm.filter_groups.metric=%s "
            "to drop a group only if every component is constant.",
            metric,
            "the sum" if metric in ("reward", "score") else f"{metric!r} alone",
            FILTER_METRIC,
        )


def _check_gpu(config: Any) -> None:
    if config.trainer.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"trainer.n_gpus_per_node: {config.trainer.n_gpus_per_node}, but torch finds no GPU on "
            "this machine. Train with hardware=cpu, submit the recipe to a Ray cluster "
            "(scripts/submit.sh), or run `gdpo-verl doctor`."
        )


def _check_rollout_engine(name: str) -> None:
    if name == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            f"actor_rollout_ref.rollout.name: vllm is not installed. To install it, {VLLM}."
        )


def check_data_files(data: Any) -> None:
    """Refuse files of rows that do not exist here.

    Args:
      data: verl's ``data``.

    Raises:
      ValueError: names the key, the file and the command that writes it.
    """
    if (data.get("custom_cls") or {}).get("path"):
        return  # what its files are is that class's business
    for key in ("train_files", "val_files"):
        files = data.get(key)
        for path in [files] if isinstance(files, str) else list(files or []):
            if "://" not in path and not os.path.exists(os.path.expanduser(path)):
                command = command_for(path)
                remedy = (
                    f"Prepare it with `{command}`."
                    if command
                    else "`gdpo-verl prepare --help` names the data sets that one command writes."
                )
                raise ValueError(
                    f"data.{key}: {path!r} does not exist here (working directory {os.getcwd()}). "
                    f"{remedy}"
                )
