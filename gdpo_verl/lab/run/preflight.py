"""Refuse a training that this machine cannot run, before anything is started on it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import reprlib
import shutil
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from gdpo_verl.lab.run.composition import listed
from gdpo_verl.lab.tasks.catalog import prepare_command_of
from gdpo_verl.lab.text import install_vllm

# vLLM's variable; 0 leaves top-k and top-p to PyTorch.
FLASHINFER_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"


def platform_of(config: Any) -> str | None:
    """verl's platform, by this process's variable, else by that of the workers."""
    # verl writes trainer.device from what it finds itself; a platform is chosen by variable.
    of_workers = "ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM"
    return os.environ.get("VERL_PLATFORM") or OmegaConf.select(config, of_workers)


def check_machine(config: Any) -> None:
    """Refuse devices, a rollout engine or files that this machine does not have.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    platform = platform_of(config)
    devices = config.trainer.n_gpus_per_node
    if not platform and config.trainer.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"trainer.n_gpus_per_node: {devices}, but torch finds no GPU on this machine. Train "
            "with hardware=cpu, submit the recipe to a Ray cluster (scripts/submit.sh), or run "
            "`gdpo-verl doctor`."
        )
    # With the variable set, verl leaves trainer.device as the hardware recipe has it.
    for_gpus = os.environ.get("VERL_PLATFORM") == "cpu" and config.trainer.device == "cuda"
    given = OmegaConf.select(config, "ray_kwargs.ray_init.num_gpus")
    if platform == "cpu" and (for_gpus if given is None else given < devices):
        raise ValueError(
            "ray_kwargs.ray_init.num_gpus: with VERL_PLATFORM=cpu expected as many logical devices "
            f"as trainer.n_gpus_per_node={devices}, for which verl would wait, found {given}. "
            "Train with hardware=cpu, or set it; to train on GPUs, unset VERL_PLATFORM."
        )
    rollouts = config.actor_rollout_ref.rollout.name
    if rollouts == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "actor_rollout_ref.rollout.name: vllm is not installed. To install it, "
            f"{install_vllm()}."
        )
    check_data_files(config.data)


def sampler_fault() -> str | None:
    """Say why FlashInfer cannot compile vLLM's sampler on this machine; None where it can.

    vLLM 0.24 takes this sampler on every GPU and tries it while an engine starts, which ends where
    FlashInfer 0.6 (flashinfer/jit/cpp_ext.py) neither has nor can compile its kernels.
    """
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer is not installed"
    if importlib.util.find_spec("flashinfer_jit_cache") is not None:
        return None  # compiled already
    compiler = shutil.which("nvcc")
    on_path = Path(compiler).parent.parent if compiler else Path("/usr/local/cuda")
    home = Path(os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or on_path)
    for file in (home / "bin" / "nvcc", home / "include" / "curand.h"):
        if not file.is_file():
            return f"CUDA's {file} is missing"
    for program in (os.environ.get("CXX", "c++"), "ninja"):
        if shutil.which(program) is None:
            return f"{program} is not on the PATH"
    return None


def check_data_files(data: Any, *keys: str) -> None:
    """Refuse files of verl's ``data`` that do not exist here, hold no row, or no messages.

    By default those of the training and of the validation; else those of `keys`.

    Raises:
      ValueError: names the key, the file and the command that writes it.
    """
    if (data.get("custom_cls") or {}).get("path"):
        return  # what its files are is that class's business
    for key in keys or ("train_files", "val_files"):
        for path in listed(data.get(key)):
            local = os.path.expanduser(path)
            if "://" in path:
                continue
            if os.path.exists(local) and _has_rows(local):
                _check_prompt(local, data.get("prompt_key", "prompt"), f"data.{key}", path)
                continue
            fault = f"expected at least one row, found none in {path}"
            if not os.path.exists(local):
                fault = f"{path!r} does not exist here"
            remedy = "`gdpo-verl prepare --help` names the data sets that one command writes."
            command = prepare_command_of(path)
            if command:
                remedy = f"Prepare it with `{command}`."
            raise ValueError(f"data.{key}: {fault} (working directory {os.getcwd()}). {remedy}")


def check_steps(config: Any) -> None:
    """Refuse more steps than verl's epochs have, where the rows can be counted here.

    Prompts that verl leaves out as too long make them fewer still.

    Raises:
      ValueError: names the configuration key in full and the remedy.
    """
    trainer = config.trainer
    data = config.data
    counts = [_row_count(os.path.expanduser(path)) for path in listed(data.train_files)]
    if None in counts or (data.get("custom_cls") or {}).get("path"):
        return
    rows = sum(count or 0 for count in counts)
    steps = rows // data.train_batch_size * trainer.total_epochs
    if (trainer.total_training_steps or 0) > steps:
        raise ValueError(
            f"trainer.total_training_steps: expected at most {steps}, which are trainer."
            f"total_epochs={trainer.total_epochs} times through the {rows} rows of "
            f"data.train_files with data.train_batch_size={data.train_batch_size}, found "
            f"{trainer.total_training_steps}. Raise trainer.total_epochs, too."
        )


def _has_rows(path: str) -> bool:
    count = _row_count(path)
    if count is not None:
        return count > 0
    return not os.path.isfile(path) or os.path.getsize(path) > 0


def _row_count(path: str) -> int | None:
    """The number of rows of a Parquet file; None where that cannot be read here."""
    import pyarrow.parquet as pq

    with contextlib.suppress(OSError, ValueError):  # of another kind; verl will say so
        if path.endswith(".parquet"):
            return int(pq.read_metadata(path).num_rows)
    return None


def _check_prompt(file: str, column: str, key: str, path: str) -> None:
    """Refuse a file whose first prompt is no list of messages, which verl's data set reads."""
    import pyarrow.dataset

    kind = "parquet" if file.endswith(".parquet") else "json"
    try:
        first = pyarrow.dataset.dataset(file, format=kind).head(1, columns=[column])
        prompt = first.to_pylist()[0][column]
    except (OSError, ValueError, LookupError):  # of another kind; verl will say so
        return
    if isinstance(prompt, list) and prompt and all(map(_is_message, prompt)):
        return
    raise ValueError(
        f"{key}: expected a list of messages in the column {column!r} (data.prompt_key) of {path}, "
        "such as [{'role': 'user', 'content': 'What is 2 + 3?'}], found "
        f"{reprlib.repr(prompt)}. Write each prompt as such a list."
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and {"role", "content"} <= value.keys()
