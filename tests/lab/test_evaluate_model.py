"""The model of an evaluation: how it is found, and whether it is complete."""

import pytest
from test_checkpoints import write_checkpoint

from gdpo_verl.lab.evaluate.model import find_model


def make_run(directory, *, step=40):
    """Make the files of a run with verl's names; their content is not read."""
    folder = write_checkpoint(directory / "checkpoints", step, workers=2)
    (folder / "actor" / "huggingface").mkdir()
    (folder / "actor" / "huggingface" / "config.json").write_text("{}")
    (directory / "config.yaml").touch()
    return folder / "actor"


def test_a_run_its_checkpoints_and_one_checkpoint_are_the_same_model(tmp_path):
    actor = make_run(tmp_path)
    for given in (tmp_path, tmp_path / "checkpoints", actor.parent, actor):
        model = find_model(str(given))
        assert (model.checkpoint, model.step, model.run) == (actor.parent, 40, tmp_path)
        assert (model.folder, model.workers) == (None, 2)
        assert model.name == f"{given}, step 40"
    # With actor.checkpoint.save_contents=[hf_model], verl's folder for Hugging Face is used
    # directly.
    (actor / "huggingface" / "model.safetensors").touch()
    saved = find_model(str(tmp_path))
    assert (saved.checkpoint, saved.folder) == (None, actor / "huggingface")
    assert (saved.run, saved.workers) == (tmp_path, None)


def test_the_last_complete_checkpoint_of_a_run_is_used_and_a_run_without_one_is_rejected(tmp_path):
    whole = make_run(tmp_path, step=20)
    cut_short = make_run(tmp_path, step=40)
    (cut_short / "model_world_size_2_rank_1.pt").unlink()
    assert find_model(str(tmp_path)).step == 20
    with pytest.raises(ValueError, match=r"global_step_40 is incomplete: .*_rank_1\.pt is missing"):
        find_model(str(cut_short.parent))
    (whole.parent / "data.pt").unlink()
    with pytest.raises(ValueError, match=r"expected a complete checkpoint, .*global_step_20: data"):
        find_model(str(tmp_path))
    make_run(tmp_path, step=60)
    (tmp_path / "checkpoints/latest_checkpointed_iteration.txt").unlink()
    with pytest.raises(ValueError, match="Give one of the folders global_step_N"):
        find_model(str(tmp_path))


def test_the_folder_of_a_model_may_be_named_like_a_checkpoint(tmp_path):
    actor = make_run(tmp_path)
    (tmp_path / "config.yaml").unlink()
    assert find_model(str(actor.parent)).run is None
