"""Find the model that a user names: a run, a checkpoint, a Hugging Face folder or a hub id."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from pathlib import Path

from gdpo_verl.lab.run import checkpoints
from gdpo_verl.lab.rundir.layout import CHECKPOINTS, CONFIG
from gdpo_verl.lab.tasks.source import hub_errors
from gdpo_verl.lab.text import first_line

_STEP = re.compile(r"global_step_\d+")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
# Files that are not downloaded: a repository may contain the same weights in several formats.
_NOT_NEEDED = ["*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*", "onnx/*"]


@dataclass(frozen=True)
class Model:
    """A model whose weights are in a folder, or in a checkpoint of verl."""

    name: str  # the name in the output
    folder: Path | None = None  # a folder that Transformers can load
    checkpoint: Path | None = None  # a folder global_step_N, loaded over the model of its run
    run: Path | None = None  # the run directory

    @property
    def step(self) -> int | None:
        """The training step of the checkpoint; None without a checkpoint."""
        return int(self.checkpoint.name.rpartition("_")[2]) if self.checkpoint else None

    @property
    def workers(self) -> int | None:
        """The number of workers that wrote an FSDP checkpoint; as many have to load it."""
        return checkpoints.world_size(self.checkpoint) if self.checkpoint else None


def find_model(given: str) -> Model:
    """Find the model that `given` names; an existing path is never looked up on the hub.

    Raises:
      FileNotFoundError, ValueError, ConnectionError: there is no such model, or it is incomplete.
    """
    path = Path(given).expanduser()
    if not path.exists():
        if given.startswith((".", "/", "~")) or given.count("/") > 1:
            raise FileNotFoundError(f"model: {given!r} does not exist (seen from {Path.cwd()})")
        return _from_hub(given)
    if not path.is_dir():
        raise ValueError(f"model: expected a folder or a hub id, found the file {given!r}")
    path = path.resolve()
    # The path may be a model, a checkpoint or its folder `actor`, a run or its folder of
    # checkpoints. They are tried in this order.
    if (path / "config.json").is_file():
        if not _has_weights(path):
            raise ValueError(f"model: {given!r} has a config.json and no weights ({_WEIGHTS})")
        return Model(given, path)
    for folder in (path, path.parent):
        if _STEP.fullmatch(folder.name):
            return _checkpoint(given, folder)
    for folder in (path / CHECKPOINTS, path):
        if any(folder.glob("global_step_*")):
            return _last(given, folder)
    names = sorted(entry.name for entry in path.iterdir())[:8]
    raise ValueError(
        f"model: {given!r} holds neither a Hugging Face model (config.json with weights), nor a "
        "run of `gdpo-verl train` with a checkpoint, nor one of its checkpoints (global_step_N); "
        f"found {names}"
    )


def _has_weights(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in _WEIGHTS)


def _last(given: str, folder: Path) -> Model:
    """Return the checkpoint that verl would resume from, the last one that is complete."""
    step, wrong = checkpoints.last_complete(folder)
    if not step:
        problems = [f"global_step_{number}: {problem}" for number, problem in wrong.items()]
        raise ValueError(
            f"model: {given!r}: expected a complete checkpoint, found none "
            f"({'; '.join(problems)}). Give one of the folders global_step_N, or resume "
            "the run with the same `gdpo-verl train` command"
        )
    return _checkpoint(given, folder / f"global_step_{step}")


def _checkpoint(given: str, folder: Path) -> Model:
    run = folder.parent.parent
    run_of_ours = run if (run / CONFIG).is_file() else None
    name = f"{given}, step {folder.name.rpartition('_')[2]}"
    saved = folder / "actor" / "huggingface"
    if _has_weights(saved):  # the run had hf_model in actor.checkpoint.save_contents
        return Model(name, folder=saved, run=run_of_ours)
    problem = checkpoints.problem_of(folder)
    if problem:
        raise ValueError(
            f"model: the checkpoint {folder} is incomplete: {problem}. Give an earlier one, or "
            "resume the run with the same `gdpo-verl train` command"
        )
    return Model(name, checkpoint=folder, run=run_of_ours)


def check_tensors(checkpoint: Path) -> None:
    """Reject a checkpoint that contains anything but tensors, numbers and texts.

    verl also loads code from these files (verl/utils/checkpoint/fsdp_checkpoint_manager.py,
    weights_only=False). This check executes no code, and reads no tensor into memory.

    Raises:
      ValueError: a file contains anything else; the message names the file.
    """
    import torch
    import torch.distributed.tensor  # registers the tensors of FSDP

    for file in [*sorted(checkpoint.glob("actor/model_world_size_*.pt")), checkpoint / "data.pt"]:
        try:
            torch.load(file, map_location="meta", weights_only=True, mmap=True)
        except (RuntimeError, pickle.UnpicklingError) as error:
            raise ValueError(
                f"{file}: expected only tensors, numbers and texts, found an incomplete file, or "
                f"code that torch would execute ({first_line(error)}). If you trust the "
                "checkpoint, add --trust"
            ) from error


def _from_hub(given: str) -> Model:
    from huggingface_hub import snapshot_download

    hub_id, _, revision = given.partition("@")
    with hub_errors("model", given, "model"):
        path = snapshot_download(hub_id, revision=revision or None, ignore_patterns=_NOT_NEEDED)
    folder = Path(path)
    if not _has_weights(folder):
        raise ValueError(f"model: {given!r} has no weights ({_WEIGHTS})")
    return Model(f"{hub_id}@{folder.name}", folder)
