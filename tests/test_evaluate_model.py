"""The model of an evaluation: which is meant, whether it is whole, and what vLLM makes of it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import zipfile

import pytest
import torch
from conftest import run_cli
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from transformers import AutoModelForCausalLM

from gdpo_verl.lab.evaluate import result
from gdpo_verl.lab.evaluate.model import find_model, weights_digest
from gdpo_verl.lab.evaluate.sampling import load_tokenizer
from gdpo_verl.lab.tasks import toolbox as toolbox_data
from gdpo_verl.lab.tasks.benchmark import open_benchmark

needs_bfcl = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("bfcl_eval", "tree_sitter")),
    reason="needs bfcl-eval and what its scoring imports",
)


# ------------------------------------------------------------------ the model


def make_run(directory, *, step=40, ranks=2):
    """The files of a run, as verl writes them; what they hold is not read here."""
    actor = directory / "checkpoints" / f"global_step_{step}" / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    (actor / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
    for rank in range(ranks):
        with zipfile.ZipFile(actor / f"model_world_size_{ranks}_rank_{rank}.pt", "w") as archive:
            archive.writestr("data", b"0" * 1000)
    (directory / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))
    (directory / "config.yaml").write_text("data: {train_files: x}\n")
    return actor


def test_a_run_its_checkpoints_and_one_checkpoint_are_the_same_model(tmp_path):
    actor = make_run(tmp_path)
    for given in (tmp_path, tmp_path / "checkpoints", actor.parent, actor):
        model = find_model(str(given))
        assert (model.actor, model.step, model.run) == (actor, 40, tmp_path)
        assert model.folder == actor / "huggingface"
    # What verl saved for Hugging Face is taken as it is: actor.checkpoint.save_contents=[hf_model].
    for shard in actor.glob("*.pt"):
        shard.unlink()
    (model.folder / "model.safetensors").touch()
    saved = find_model(str(tmp_path))
    assert (saved.actor, saved.folder, saved.step) == (None, model.folder, 40)


SHARD = "model_world_size_2_rank_1.pt"


@pytest.mark.parametrize(
    ("file", "left", "complaint"),
    [
        (f"actor/{SHARD}", None, f"cut short: actor/{SHARD} is missing"),
        (f"actor/{SHARD}", b"PK\x03\x04", f"{SHARD} is cut short"),
        ("actor/huggingface/config.json", None, "huggingface/config.json is missing"),
        ("../latest_checkpointed_iteration.txt", None, "Give one of its folders global_step_N"),
        ("actor/dist_ckpt", b"", "Megatron"),
    ],
)
def test_a_checkpoint_cut_short_is_refused(tmp_path, file, left, complaint):
    damaged = make_run(tmp_path).parent / file
    damaged.unlink(missing_ok=True)
    if left is not None:
        damaged.write_bytes(left)
    with pytest.raises(ValueError, match=complaint):
        find_model(str(tmp_path))


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ConnectionError, match="hf download nobody/nothing --local-dir"):
        find_model("nobody/nothing")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"neither a Hugging Face model.*found \['notes.txt'\]"):
        find_model(str(tmp_path))
    with pytest.raises(ValueError, match="found the file"):
        find_model(str(tmp_path / "notes.txt"))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        find_model(str(tmp_path / "nowhere"))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="no weights"):
        find_model(str(tmp_path))


def test_the_digest_is_of_the_weights_alone(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    before = weights_digest(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not loaded where there are safetensors")
    assert weights_digest(tmp_path) == before
    (tmp_path / "model.safetensors").write_bytes(b"abd")
    assert weights_digest(tmp_path) != before


def test_a_tokenizer_without_a_chat_template_is_refused_or_given_one(tmp_path):
    from gdpo_verl.lab.check_reward.tokens import byte_tokenizer

    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"no chat template.*--chat-template FILE"):
        load_tokenizer(tmp_path, None)
    template = tmp_path / "mine.jinja"
    template.write_text("{{ messages[0]['content'] }}")
    assert load_tokenizer(tmp_path, template).chat_template == template.read_text()


# ------------------------------------------------------------------ verl and vLLM


def make_checkpoint(policy, actor, state):
    """`state` as verl's FSDP2 leaves it: DTensors of one rank, the configuration beside them."""
    actor.mkdir(parents=True)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
        shards = {name: distribute_tensor(value, mesh, [Shard(0)]) for name, value in state.items()}
        torch.save(shards, actor / "model_world_size_1_rank_0.pt")
    finally:
        torch.distributed.destroy_process_group()
    (actor / "fsdp_config.json").write_text('{"FSDP_version": 2, "world_size": 1}')
    copied = shutil.ignore_patterns("*.safetensors", "policy.json")
    shutil.copytree(policy, actor / "huggingface", ignore=copied)
    return actor


OWN_ROWS = [
    {"question": "Ann has 3 apples and buys 4. How many has she?", "answer": "#### 7"},
    {"question": "A box holds 6 eggs. How many do 12 boxes hold?", "answer": "#### 72"},
]


@pytest.mark.real
@pytest.mark.slow
@needs_bfcl
def test_a_checkpoint_is_evaluated_through_vllm_and_again_alike(policy, tmp_path):
    state = load_file(policy / "model.safetensors")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    step = tmp_path / "run" / "checkpoints" / "global_step_7"
    make_checkpoint(policy, step / "actor", state)
    (tmp_path / "run" / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("7")
    toolbox_data.prepare(tmp_path / "toolbox", train=8, validation=24)
    train_files = json.dumps([str(tmp_path / "toolbox" / "train.parquet")])
    (tmp_path / "run" / "config.yaml").write_text(f"data: {{train_files: {train_files}}}\n")
    (tmp_path / "own").mkdir()
    rows = "".join(json.dumps(row) + "\n" for row in OWN_ROWS)
    (tmp_path / "own" / "test.jsonl").write_text(rows)
    arguments = [
        *["--limit", "24", "--max-tokens", "48", "--temperature", "1", "--samples", "2"],
        *["--data", f"toolbox={tmp_path / 'toolbox' / 'validation.parquet'}"],
    ]
    all_three = ["toolbox", "bfcl", "gsm8k", "--data", f"gsm8k={tmp_path / 'own'}", *arguments]
    outs = [tmp_path / f"{name}.json" for name in ("once", "again", "policy")]

    table = run_cli("evaluate", str(tmp_path / "run"), *all_three, "--out", str(outs[0]))
    run_cli("evaluate", str(step), *all_three, "--out", str(outs[1]))
    run_cli("evaluate", str(policy), "toolbox", *arguments, "--seed", "1", "--out", str(outs[2]))

    records, lines = zip(*map(result.read, outs), strict=True)
    # The same seed gives the same answers to the last character, another seed does not.
    assert lines[0] == lines[1]
    texts = [[line["answer"] for line in each] for each in lines]
    assert texts[0][:48] != texts[2]
    assert len(lines[0]) == 2 * (24 + 24 + 2)
    first, again, third = (record["model"] for record in records)
    assert (first["step"], first["merged_from_shards"]) == (7, True)
    assert first["weights_sha256"] == again["weights_sha256"] != third["weights_sha256"]
    assert records[0]["engine"]["engine"].startswith("vllm ")

    # The policy was made to get the form right more often than not, and knows the toolbox alone.
    found = records[0]["benchmarks"]
    assert found["toolbox"]["results"]["all"]["format"]["mean"] > 0.5
    assert found["gsm8k"]["results"]["all"]["accuracy"]["mean"] == 0
    assert {line["finish"] for line in lines[0]} <= {"stop", "length", "prompt too long"}
    benchmark = open_benchmark("toolbox")
    asked = benchmark.load(str(tmp_path / "toolbox" / "validation.parquet")).items
    truths = {question.name: question for question in asked}
    for each in lines[0][:48]:
        judged = benchmark.score(truths[each["question"]], each["answer"], each["tokens"])
        assert judged.measures == each["measures"]
    assert "24 of 24 questions" in table
    assert "not covered: version 3's executable categories" in table

    report = run_cli("compare", str(outs[0]), str(outs[2]))
    assert "CAUTION: not the same toolbox: seed: 0, 1" in report
    assert "bfcl is not in every evaluation and was not compared" in report


@pytest.mark.real
def test_a_lora_checkpoint_is_merged_with_its_scale(policy, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float32)
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, settings)
    before = model.model.layers[1].self_attn.q_proj.base_layer.weight.detach().clone()
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
    actor = make_checkpoint(policy, tmp_path / "global_step_1" / "actor", adapted.state_dict())
    layer = model.model.layers[1].self_attn.q_proj
    change = 8 / 4 * (layer.lora_B.default.weight @ layer.lora_A.default.weight).detach()

    with (
        pytest.raises(ValueError, match=r"lora_train_meta\.json is missing"),
        find_model(str(actor)).weights(),
    ):
        pass
    (actor / "lora_train_meta.json").write_text('{"r": 4, "lora_alpha": 8}')
    with find_model(str(actor)).weights() as folder:
        merged = load_file(folder / "model.safetensors")

    found = merged["model.layers.1.self_attn.q_proj.weight"].float() - before
    assert change.abs().max() > 0.05
    torch.testing.assert_close(found, change, rtol=0.02, atol=0.004)  # verl rounds to bfloat16
