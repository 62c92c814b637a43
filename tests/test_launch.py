"""The launcher: one directory a training, a reason when it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gdpo_verl import launch
from gdpo_verl.cli import main


def test_unknown_recipe_names_those_there_are(tmp_path: Path) -> None:
    expected = r"'toolbox/gdop' does not exist.*Did you mean 'toolbox/gdpo'"
    with pytest.raises(launch.LaunchError, match=expected):
        launch.train("toolbox/gdop", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_directory_of_other_settings_is_refused(tmp_path: Path) -> None:
    settings = {"recipe": "toolbox/grpo", "overrides": [], "version": "0.1.0"}
    (tmp_path / "launch.json").write_text(json.dumps(settings))
    with pytest.raises(launch.LaunchError, match=r"other settings(.|\n)*must not be mixed"):
        launch.train("toolbox/gdpo", tmp_path)


def test_finished_training_is_not_done_again(tmp_path: Path) -> None:
    settings = launch._settings("toolbox/gdpo", ["a=1"])
    (tmp_path / "launch.json").write_text(json.dumps(settings))
    (tmp_path / "done").touch()
    launch.train("toolbox/gdpo", tmp_path, ["a=1"])
    assert not (tmp_path / "train.log").exists()


def test_another_policy_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    weights = tmp_path / "model" / "model.safetensors"
    weights.parent.mkdir()
    override = f"actor_rollout_ref.model.path='{weights.parent}'"
    weights.write_bytes(b"first")
    before = launch._settings("toolbox/gdpo", [override])
    assert launch._settings("toolbox/gdpo", [override]) == before
    weights.write_bytes(b"other")
    assert launch._settings("toolbox/gdpo", [override]) != before


def test_directory_in_which_a_training_runs_is_refused(tmp_path: Path) -> None:
    settings = launch._settings("toolbox/gdpo", [])
    with launch._claim(tmp_path, settings), pytest.raises(launch.LaunchError, match="still runs"):
        launch.train("toolbox/gdpo", tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ValueError: algorithm.gdpo.whiten: wrong", "ValueError: algorithm.gdpo.whiten: wrong"),
        ("\x1b[36m(Task pid=7)\x1b[0m RuntimeError: no: more", "RuntimeError: no: more"),
        ("ray.exceptions.RayTaskError(ValueError): ray::run", None),
        ("UserWarning: engine is not available: Error here", None),
    ],
)
def test_reason_is_the_last_error_of_the_log(line: str, reason: str | None) -> None:
    log = f"KeyError: 'first'\n{line}\nsome other line\n"
    assert launch._reason(log) == (reason or "KeyError: 'first'")


def test_retries_that_are_not_a_number_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("-1", "often"):
        with pytest.raises(SystemExit):
            main(["train", "toolbox/gdpo", "--retries", wrong])
        assert f"'{wrong}' is not a number of starts" in capsys.readouterr().err


@pytest.mark.real
def test_failing_training_ends_with_its_reason_and_a_retry_would_not_help(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "toolbox/gdpo", "--run", str(tmp_path), "--retries", "3"]
    status = main([*command, "data.train_files=/no/file"])

    assert status == 1
    error = capsys.readouterr().err
    assert "retry" not in error
    assert "data.train_files: '/no/file' does not exist" in error
    assert str(tmp_path / "train.log") in error
    assert not (tmp_path / "done").exists()


def test_engine_that_died_of_an_error_is_shown_with_it() -> None:
    log = (
        "RuntimeError: a vLLM engine died: EngineCore of vllm_server_0_0\n"
        "(vLLMHttpServer pid=5) (EngineCore pid=6) ValueError: head_dim=2 is not supported\n"
    )
    failure = launch._failure(log, 1, 1)
    assert failure is not None
    assert failure.text == (
        "a vLLM engine died: EngineCore of vllm_server_0_0: ValueError: head_dim=2 is not supported"
    )


def test_failure_for_want_of_memory_says_what_to_lower() -> None:
    failure = launch._failure("torch.OutOfMemoryError: CUDA out of memory. Tried", 1, 1)
    assert failure is not None
    assert "Memory ran out: lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in failure.text
