"""Compose a recipe without importing verl, and say which keys decide what a run learns."""

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

# Keys that may change between two starts of a run. The rest decides what is learned.
NOT_SCIENCE = (
    # how long, how often, under which name, and where to
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
    # on which machines, and how the work is spread over them
    "trainer.device",
    "trainer.ray_wait_register_center_timeout",
    "ray_kwargs.*",
    "transfer_queue.*",
    "*num_workers",
    "*.nnodes",
    "*.n_gpus_per_node",
    "*_parallel_size",
    # what fits into memory
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
    # and how the engines are run
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
# What a run learns from, where it is a local file or folder.
SOURCES = (*DATA, MODEL, REWARD)
# Where Hydra looks for the parts of a recipe outside its folder.
_VERLS = "pkg://verl.trainer.config"
_OURS = "pkg://gdpo_verl.recipes"
_STEPS = ("trainer.total_training_steps", "trainer.total_epochs")


class RecipeError(ValueError):
    """There is no such recipe, or its configuration cannot be composed."""


def recipes_directory() -> Path:
    """The folder of the recipes: in the wheel, or at the top of a checkout."""
    return Path(str(importlib.resources.files("gdpo_verl.recipes")))


def require_recipe(recipe: str, directory: Path | None = None) -> Path:
    """Return the file of a recipe, in gdpo-verl or in `directory`.

    Raises:
      RecipeError: there is none of this name.
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
        of_task = f"{recipe.lower()}/gdpo"  # a task's name alone
        meant = did_you_mean(of_task if of_task in names else recipe, names)
        raise RecipeError(f"recipe: {recipe!r} does not exist{where}; there are {names}.{meant}")
    return file


def search_path(recipe: str, directory: Path | None = None, *, verls: str = _VERLS) -> str:
    """Return the override of Hydra's search path: the recipe's places, `verls`, and gdpo-verl."""
    written = OmegaConf.select(
        OmegaConf.load(require_recipe(recipe, directory)), "hydra.searchpath"
    )
    places = dict.fromkeys([*(written or []), _VERLS, _OURS])
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
      options: of Hydra's `compose`.

    Raises:
      RecipeError: no such recipe, or a key or value that does not compose.
    """
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    recipes = directory or recipes_directory()
    require_recipe(recipe, directory)
    # verl's yaml files by their path: as pkg:// Hydra would import verl, and torch with it.
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
    """Return the files or models at a key of verl, which may hold one, several or none."""
    return listed(OmegaConf.select(config, key))


def listed(value: Any) -> list[str]:
    """Return one text, several or none, as a list."""
    return [value] if isinstance(value, str) else list(value or [])


def hardware_of(recipe: str, overrides: Sequence[str] = (), directory: Path | None = None) -> str:
    """Return the hardware recipe that Hydra chooses; "" where there is none."""
    whole = compose(recipe, overrides, directory, return_hydra_config=True)
    return str(whole.hydra.runtime.choices.get("hardware", ""))


def changed_science(before: DictConfig, after: DictConfig) -> dict[str, tuple[Any, Any]]:
    """Return the keys that decide what a run learns and that differ, with both values."""
    old = dict(flattened("", OmegaConf.to_container(before, resolve=False)))
    new = dict(flattened("", OmegaConf.to_container(after, resolve=False)))
    # The number of steps is among them where the learning rate depends on it.
    optim = after.actor_rollout_ref.actor.optim
    warms_up = optim.lr_warmup_steps <= 0 and optim.lr_warmup_steps_ratio > 0
    steps: tuple[str, ...] = ()
    if optim.lr_scheduler_type != "constant" or warms_up:
        # Where the steps are given, the epochs only limit them.
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
