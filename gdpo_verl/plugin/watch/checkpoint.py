"""Keep one complete checkpoint while the next one is saved.

A run may be configured to keep only one checkpoint. verl 0.9.1 then removes the last checkpoint as
soon as the weights of the next one are written (verl/utils/checkpoint/checkpoint_manager.py,
`register_checkpoint`), but before the position in the data is written. A run that is killed in
between has no complete checkpoint. `save` removes the last checkpoint only when the next one is
complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from omegaconf import open_dict

# verl's older key, with which a run keeps one checkpoint of each model.
_OLDER_KEY = "remove_previous_ckpt_in_save"


def save(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Save a checkpoint with verl's `_save_checkpoint`, and then remove the last one.

    Args:
      original: verl's method.
      trainer: verl's trainer.
    """
    config = trainer.config.trainer
    configured = dict(config)
    # The models of which the run keeps a single checkpoint.
    single = [
        model
        for model in ("actor", "critic")
        if configured.get(_OLDER_KEY) or configured.get(f"max_{model}_ckpt_to_keep") == 1
    ]
    with open_dict(config):
        # While it saves, verl keeps two checkpoints of these models.
        for model in single:
            config[f"max_{model}_ckpt_to_keep"] = 2
        config[_OLDER_KEY] = False
        try:
            original(trainer, *args, **kwargs)
        finally:
            for key in (_OLDER_KEY, "max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep"):
                config[key] = configured.get(key)
    last = getattr(trainer, "gdpo_last_saved", trainer.global_steps)
    trainer.gdpo_last_saved = trainer.global_steps
    if last != trainer.global_steps and single:
        checkpoint = Path(config.default_local_dir) / f"global_step_{last}"
        for model in single:
            shutil.rmtree(checkpoint / model, ignore_errors=True)
        if not any((checkpoint / model).exists() for model in ("actor", "critic")):
            shutil.rmtree(checkpoint, ignore_errors=True)
