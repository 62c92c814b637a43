"""Each prompt once for its responses, against verl's engine that computes it for each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from gdpo_verl.lab.policy.model import make_model, train_tokenizer
from gdpo_verl.lab.policy.tasks import TASKS
from gdpo_verl.plugin import shared_prompts, upstream
from gdpo_verl.plugin.shared_prompts import check, divide, pack


def test_a_prompt_is_laid_out_once_and_seen_by_its_responses_alone():
    # Prompt 7 8 with responses 1 2, 3 and none, prompt 9 with response 4.
    packed = pack([[7, 8, 1, 2], [9, 4], [7, 8, 3], [7, 8]], [2, 1, 2, 2])

    # The rows' tokens are 0 to 10, and the prompts 6 7 and 9 10 are that of the first row, 0 1.
    assert packed.tokens.tolist() == [0, 1, 2, 3, 4, 5, 8]
    # 1 follows 8, 2 follows 1, 4 follows 9 and 3 follows 8.
    assert packed.predictors.tolist() == [1, 2, 4, 1]
    # verl keeps a token's log-probability one place before it.
    assert packed.places.tolist() == [1, 2, 4, 7]
    assert packed.mask.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 0, 1, 1, 0],
        [1, 1, 0, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize(
    ("limit", "parts"),
    [
        (9, [[1, 0, 2]]),  # 5 of row 1, then 3 and 1: the prompt 7 8 counts once
        (8, [[1, 0], [2]]),
        (5, [[1], [0, 2]]),
        (2, [[1], [0], [2]]),  # too long, and there is nothing to divide
    ],
)
def test_micro_batches_are_filled_by_computed_tokens(limit, parts):
    rows = [[7, 8, 1], [5, 4, 3, 2, 1], [7, 8, 3]]

    assert divide(rows, [2, 1, 2], limit) == parts


ENGINE = """
import os, sys, torch
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
os.environ.update(LOCAL_RANK="0", VERL_PLATFORM="cpu")
import verl
from omegaconf import OmegaConf
from tensordict import TensorDict
from types import SimpleNamespace
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
from verl.workers.utils.padding import no_padding_2_padding
from gdpo_verl.plugin import contract, shared_prompts

store = torch.distributed.TCPStore("127.0.0.1", 0, 1, True)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
engine = EngineRegistry.new(
    model_type="language_model", backend="fsdp2",
    model_config=HFModelConfig(
        path=sys.argv[1], use_remove_padding=True, enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"}),
    engine_config=FSDPEngineConfig(
        strategy="fsdp2", dtype="float32", use_torch_compile=False,
        mixed_precision=dict(param_dtype="fp32", reduce_dtype="fp32", buffer_dtype="fp32")),
    optimizer_config=FSDPOptimizerConfig(lr=0.0), checkpoint_config=CheckpointConfig())
engine.initialize()

draw = torch.Generator().manual_seed(0)
tokens = lambda count: torch.randint(3, 300, (count,), generator=draw)
prompts = [tokens(9), tokens(4), tokens(13)]
rows = [(prompts[i % 3], tokens(1 + i % 5)) for i in range(12)]
nested = lambda each: torch.nested.as_nested_tensor(list(each), layout=torch.jagged)


def batch():
    data = TensorDict({
        "input_ids": nested(torch.cat(row) for row in rows),
        "position_ids": nested(torch.arange(len(p) + len(r)) for p, r in rows),
        "prompts": nested(p for p, _ in rows),
        "responses": nested(r for _, r in rows),
        "loss_mask": nested(torch.ones(len(r)) for _, r in rows),
        "response_mask": nested(torch.ones(len(r)) for _, r in rows),
    }, batch_size=[len(rows)])
    tu.assign_non_tensor(
        data, use_remove_padding=True, use_dynamic_bsz=True, max_token_len_per_gpu=40,
        use_fused_kernels=False, temperature=0.7, calculate_entropy=True)
    return data


def loss(model_output, data, dp_group=None):
    # Weights that no two tokens share.
    log_probs = no_padding_2_padding(model_output["log_probs"], data)
    entropy = no_padding_2_padding(model_output["entropy"], data)
    mask = data["response_mask"].to_padded_tensor(0.0)
    weights = data["responses"].to_padded_tensor(0).float().sin()
    return ((log_probs + 0.3 * entropy) * weights * mask).sum(), {}


def run():
    with torch.no_grad(), engine.eval_mode():
        found = engine.infer_batch(batch(), loss_function=None)["model_output"]
    values = [no_padding_2_padding(found[key], batch()) for key in ("log_probs", "entropy")]
    mask = batch()["response_mask"].to_padded_tensor(0.0)
    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(batch(), loss)
        gradient = torch.cat([p.grad.full_tensor().flatten() for p in engine.module.parameters()])
    return *(value * mask for value in values), gradient


plain = run()
attention = {"override_config": {"attn_implementation": "sdpa"}}
config = OmegaConf.create({
    "model": {"use_remove_padding": True, "use_fused_kernels": False, **attention},
    "actor": {"strategy": "fsdp2", "use_prefix_grouper": True},
})
actor = SimpleNamespace(engine=engine)
shared_prompts.share(SimpleNamespace(config=config, actor=actor, ref=None))
computed = []
engine.module.register_forward_pre_hook(
    lambda module, args, kwargs: computed.append(kwargs["input_ids"].numel()), with_kwargs=True)
shared = run()
for name, one, other in zip(("log-probabilities", "entropies", "gradients"), plain, shared):
    torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}")
    assert one.abs().max() > 0.1
# Three prompts of 26 tokens and responses of 33, forward and again for the gradients.
assert sum(computed) == 2 * (26 + sum(len(r) for _, r in rows)), computed
"""


def test_verls_engine_gives_the_same_log_probabilities_entropies_and_gradients(tmp_path: Path):
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TASKS["toolbox"], 0, vocabulary=300)
    for part in (tokenizer, make_model(tokenizer)):
        part.save_pretrained(tmp_path)
    command = [sys.executable, "-c", ENGINE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-3000:]


def test_upstreams_engine_does_not_read_the_key_yet():
    # Once it does, this departure goes.
    workers = upstream.source_of("verl") / "workers"
    files = [workers / "engine_workers.py", *(workers / "engine").rglob("*.py")]
    readers = [file for file in files if "prefix_grouper" in file.read_text()]

    assert readers == []


FITS = {
    "trainer.use_v1": True,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.model.use_fused_kernels": False,
    "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    shared_prompts.KEY: True,
    "actor_rollout_ref.actor.strategy": "fsdp2",
}


def configured(**changed):
    config = OmegaConf.create()
    for key, value in (FITS | changed).items():
        OmegaConf.update(config, key, value)
    return config


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.use_v1", False),
        ("actor_rollout_ref.model.use_remove_padding", False),
        ("actor_rollout_ref.model.use_fused_kernels", True),
        ("actor_rollout_ref.model.override_config.attn_implementation", "flash_attention_2"),
        ("actor_rollout_ref.actor.strategy", "megatron"),
        ("actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size", 2),
        ("actor_rollout_ref.actor.fsdp_config.pad_to_length", True),
    ],
)
def test_settings_of_another_engine_are_refused_with_their_key(key, value):
    check(configured())
    with pytest.raises(ValueError, match=f"use_prefix_grouper: needs {key}"):
        check(configured(**{key: value}))
    check(configured(**{key: value, shared_prompts.KEY: False}))


@pytest.mark.parametrize(
    ("layers", "changed", "named"),
    [
        (["full_attention", "sliding_attention"], {}, "sliding_attention"),
        (None, {"actor_rollout_ref.model.use_fused_kernels": True}, "use_fused_kernels=false"),
    ],
)
def test_what_does_not_fit_in_a_run_that_is_not_ours_is_said_and_changes_nothing(
    layers, changed, named, caplog
):
    # verl's own users may have set the key, which did nothing.
    text = SimpleNamespace(layer_types=layers)
    config = SimpleNamespace(get_text_config=lambda: text)
    engine = SimpleNamespace(model_config=SimpleNamespace(hf_config=config))
    ours = configured(**changed).actor_rollout_ref
    worker = SimpleNamespace(config=ours, actor=SimpleNamespace(engine=engine), ref=None)
    before = vars(engine).copy()

    shared_prompts.share(worker)

    assert named in caplog.text
    assert "use_prefix_grouper has no effect" in caplog.text
    assert vars(engine) == before
