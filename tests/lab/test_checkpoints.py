"""Complete and incomplete checkpoints."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from gdpo_verl.lab.run import checkpoints
from gdpo_verl.lab.run.checkpoints import CheckpointError
from gdpo_verl.plugin.watch import checkpoint

SHARDS = ("model", "optim", "extra_state")


def write_checkpoint(directory, step, *, workers=1):
    """Write a complete checkpoint, with the names of verl's FSDP engine."""
    folder = directory / f"global_step_{step}"
    (folder / "actor").mkdir(parents=True)
    for kind in SHARDS:
        for rank in range(workers):
            name = f"{kind}_world_size_{workers}_rank_{rank}.pt"
            torch.save({"step": torch.arange(100)}, folder / "actor" / name)
    torch.save({"batch": step}, folder / "data.pt")
    (directory / checkpoints.TRACKER).write_text(str(step))
    return folder


def cut(file):
    file.write_bytes(file.read_bytes()[:-30])


@pytest.mark.parametrize("noted", ["4", "4\0"])  # also a tracker that contains no number
@pytest.mark.parametrize(
    ("file", "damage", "problem"),
    [
        ("data.pt", Path.unlink, "data.pt, the place in the data, is"),
        ("actor/optim_world_size_2_rank_1.pt", cut, "actor/optim_world_size_2_rank_1.pt is cut sh"),
        ("actor/extra_state_world_size_2_rank_0.pt", Path.unlink,
         "actor/extra_state_world_size_2_rank_0.pt is missing"),
        ("actor", shutil.rmtree, "actor has no model"),
    ],
)  # fmt: skip
def test_a_run_does_not_resume_from_an_incomplete_checkpoint(
    tmp_path, file, damage, problem, noted
):
    write_checkpoint(tmp_path, 2, workers=2)
    damage(write_checkpoint(tmp_path, 4, workers=2) / file)
    (tmp_path / checkpoints.TRACKER).write_text(noted)
    step, (sentence,) = checkpoints.select_checkpoint(tmp_path)
    assert step == 2
    assert sentence.startswith(f"global_step_4 was cut short and is skipped: {problem}")
    assert (tmp_path / checkpoints.TRACKER).read_text() == "2"
    assert (tmp_path / "global_step_4.incomplete").is_dir()
    assert checkpoints.select_checkpoint(tmp_path) == (2, [])


def test_a_checkpoint_counts_once_verl_has_written_its_step_to_the_tracker(tmp_path):
    for step in (2, 4):
        write_checkpoint(tmp_path, step)
    # verl empties the tracker before it writes the number
    (tmp_path / checkpoints.TRACKER).write_text("")
    assert checkpoints.select_checkpoint(tmp_path) == (4, [])
    assert (tmp_path / checkpoints.TRACKER).read_text() == "4"
    (tmp_path / checkpoints.TRACKER).write_text("2")
    for _ in range(2):  # the save of the same step may be interrupted again
        (tmp_path / "global_step_4").mkdir(exist_ok=True)
        step, (said,) = checkpoints.select_checkpoint(tmp_path)
        assert step == 2
        assert said.startswith("global_step_4 was cut short and is skipped: its save did not end")


def test_a_run_starts_from_the_beginning_only_if_no_checkpoint_was_ever_complete(tmp_path):
    cut(write_checkpoint(tmp_path, 2) / "data.pt")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint is complete \(global_step_2: data.pt"
    ):
        checkpoints.select_checkpoint(tmp_path)
    assert (tmp_path / "global_step_2").is_dir()
    (tmp_path / checkpoints.TRACKER).unlink()  # the first save was interrupted
    step, (said,) = checkpoints.select_checkpoint(tmp_path)
    assert step == 0
    assert said.startswith("global_step_2 was cut short")
    assert checkpoints.select_checkpoint(tmp_path / "none") == (0, [])


def test_checkpoints_of_another_engine_count_if_the_tracker_has_their_step(tmp_path):
    folder = write_checkpoint(tmp_path, 2)
    for file in (folder / "actor").iterdir():
        file.rename(file.with_suffix(".distcp"))
    assert checkpoints.last_complete(tmp_path) == (2, {})


def test_the_only_checkpoint_is_kept_until_the_next_one_is_complete(tmp_path):
    limits = {"max_actor_ckpt_to_keep": 1, "max_critic_ckpt_to_keep": None}
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path), **limits}})
    trainer = SimpleNamespace(config=config, global_steps=0)
    seen = []

    def upstream(trainer):
        seen.append(trainer.config.trainer.max_actor_ckpt_to_keep)
        assert checkpoints.last_complete(tmp_path)[0] == trainer.global_steps - 1
        write_checkpoint(tmp_path, trainer.global_steps)

    for trainer.global_steps in (1, 2, 3):
        checkpoint.save(upstream, trainer)
        assert [path.name for path in tmp_path.glob("global*")] == [
            f"global_step_{trainer.global_steps}"
        ]
    assert seen == [2, 2, 2]  # with 1, verl's workers would remove the checkpoint themselves
    assert config.trainer.max_actor_ckpt_to_keep == 1
