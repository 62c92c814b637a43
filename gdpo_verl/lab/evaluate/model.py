"""Find the model that a user means: a Hugging Face folder, a run, one checkpoint, a hub id."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo_verl.lab.files import sha256
from gdpo_verl.lab.run.checkpoints import TRACKER, shards_problem
from gdpo_verl.lab.tasks.source import hub_errors

SETTINGS = "fsdp_config.json"
_STEP = re.compile(r"global_step_(\d+)")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
# A repository may hold the same weights several times.
_NOT_NEEDED = ["*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*", "onnx/*"]


@dataclass(frozen=True)
class Model:
    """A model that was found, its weights perhaps still in verl's shards."""

    given: str  # what the user wrote
    folder: Path  # holds config.json and the tokenizer
    actor: Path | None = None  # has verl's shards; None where `folder` holds the weights
    hub: str | None = None  # its id on the hub, if it came from there
    revision: str | None = None  # its commit there
    step: int | None = None  # of a checkpoint
    run: Path | None = None  # the directory of the training

    @contextlib.contextmanager
    def weights(self) -> Iterator[Path]:
        """A folder that vLLM can load; shards are merged into a temporary one."""
        if self.actor is None:
            yield self.folder
            return
        with tempfile.TemporaryDirectory(prefix="gdpo-verl-evaluate-") as scratch:
            merged = Path(scratch) / "merged"
            _merge(self.actor, merged)
            yield merged


def find_model(given: str) -> Model:
    """Find the model that `given` names; what exists as a path is never looked up on the hub.

    Raises:
      FileNotFoundError, ValueError, ConnectionError: there is none, or it is not whole.
    """
    path = Path(given).expanduser()
    if not path.exists():
        if given.startswith((".", "/", "~")) or given.count("/") > 1:
            raise FileNotFoundError(f"model: {given!r} does not exist (seen from {Path.cwd()})")
        return _from_hub(given)
    if not path.is_dir():
        raise ValueError(f"model: expected a folder or a hub id, found the file {given!r}")
    path = path.resolve()
    # From the inside out: a model, a step's folder, its actor, then a run or its checkpoints.
    if (path / "config.json").is_file():
        return _hugging_face(given, path)
    if (path / "actor").is_dir():
        return _checkpoint(given, path / "actor")
    if (path / SETTINGS).is_file() or any(path.glob("model_world_size_*.pt")):
        return _checkpoint(given, path)
    for checkpoints in (path / "checkpoints", path):
        if (checkpoints / TRACKER).is_file() or any(checkpoints.glob("global_step_*")):
            return _last(given, checkpoints)
    names = sorted(entry.name for entry in path.iterdir())[:8]
    raise ValueError(
        f"model: {given!r} holds neither a Hugging Face model (config.json with weights), nor a "
        "run of `gdpo-verl train` with a checkpoint, nor one of its checkpoints (global_step_N); "
        f"found {names}"
    )


def weights_digest(folder: Path) -> str:
    """The SHA-256 of the names and bytes of the weights in a folder."""
    digest = hashlib.sha256()
    for file in _weight_files(folder):
        digest.update(f"{file.name} {sha256(file)}\n".encode())
    return digest.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    # Of two formats vLLM loads the first alone.
    return next((found for glob in _WEIGHTS if (found := sorted(folder.glob(glob)))), [])


def _hugging_face(given: str, folder: Path, **origin: Any) -> Model:
    if not _weight_files(folder):
        raise ValueError(f"model: {given!r} has a config.json and no weights ({_WEIGHTS})")
    return Model(given, folder, **origin)


def _last(given: str, checkpoints: Path) -> Model:
    # The one that verl would resume from: it names a step after the step's last file is written.
    latest = checkpoints / TRACKER
    if not latest.is_file():
        raise ValueError(
            f"model: {given!r}: no checkpoint was finished there ({TRACKER} is missing). Give one "
            "of its folders global_step_N if you mean it"
        )
    return _checkpoint(given, checkpoints / f"global_step_{latest.read_text().strip()}" / "actor")


def _checkpoint(given: str, actor: Path) -> Model:
    """The model as saved for Hugging Face, else verl's shards, all of them whole."""
    step = _STEP.fullmatch(actor.parent.name)
    run = actor.parent.parent.parent
    origin: dict[str, Any] = {
        "step": int(step[1]) if step else None,
        "run": run if (run / "config.yaml").is_file() else None,
    }
    folder = actor / "huggingface"
    if _weight_files(folder):  # actor.checkpoint.save_contents has hf_model
        return _hugging_face(given, folder, **origin)
    if (actor / "dist_ckpt").exists():
        raise ValueError(
            f"model: {actor} is a checkpoint of Megatron. Merge it with `python -m "
            "verl.model_merger merge --backend megatron --local_dir … --target_dir DIR` and give "
            "DIR"
        )
    problem = shards_problem(actor)
    for name in (SETTINGS, "huggingface/config.json"):
        if not problem and not (actor / name).is_file():
            problem = f"{name} is missing"
    if problem:
        raise ValueError(
            f"model: the checkpoint {actor.parent if actor.name == 'actor' else actor} was cut "
            f"short: {problem}. Give an earlier one, or train on: the same `gdpo-verl train` "
            "command resumes"
        )
    return Model(given, folder, actor, **origin)


def _merge(actor: Path, target: Path) -> None:
    """Merge with verl's own merger, which rounds to bfloat16; then a LoRA adapter, if any."""
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
    command += ["--local_dir", str(actor), "--target_dir", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(
            f"model: verl cannot merge the shards of {actor}: {said[-1] if said else 'no reason'}"
            f"\nIts own command: {' '.join(command)}"
        )
    if (target / "lora_adapter").is_dir():
        _apply_lora(target)


def _apply_lora(folder: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = folder / "lora_adapter"
    alpha = json.loads((adapter / "adapter_config.json").read_text())["lora_alpha"]
    if not alpha:  # verl's merger writes 0 where it finds none, and 0 adds nothing
        raise ValueError(
            "model: the checkpoint's lora_train_meta.json is missing: lora_alpha is unknown, and "
            "with it the weights"
        )
    base = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    model: Any = PeftModel.from_pretrained(base, str(adapter))
    model.merge_and_unload().save_pretrained(folder)


def _from_hub(given: str) -> Model:
    from huggingface_hub import snapshot_download

    hub_id, _, revision = given.partition("@")
    with hub_errors("model", given, "model"):
        found = snapshot_download(hub_id, revision=revision or None, ignore_patterns=_NOT_NEEDED)
    commit = Path(found).name
    return _hugging_face(given, Path(found), hub=hub_id, revision=commit)
