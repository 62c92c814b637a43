"""The model of a run: whether it loads, and which of its parts are trained."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.names import did_you_mean

# verl's, where none is set (verl/trainer/config/model/hf_model.yaml).
_DEFAULT = "~/models/deepseek-llm-7b-chat"


def joins_cluster(config: Any) -> bool:
    """Return whether the run joins a Ray that is named, whose nodes may have other files."""
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address")
    return bool(address or os.environ.get("RAY_ADDRESS"))


def check_model(config: Any, *, elsewhere: bool = False) -> None:
    """Reject a model that Transformers would not find: neither a directory nor a hub's id.

    The hub is asked; while it is out of reach, an id is believed.

    Args:
      config: verl's configuration.
      elsewhere: other machines load the model, with their own files and hub.

    Raises:
      ValueError: names the key in full, what was found and what to set.
    """
    model = config.actor_rollout_ref.model
    judge = config.reward.reward_model
    models = {"actor_rollout_ref.model.path": model.get("hf_config_path") or model.path}
    if judge.enable:
        models["reward.reward_model.model_path"] = judge.model_path
    for key, path in models.items():
        fault = _fault(path or "", elsewhere)
        if fault is not None:
            raise ValueError(
                f"{key}: expected a model's directory or a hub id, found {fault} Set it to a "
                "directory with a config.json, such as $PWD/models/toolbox, which `gdpo-verl "
                "make-policy` writes, or to an id such as Qwen/Qwen2.5-0.5B-Instruct."
            )


def has_configuration(path: str) -> bool:
    """Return whether config.json of a model is available: here, in the hub's cache, or on the hub.

    Ask the hub once. Transformers asks a hub that is out of reach six times, for half a minute.
    """
    here = os.path.isfile(os.path.join(path, "config.json"))
    return here or _hubs_answer(path, "", ask=True) is None


def is_lora(config: Any) -> bool:
    """Recognise LoRA, which trains adapters in place of the weights."""
    model = config.actor_rollout_ref.model
    return bool(model.lora_rank or model.get("lora_adapter_path"))


def peft_without_fsdp1() -> str | None:
    """Return the version of an installed peft that finds no adapter in a model that FSDP1 wraps.

    From 0.21 on `get_peft_model_state_dict` returns no weights of it, and verl would give vLLM an
    empty adapter (verl's #8184, peft's #3490).
    """
    try:
        installed = version("peft")
    except PackageNotFoundError:
        return None
    major, minor = installed.split(".")[:2]
    return installed if (int(major), int(minor)) >= (0, 21) else None


def check_lora(config: Any) -> None:
    """Reject LoRA under FSDP1 where vLLM would sample without the adapter.

    Raises:
      ValueError: names the key in full, what was found and what to set.
    """
    merges = OmegaConf.select(config, "actor_rollout_ref.model.lora.merge")
    if config.actor_rollout_ref.actor.strategy != "fsdp" or not is_lora(config) or merges:
        return
    peft = peft_without_fsdp1()
    if peft:
        raise ValueError(
            "actor_rollout_ref.actor.strategy: expected fsdp2 for LoRA, found fsdp: peft "
            f"{peft} finds no adapter in a model that FSDP1 wraps, and vLLM would sample without "
            "it. Set actor_rollout_ref.actor.strategy=fsdp2, or install peft<0.21."
        )


def _fault(path: str, elsewhere: bool) -> str | None:
    """Return the end of a sentence on a path that names no model; None where it names one."""
    whole = os.path.expanduser(path)
    if "://" in path or (elsewhere and path.startswith("/")):
        return None
    if os.path.isfile(os.path.join(whole, "config.json")):
        if path.endswith("/"):
            return f"{path!r}, at whose last slash verl stops."
        if whole != path and not elsewhere:
            return f"{path!r}, in which verl does not replace the '~'."
        return None
    parent, name = os.path.split(whole)
    beside = os.listdir(parent) if os.path.isdir(parent) else []
    # A path into a folder that is here means a directory, unless the hub knows the name.
    unknown = "" if beside else None
    answer = "" if os.path.isdir(path) else _hubs_answer(path, unknown, ask=not elsewhere)
    if answer is None:
        return None
    default = ", verl's own default" if path == _DEFAULT else ""
    place = f"{path!r}{default} (working directory {os.getcwd()})"
    return f"no config.json in {place}{answer}.{did_you_mean(name, beside)}"


def _hubs_answer(path: str, unknown: str | None, *, ask: bool) -> str | None:
    """Return None where the hub or its cache has the model, else the end of a sentence."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    try:
        address = hf_hub_url(path, "config.json")
        # A cached model loads without the hub.
        cached = isinstance(try_to_load_from_cache(path, "config.json"), str)
        if ask and not cached:
            get_hf_file_metadata(address)
        return None if ask or cached else unknown
    except errors.HFValidationError:
        return ""
    except errors.OfflineModeIsEnabled:
        return ", nor in the hub's cache, and HF_HUB_OFFLINE does not allow asking the hub"
    except (errors.RepositoryNotFoundError, errors.EntryNotFoundError) as error:
        return f", and the hub has none for this machine ({type(error).__name__})"
    except Exception:  # out of reach
        return unknown
