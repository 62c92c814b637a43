"""Compose a recipe without importing verl, and list the keys that decide what a run learns."""

from __future__ import annotations

import fnmatch
import importlib.resources
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from gdpo_verl.lab.rundir.run import flattened
from gdpo_verl.names import did_you_mean

# Keys that may change between two starts of a run. All other keys decide what is learned.
NOT_SCIENCE = (
    # the length, frequencies, names and directories
    "trainer.total_*",
    "trainer.*_freq",
    "trainer.*_name",
    "trainer.*_dir",
    "trainer.logger",
    "trainer.rollout_dump_prompts",
    "trainer.*val_*",
    "trainer.max_*_ckpt_to_keep",
    "trainer.esi_redundant_time",
    "trainer.balance_batch",
    "*profiler.*",
    "*.trace.*",
    # the machines, and how the work is distributed over them
    "trainer.device",
    "trainer.ray_wait_register_center_timeout",
    "ray_kwargs.*",
    "transfer_queue.*",
    "*num_workers",
    "*.nnodes",
    "*.n_gpus_per_node",
    "*_parallel_size",
    # settings that depend on the memory
    "*.use_remove_padding",
    "*.use_prefix_grouper",
    "*fused_kernel*",
    "*.attn_implementation",
    "*use_dynamic_bsz",
    "*micro_batch_size*",
    "*max_token_len*",
    "*.entropy_from_logits_*",
    "*_checkpointing",
    "*.use_torch_compile",
    "*offload*",
    # the engines
    "*.gpu_memory_utilization",
    "*.max_num_seqs",
    "*.max_num_batched_tokens",
    "*.layered_summon",
    "*.enforce_eager",
    "*.checkpoint_engine.*",
)
DATA = ("data.train_files", "data.val_files")
MODEL = "actor_rollout_ref.model.path"
REWARD = "reward.custom_reward_function.path"
# The keys of files and folders that decide what a run learns.
SOURCES = (*DATA, MODEL, REWARD)
# The packages in which Hydra looks for parts of a recipe that are not in the recipe's folder.
_VERLS = "pkg://verl.trainer.config"
_OURS = "pkg://gdpo_verl.recipes"
_STEPS = ("trainer.total_training_steps", "trainer.total_epochs")


class RecipeError(ValueError):
    """The error if a recipe does not exist, or if its configuration cannot be composed."""


def recipes_directory() -> Path:
    """Return the folder of the recipes: in the installed package, or at the top of a checkout."""
    return Path(str(importlib.resources.files("gdpo_verl.recipes")))


def require_recipe(recipe: str, directory: Path | None = None) -> Path:
    """Return the file of a recipe, in gdpo-verl or in `directory`.

    Raises:
      RecipeError: there is no recipe of this name.
    """
    recipes = directory or recipes_directory()
    file = recipes / f"{recipe}.yaml"
    if not file.exists():
        files = recipes.glob("*/g[dr]po*.yaml")
        where = ""
        if directory:
            files = recipes.rglob("*.yaml")
            where = f" in {directory}"
        names = sorted(str(path.relative_to(recipes).with_suffix("")) for path in files)
        of_task = f"{recipe.lower()}/gdpo"  # the user may have given only the name of the task
        meant = did_you_mean(of_task if of_task in names else recipe, names)
        raise RecipeError(f"recipe: {recipe!r} does not exist{where}; there are {names}.{meant}")
    return file


def search_path(recipe: str, directory: Path | None = None, *, verls: str = _VERLS) -> str:
    """Return the override of Hydra's search path: the recipe's own places, verl and gdpo-verl.

    Args:
      recipe: the name of the recipe.
      directory: the folder of the recipe, if it is not part of gdpo-verl.
      verls: the address of verl's configurations.
    """
    of_recipe = OmegaConf.select(
        OmegaConf.load(require_recipe(recipe, directory)), "hydra.searchpath"
    )
    places = dict.fromkeys([*(of_recipe or []), _VERLS, _OURS])
    quoted = []
    for place in places:
        address = verls if place == _VERLS else place
        quoted.append(f"'{address}'")
    return f"hydra.searchpath=[{','.join(quoted)}]"


def compose(
    recipe: str, overrides: Sequence[str] = (), directory: Path | None = None, **options: Any
) -> DictConfig:
    """Compose the configuration of a recipe, in `directory` or in gdpo-verl, as verl does.

    Args:
      recipe: the name of the recipe.
      overrides: overrides of Hydra.
      directory: the folder of the recipe, if it is not part of gdpo-verl.
      options: further arguments of Hydra's `compose`.

    Raises:
      RecipeError: there is no such recipe, or Hydra rejects a key or a value.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    recipes = directory or recipes_directory()
    # verl's yaml files are found by their path. With an address pkg://, Hydra would import verl,
    # and verl imports torch.
    verl = importlib.util.find_spec("verl")
    if verl is None or not verl.submodule_search_locations:
        raise RecipeError("verl is not installed here; run `gdpo-verl doctor`")
    configs = f"file://{verl.submodule_search_locations[0]}/trainer/config"
    try:
        places = search_path(recipe, directory, verls=configs)
        with hydra.initialize_config_dir(str(recipes.resolve()), version_base=None):
            return hydra.compose(recipe, [*overrides, places], **options)
    except (HydraException, OmegaConfBaseException) as error:
        raise RecipeError(f"recipe {recipe}: {error}") from error


def named(config: DictConfig, key: str) -> list[str]:
    """Return the files or models at a key of verl as a list."""
    return listed(OmegaConf.select(config, key))


def listed(value: Any) -> list[str]:
    """Return a list from one text, several texts, or None."""
    return [value] if isinstance(value, str) else list(value or [])


def hardware_of(recipe: str, overrides: Sequence[str] = (), directory: Path | None = None) -> str:
    """Return the name of the hardware recipe that Hydra chooses; "" if there is none."""
    config = compose(recipe, overrides, directory, return_hydra_config=True)
    return str(config.hydra.runtime.choices.get("hardware", ""))


def changed_science(before: DictConfig, after: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Return the keys that differ and decide what a run learns, with both values."""
    old = dict(flattened("", OmegaConf.to_container(before, resolve=False)))
    new = dict(flattened("", OmegaConf.to_container(after, resolve=False)))
    # The number of steps decides what is learned if the learning rate depends on it.
    optim = after.actor_rollout_ref.actor.optim
    warms_up = optim.lr_warmup_steps <= 0 and optim.lr_warmup_steps_ratio > 0
    steps: tuple[str, ...] = ()
    if optim.lr_scheduler_type != "constant" or warms_up:
        # If the number of steps is set, the number of epochs is only an upper limit.
        steps_are_set = after.trainer.total_training_steps is not None
        steps = _STEPS[:1] if steps_are_set else _STEPS
    changed = {}
    for key in sorted(old | new):
        differs = old.get(key) != new.get(key)
        if differs and (key in steps or _is_science(key)):
            changed[key] = (old.get(key, "not set"), new.get(key, "not set"))
    return changed


def _is_science(key: str) -> bool:
    return not any(fnmatch.fnmatchcase(key, pattern) for pattern in NOT_SCIENCE)
