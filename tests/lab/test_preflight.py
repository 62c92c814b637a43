"""Runs that `gdpo-verl train` rejects before it starts: devices, rollout engine, data."""

import importlib.util
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from prepared import write

from gdpo_verl.lab.run.preflight import (
    check_data_files,
    check_machine,
)


@pytest.mark.parametrize("key", ["train_files", "val_files"])
def test_files_without_rows_are_rejected(key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("rows.parquet", [{"data_source": "toolbox"}])
    write("no_rows.parquet", [])
    Path("no_byte.parquet").touch()
    data = {"train_files": ["rows.parquet"], "val_files": "rows.parquet"}
    check_data_files(data)
    empty = "expected at least one row, found none in"
    for path, expected in {
        "/no/file.parquet": "'/no/file.parquet' does not exist.*prepare --help",
        "data/gsm8k/train.parquet": ".* does not exist.*with `gdpo-verl prepare gsm8k`",
        "no_rows.parquet": f"{empty} no_rows.parquet",
        "no_byte.parquet": f"{empty} no_byte.parquet",
    }.items():
        with pytest.raises(ValueError, match=rf"^data\.{key}: {expected}"):
            check_data_files(data | {key: path})


def training(device, devices, num_gpus=None):
    return OmegaConf.create(
        {
            "trainer": {"device": device, "n_gpus_per_node": devices},
            "ray_kwargs": {"ray_init": {"num_gpus": num_gpus}},
            "actor_rollout_ref": {"rollout": {"name": "vllm"}},
            "data": {},
        }
    )


def test_a_missing_vllm_is_reported(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    with pytest.raises(ValueError, match=r"^actor_rollout_ref\.rollout\.name: vllm is not inst"):
        check_machine(training("cpu", 1, num_gpus=1))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_devices_for_which_verl_would_wait_are_rejected(monkeypatch):
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    with pytest.raises(ValueError, match=r"n_gpus_per_node: 8, but torch finds no GPU.*=cpu"):
        check_machine(training("cuda", 8))
    # Users who have done the quickstart may still have the variable in their shell.
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    with pytest.raises(ValueError, match=r"VERL_PLATFORM=cpu expected.*=8, .*found None\..*=cpu"):
        check_machine(training("cuda", 8))
    check_machine(training("cpu", 1, num_gpus=1))
    with pytest.raises(ValueError, match=r"trainer\.n_gpus_per_node=2.* found 1\."):
        check_machine(training("cpu", 2, num_gpus=1))


MESSAGE = {"role": "user", "content": "2 + 3?"}


@pytest.mark.parametrize("prompt", ["2 + 3?", ["2 + 3?"], MESSAGE, [{"text": "2 + 3?"}], [], None])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_a_prompt_that_is_no_list_of_messages_is_rejected(prompt, name, tmp_path):
    data = OmegaConf.create({"train_files": str(tmp_path / name), "prompt_key": "asked"})
    write(tmp_path / name, [{"asked": [MESSAGE]}])
    check_data_files(data, "train_files")
    write(tmp_path / name, [{"asked": prompt}])
    expected = r"^data\.train_files: expected a list of messages in the column 'asked' \("
    with pytest.raises(ValueError, match=expected):
        check_data_files(data, "train_files")
