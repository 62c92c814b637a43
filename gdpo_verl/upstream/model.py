"""Checks of the model of a run: it can be loaded, and its trained weights reach vLLM."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from omegaconf import OmegaConf

from gdpo_verl.names import did_you_mean

# verl's default for the path of the model (verl/trainer/config/model/hf_model.yaml).
_DEFAULT = "~/models/deepseek-llm-7b-chat"


def joins_cluster(config: Any) -> bool:
    """Return whether the run joins a running Ray cluster, whose nodes may have other files."""
    address = OmegaConf.select(config, "ray_kwargs.ray_init.address")
    return bool(address or os.environ.get("RAY_ADDRESS"))


def check_model(config: Any, *, elsewhere: bool = False) -> None:
    """Reject a model that Transformers would not find.

    A model is a directory or an id of the Hugging Face hub. An id is looked up on the hub. If the
    hub cannot be reached, the id is accepted.

    Args:
      config: verl's configuration.
      elsewhere: whether other machines load the model, with their own files and hub.

    Raises:
      ValueError: there is no such model. The error names the key in full, the path that was found,
        and what to set.
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
    """Return whether config.json of a model is a local file, in the hub's cache, or on the hub.

    The hub is asked once. Transformers would ask an unreachable hub six times, which takes half a
    minute.
    """
    is_local = os.path.isfile(os.path.join(path, "config.json"))
    return is_local or _hubs_answer(path, "", ask=True) is None


def is_lora(config: Any) -> bool:
    """Return whether the run uses LoRA, which trains adapters instead of the weights."""
    model = config.actor_rollout_ref.model
    return bool(model.lora_rank or model.get("lora_adapter_path"))


def peft_without_fsdp1() -> str | None:
    """Return the version of the installed peft if it does not work with FSDP1, else None.

    From version 0.21 on, `get_peft_model_state_dict` returns no weights for a model that FSDP1
    wraps, and verl would pass an empty adapter to vLLM (issue 8184 of verl, issue 3490 of peft).
    """
    try:
        installed = version("peft")
    except PackageNotFoundError:
        return None
    major, minor = installed.split(".")[:2]
    return installed if (int(major), int(minor)) >= (0, 21) else None


def check_lora(config: Any) -> None:
    """Reject LoRA with FSDP1 if vLLM would sample without the adapter.

    Raises:
      ValueError: the installed peft does not work with FSDP1. The error names the key in full, and
        what to set.
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
    """Return the end of an error message about the path; None if the path names a model."""
    expanded = os.path.expanduser(path)
    if "://" in path or (elsewhere and path.startswith("/")):
        return None
    if os.path.isfile(os.path.join(expanded, "config.json")):
        if path.endswith("/"):
            return f"{path!r}, at whose last slash verl stops."
        if expanded != path and not elsewhere:
            return f"{path!r}, in which verl does not replace the '~'."
        return None
    parent, name = os.path.split(expanded)
    siblings = os.listdir(parent) if os.path.isdir(parent) else []
    # If the path lies in an existing folder, it probably means a directory. It is then a fault
    # unless the hub knows the name. Otherwise it may be an id, which is accepted if the hub cannot
    # be reached.
    unknown = "" if siblings else None
    answer = "" if os.path.isdir(path) else _hubs_answer(path, unknown, ask=not elsewhere)
    if answer is None:
        return None
    default = ", verl's own default" if path == _DEFAULT else ""
    place = f"{path!r}{default} (working directory {os.getcwd()})"
    return f"no config.json in {place}{answer}.{did_you_mean(name, siblings)}"


def _hubs_answer(path: str, unknown: str | None, *, ask: bool) -> str | None:
    """Return None if the hub or its cache has the model, else the end of an error message.

    Args:
      path: the id of the model.
      unknown: the result if it is not known whether the hub has the model.
      ask: whether to ask the hub, if the cache does not have the model.
    """
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
    except Exception:  # the hub cannot be reached
        return unknown
