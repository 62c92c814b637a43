"""Compare verl's FSDP engine with and without shared prompts: numbers, time and memory.

    python scripts/dev/shared_prompts.py MODEL                     # on the GPU, in bfloat16
    VERL_PLATFORM=cpu python scripts/dev/shared_prompts.py MODEL --device cpu --dtype float32

It needs verl, and no vLLM. Tokens are drawn at random. It prints one JSON object: the largest
differences of log-probabilities, entropies and gradients between both ways, and for each way the
tokens that the model computed, the seconds of a forward and backward pass, and the peak of the
GPU's memory.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
from verl.workers.utils.padding import no_padding_2_padding

from gdpo_verl.plugin import shared_prompts

DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


def make_engine(model: Path, device: str, dtype: str) -> Any:
    """Start verl's FSDP engine in this process."""
    one_process = {"MASTER_ADDR": "127.0.0.1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    os.environ.update(one_process)
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True)
    backend = "gloo" if device == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    name = DTYPES[dtype]
    engine = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        model_config=HFModelConfig(
            path=str(model),
            use_remove_padding=True,
            enable_gradient_checkpointing=False,
            override_config={"attn_implementation": "sdpa"},
        ),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            dtype="float32",
            use_torch_compile=False,
            mixed_precision={"param_dtype": name, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        ),
        optimizer_config=FSDPOptimizerConfig(lr=0.0),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def make_batch(options: argparse.Namespace) -> Any:
    """Draw prompts and responses of different lengths, as verl's engine gets them."""
    generator = torch.Generator().manual_seed(0)

    def tokens(longest: int) -> torch.Tensor:
        length = int(torch.randint(1, longest + 1, (1,), generator=generator))
        return torch.randint(3, options.vocabulary, (length,), generator=generator)

    def nested(parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    # The prompts come in turns.
    prompts = [tokens(options.prompt) for _ in range(options.groups)] * options.size
    responses = [tokens(options.response) for _ in prompts]
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    mask = nested([torch.ones(len(response)) for response in responses])
    data = TensorDict(
        {
            "input_ids": nested(rows),
            "position_ids": nested([torch.arange(len(row)) for row in rows]),
            "prompts": nested(prompts),
            "responses": nested(responses),
            "loss_mask": mask,
            "response_mask": mask,
        },
        batch_size=[len(rows)],
    ).to(options.device)
    tensordict_utils.assign_non_tensor(
        data,
        use_remove_padding=True,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=options.tokens_at_once,
        use_fused_kernels=False,
        temperature=0.7,
        calculate_entropy=True,
    )
    return data


def loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
    """Add up log-probabilities and entropies with weights that no two tokens share."""
    log_probs = no_padding_2_padding(model_output["log_probs"], data)
    entropy = no_padding_2_padding(model_output["entropy"], data)
    mask = data["response_mask"].to_padded_tensor(0.0)
    weights = data["responses"].to_padded_tensor(0).float().sin()
    return ((log_probs + 0.3 * entropy) * weights * mask).sum(), {}


def measure(engine: Any, batch: Any, device: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the numbers of a forward and backward pass, and what they cost."""
    mask = batch["response_mask"].to_padded_tensor(0.0)
    with torch.no_grad(), engine.eval_mode():
        output = engine.infer_batch(batch.clone(), loss_function=None)["model_output"]
    numbers = {}
    for name in ("log_probs", "entropy"):
        numbers[name] = no_padding_2_padding(output[name], batch).to(mask.device) * mask
    computed: list[int] = []
    hook = engine.module.register_forward_pre_hook(
        lambda module, args, kwargs: computed.append(kwargs["input_ids"].numel()),
        with_kwargs=True,
    )
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    with engine.train_mode():
        for _ in range(3):
            engine.optimizer_zero_grad()
            start = time.perf_counter()
            engine.forward_backward_batch(batch.clone(), loss)
            if device != "cpu":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        gradients = [p.grad.full_tensor().flatten().float() for p in engine.module.parameters()]
    hook.remove()
    numbers["gradients"] = torch.cat(gradients)
    cost: dict[str, Any] = {"tokens": sum(computed) // len(seconds), "seconds": min(seconds)}
    if device != "cpu":
        cost["peak_memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return numbers, cost


def share_prompts(engine: Any) -> None:
    """Switch shared prompts on for this engine, as verl's worker does."""
    settings = [
        "model.use_remove_padding=true",
        "model.use_fused_kernels=false",
        "model.override_config.attn_implementation=sdpa",
        "actor.strategy=fsdp2",
        "actor.use_prefix_grouper=true",
    ]
    actor = SimpleNamespace(engine=engine)
    config = OmegaConf.from_dotlist(settings)
    shared_prompts.share(SimpleNamespace(config=config, actor=actor, ref=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="the directory of a model")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--groups", type=int, default=8, help="number of prompts")
    parser.add_argument("--size", type=int, default=8, help="responses to a prompt")
    parser.add_argument("--prompt", type=int, default=512, help="longest prompt, in tokens")
    parser.add_argument("--response", type=int, default=128, help="longest response, in tokens")
    parser.add_argument("--tokens-at-once", type=int, default=8192, help="of a micro-batch")
    parser.add_argument("--vocabulary", type=int, default=300, help="token ids are below this")
    options = parser.parse_args()
    engine = make_engine(options.model, options.device, options.dtype)
    batch = make_batch(options)
    plain, plain_cost = measure(engine, batch, options.device)
    share_prompts(engine)
    shared, shared_cost = measure(engine, batch, options.device)
    differences = {name: float((shared[name] - plain[name]).abs().max()) for name in plain}
    largest = {name: float(plain[name].abs().max()) for name in plain}
    result = {"plain": plain_cost, "shared": shared_cost}
    print(json.dumps(result | {"largest_difference": differences, "largest": largest}))


if __name__ == "__main__":
    main()
