"""Keep one complete checkpoint while the next one is saved.

With one checkpoint to keep, verl 0.9.1 removes the last one when the weights of the next one are
written (verl/utils/checkpoint/checkpoint_manager.py, `register_checkpoint`), before the position in
the data is written. A run that is killed in between has no complete checkpoint. `save` removes the
last one only when the next one is complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from omegaconf import open_dict

# verl's older key, which keeps one checkpoint of each model.
_OLDER_WORD = "remove_previous_ckpt_in_save"


def save(original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Call ``original(trainer)``, verl's `_save_checkpoint`, and keep one complete checkpoint."""
    config = trainer.config.trainer
    asked = dict(config)
    alone = [
        model
        for model in ("actor", "critic")
        if asked.get(_OLDER_WORD) or asked.get(f"max_{model}_ckpt_to_keep") == 1
    ]
    with open_dict(config):
        for model in alone:
            config[f"max_{model}_ckpt_to_keep"] = 2
        config[_OLDER_WORD] = False
        try:
            original(trainer, *args, **kwargs)
        finally:
            for key in (_OLDER_WORD, "max_actor_ckpt_to_keep", "max_critic_ckpt_to_keep"):
                config[key] = asked.get(key)
    last = getattr(trainer, "gdpo_last_saved", trainer.global_steps)
    trainer.gdpo_last_saved = trainer.global_steps
    if last != trainer.global_steps and alone:
        checkpoint = Path(config.default_local_dir) / f"global_step_{last}"
        for model in alone:
            shutil.rmtree(checkpoint / model, ignore_errors=True)
        if not any((checkpoint / model).exists() for model in ("actor", "critic")):
            shutil.rmtree(checkpoint, ignore_errors=True)
