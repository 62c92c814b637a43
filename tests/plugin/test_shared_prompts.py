"""Shared prompts: each prompt is computed once, compared with verl's engine without sharing."""

import importlib
import json
import logging
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gdpo_verl.recipes.toolbox.policy import TASK
from omegaconf import OmegaConf
from processes import run

from gdpo_verl.lab.policy.model import make_model, train_tokenizer
from gdpo_verl.plugin import shared_prompts
from gdpo_verl.plugin.shared_prompts import check, divide, pack
from gdpo_verl.upstream.dependencies import source_of


def test_a_prompt_is_laid_out_once_and_seen_only_by_its_responses():
    # The prompt 7 8 has the responses 1 2, 3 and an empty one. The prompt 9 has the response 4.
    packed = pack([[7, 8, 1, 2], [9, 4], [7, 8, 3], [7, 8]], [2, 1, 2, 2])

    # The tokens of all rows have the numbers 0 to 10. The prompts 6 7 and 9 10 repeat the prompt of
    # the first row, 0 1.
    assert packed.tokens.tolist() == [0, 1, 2, 3, 4, 5, 8]
    # Token 1 follows 8, 2 follows 1, 4 follows 9, and 3 follows 8.
    assert packed.predictors.tolist() == [1, 2, 4, 1]
    # verl stores the log-probability of a token one place before the token.
    assert packed.places.tolist() == [1, 2, 4, 7]
    seen = ["".join(map(str, row)) for row in packed.mask.int().tolist()]
    assert seen == [
        "1000000",
        "1100000",
        "1110000",
        "1111000",
        "0000100",
        "0000110",
        "1100001",
    ]


@pytest.mark.parametrize(
    ("limit", "parts"),
    [
        (9, [[1, 0, 2]]),  # 5 tokens of row 1, then 3 and 1, because the prompt 7 8 counts once
        (8, [[1, 0], [2]]),
        (5, [[1], [0, 2]]),
        (2, [[1], [0], [2]]),  # each row is too long, and a row cannot be divided
    ],
)
def test_micro_batches_are_filled_by_computed_tokens(limit, parts):
    rows = [[7, 8, 1], [5, 4, 3, 2, 1], [7, 8, 3]]

    assert divide(rows, [2, 1, 2], limit) == parts


COMPARISON = Path(__file__).parents[2] / "scripts/dev/shared_prompts.py"
SMALL = ["--groups", "3", "--size", "4", "--prompt", "13", "--response", "5"]


def test_verls_engine_gives_the_same_log_probabilities_entropies_and_gradients(tmp_path):
    torch.manual_seed(0)
    tokenizer = train_tokenizer(TASK, 0, vocabulary=300)
    for part in (tokenizer, make_model(tokenizer)):
        part.save_pretrained(tmp_path)
    command = [sys.executable, COMPARISON, tmp_path, "--device", "cpu", "--dtype", "float32"]
    command += [*SMALL, "--tokens-at-once", "40"]
    done = run(*command, environment={"VERL_PLATFORM": "cpu"})

    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name, largest in found["largest"].items():
        assert largest > 0.1
        assert found["largest_difference"][name] < 1e-5 + 1e-5 * largest, name
    # Without shared prompts verl computes the three prompts four times.
    assert found["shared"]["tokens"] < found["plain"]["tokens"]


def test_verls_engine_does_not_read_the_key_yet():
    # When verl reads the key, the change of the plug-in can be removed.
    workers = source_of("verl") / "workers"
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
def test_settings_of_another_engine_are_rejected_with_their_key(key, value):
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
def test_in_a_run_without_gdpo_unsuitable_settings_are_reported_and_change_nothing(
    layers, changed, named, caplog, monkeypatch
):
    # After verl's first import, the log of the plug-in goes to stderr, which caplog does not
    # capture.
    importlib.import_module("verl.workers.engine.fsdp.transformer_impl")
    monkeypatch.setattr(logging.getLogger("gdpo_verl"), "propagate", True)
    # Users of verl without the plug-in may have set the key, which had no effect.
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
