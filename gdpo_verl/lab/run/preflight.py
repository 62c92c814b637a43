"""Reject a run that this machine cannot train, before anything is started."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import reprlib
from typing import Any

import torch
from omegaconf import OmegaConf

from gdpo_verl.lab.catalog import prepare_command_of
from gdpo_verl.lab.run.composition import listed
from gdpo_verl.lab.text import install_vllm


def platform_of(config: Any) -> str | None:
    """Return verl's platform, from the environment of this process, else from that of the workers.

    verl itself sets trainer.device from the devices that it finds. A platform is chosen only by the
    environment variable VERL_PLATFORM.
    """
    of_workers = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"
    return os.environ.get("VERL_PLATFORM") or OmegaConf.select(config, of_workers)


def check_machine(config: Any) -> None:
    """Reject a configuration whose devices, rollout engine or files this machine does not have.

    Raises:
      ValueError: something is missing; the message names the configuration key and the remedy.
    """
    platform = platform_of(config)
    devices = config.trainer.n_gpus_per_node
    if not platform and config.trainer.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"trainer.n_gpus_per_node: {devices}, but torch finds no GPU on this machine. Train "
            "with hardware=cpu, submit the recipe to a Ray cluster (scripts/submit.sh), or run "
            "`gdpo-verl doctor`."
        )
    if platform == "cpu":
        _check_logical_devices(config)
    rollouts = config.actor_rollout_ref.rollout.name
    if rollouts == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "actor_rollout_ref.rollout.name: vllm is not installed. To install it, "
            f"{install_vllm()}."
        )
    check_data_files(config.data)


def _check_logical_devices(config: Any) -> None:
    """Reject a run without a GPU for which Ray would have too few logical devices."""
    devices = config.trainer.n_gpus_per_node
    logical = OmegaConf.select(config, "ray_kwargs.ray_init.num_gpus")
    if logical is None:
        # With the variable set, verl leaves trainer.device as the hardware recipe has it.
        by_variable = os.environ.get("VERL_PLATFORM") == "cpu"
        too_few = by_variable and config.trainer.device == "cuda"
    else:
        too_few = logical < devices
    if too_few:
        raise ValueError(
            "ray_kwargs.ray_init.num_gpus: with VERL_PLATFORM=cpu expected as many logical devices "
            f"as trainer.n_gpus_per_node={devices}, for which verl would wait, found {logical}. "
            "Train with hardware=cpu, or set it; to train on GPUs, unset VERL_PLATFORM."
        )


def check_data_files(data: Any, *keys: str) -> None:
    """Reject files of verl's ``data`` that do not exist, have no rows, or have no messages.

    Args:
      data: the node `data` of verl's configuration.
      keys: the keys to check; by default train_files and val_files.

    Raises:
      ValueError: a file is wrong; the message names the key, the file and the command that writes
        the file.
    """
    if (data.get("custom_cls") or {}).get("path"):
        return  # a data set of the user's own class may have other files
    for key in keys or ("train_files", "val_files"):
        for path in listed(data.get(key)):
            local = os.path.expanduser(path)
            if "://" in path:
                continue
            if not os.path.exists(local):
                fault = f"{path!r} does not exist here"
            elif _has_rows(local):
                _check_prompt(local, data.get("prompt_key", "prompt"), f"data.{key}", path)
                continue
            else:
                fault = f"expected at least one row, found none in {path}"
            remedy = "`gdpo-verl prepare --help` names the data sets that one command writes."
            command = prepare_command_of(path)
            if command:
                remedy = f"Prepare it with `{command}`."
            raise ValueError(f"data.{key}: {fault} (working directory {os.getcwd()}). {remedy}")


def _has_rows(path: str) -> bool:
    """Return whether a file has rows; a file that is no Parquet only has to be nonempty."""
    import pyarrow.parquet as pq

    with contextlib.suppress(OSError, ValueError):  # verl reports a file of another kind
        if path.endswith(".parquet"):
            return bool(pq.read_metadata(path).num_rows)
    return not os.path.isfile(path) or os.path.getsize(path) > 0


def _check_prompt(file: str, column: str, key: str, path: str) -> None:
    """Reject a file whose first prompt is no list of messages, as verl's data set needs."""
    import pyarrow.json
    import pyarrow.parquet as pq

    try:
        if file.endswith(".parquet"):
            batch = next(pq.ParquetFile(file).iter_batches(1, columns=[column]))
        else:
            batch = pyarrow.json.open_json(file).read_next_batch()
        prompt = batch.column(column)[0].as_py()
    except (OSError, ValueError, LookupError):  # verl reports a file of another kind
        return
    first = prompt[0] if prompt and isinstance(prompt, list) else None
    if isinstance(first, dict) and {"role", "content"} <= first.keys():
        return
    raise ValueError(
        f"{key}: expected a list of messages in the column {column!r} (data.prompt_key) of {path}, "
        "such as [{'role': 'user', 'content': 'What is 2 + 3?'}], found "
        f"{reprlib.repr(prompt)}. Write each prompt as such a list."
    )
