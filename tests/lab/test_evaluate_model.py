"""The model of an evaluation: which is meant, and whether it is whole."""

from __future__ import annotations

import zipfile

import pytest

from gdpo_verl.lab.evaluate.model import find_model, model_of_run


def make_run(directory, *, step=40, ranks=2):
    """The files of a run, as verl writes them; what they hold is not read here."""
    checkpoint = directory / "checkpoints" / f"global_step_{step}"
    actor = checkpoint / "actor"
    (actor / "huggingface").mkdir(parents=True)
    (actor / "huggingface" / "config.json").write_text("{}")
    shards = [actor / f"model_world_size_{ranks}_rank_{rank}.pt" for rank in range(ranks)]
    for file in (*shards, checkpoint / "data.pt"):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data", b"0" * 1000)
    (directory / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(str(step))
    text = "actor_rollout_ref: {model: {path: models/toolbox}}\n"
    (directory / "config.yaml").write_text(text)
    return actor


def test_a_run_its_checkpoints_and_one_checkpoint_are_the_same_model(tmp_path):
    actor = make_run(tmp_path)
    for given in (tmp_path, tmp_path / "checkpoints", actor.parent, actor):
        model = find_model(str(given))
        assert (model.checkpoint, model.step, model.run) == (actor.parent, 40, tmp_path)
        assert (model.folder, model.workers) == (None, 2)
        assert model.name == f"{given}, step 40"
    assert model_of_run(tmp_path) == "models/toolbox"
    # What verl saved for Hugging Face is taken as it is: actor.checkpoint.save_contents=[hf_model].
    (actor / "huggingface" / "model.safetensors").touch()
    saved = find_model(str(tmp_path))
    assert (saved.checkpoint, saved.folder) == (None, actor / "huggingface")
    assert (saved.run, saved.workers) == (tmp_path, None)


def test_the_last_whole_checkpoint_of_a_run_is_taken(tmp_path):
    make_run(tmp_path, step=20)
    cut_short = make_run(tmp_path, step=40)
    (cut_short / "model_world_size_2_rank_1.pt").unlink()
    assert find_model(str(tmp_path)).step == 20
    with pytest.raises(ValueError, match=r"global_step_40 was cut short"):
        find_model(str(cut_short.parent))


def test_a_models_folder_may_be_named_like_a_checkpoint_of_nobody(tmp_path):
    actor = make_run(tmp_path)
    (tmp_path / "config.yaml").unlink()
    assert find_model(str(actor.parent)).run is None


SHARD = "model_world_size_2_rank_1.pt"


@pytest.mark.parametrize(
    ("file", "left", "complaint"),
    [
        (f"actor/{SHARD}", None, f"actor/{SHARD} is missing"),
        (f"actor/{SHARD}", b"PK\x03\x04", f"{SHARD} is cut short"),
        ("data.pt", None, "data.pt, the place in the data, is missing"),
        ("../latest_checkpointed_iteration.txt", None, "Give one of its folders global_step_N"),
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
