"""The plug-in registers its parts in verl's processes, and changes nothing else."""

import sys
from pathlib import Path

import pytest
import wrapt
from processes import in_fresh_process, run

from gdpo_verl.lab import doctor
from gdpo_verl.upstream import hooks

ADVANTAGES = """
import json, sys
import verl
deferred = sorted(name for name in sys.modules if name.startswith("gdpo_verl"))
from verl.plugin.platform import get_platform
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
import numpy as np, torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

generator = torch.Generator().manual_seed(0)
mask = (torch.rand(16, 12, generator=generator) < 0.8).float()
mask[:, 0] = 1
scores = torch.zeros(16, 12)
scores[:, -1] = torch.randn(16, generator=generator)
uid = np.array([f"u{i // 4}" for i in range(16)], dtype=object)
result = {}
for name in ("grpo", "gae", "rloo", "reinforce_plus_plus", "opo", "grpo_vectorized"):
    data = DataProto.from_dict(
        tensors={"token_level_rewards": scores.clone(), "response_mask": mask.clone(),
                 "values": torch.ones(16, 12) * 0.1},
        non_tensors={"uid": uid})
    compute_advantage_for_multi_trajectories(
        data, [f"{u}_{i % 4}_0" for i, u in enumerate(uid)], core_algos.AdvantageEstimator(name),
        config=OmegaConf.create({"gamma": 1.0}))
    result[name] = data.batch["advantages"].numpy().tobytes().hex()
result["gdpo"] = core_algos.get_adv_estimator_fn("gdpo").__module__
try:
    result["manager"] = get_reward_manager_cls("gdpo_components").__module__
except ValueError:
    result["manager"] = None
result["with verl"] = deferred
result["platform"] = get_platform().device_name
result["gdpo_verl imported"] = [name for name in sys.modules if name.startswith("gdpo_verl")]
print("@" + json.dumps(result))
"""


def test_the_plugin_adds_its_parts_when_verl_needs_them_and_changes_no_other_estimator():
    with_plugin = in_fresh_process(ADVANTAGES, VERL_PLATFORM="")
    without = in_fresh_process(ADVANTAGES, VERL_PLATFORM="", VERL_USE_EXTERNAL_PLUGINS="none")

    # Importing verl loads the plug-in, but none of the modules that it imports later.
    inner = ("cpu", "cpu.entry", "plugin", "plugin.entry", "upstream", "upstream.hooks")
    own = [f"gdpo_verl.{name}" for name in inner]
    assert with_plugin.pop("with verl") == ["gdpo_verl", *own]
    assert without.pop("with verl") == []
    assert with_plugin.pop("gdpo") == "gdpo_verl.plugin.step.estimator"
    assert without.pop("gdpo") == "verl.trainer.ppo.core_algos"
    assert with_plugin.pop("manager") == "gdpo_verl.plugin.step.reward_manager"
    assert without.pop("manager") is None
    assert with_plugin.pop("gdpo_verl imported")
    assert without.pop("gdpo_verl imported") == []
    # the plug-in never chooses the platform cpu by itself
    assert with_plugin.pop("platform") == "cuda"
    assert without.pop("platform") == "cuda"
    assert with_plugin == without
    assert len(with_plugin) == 6


def test_a_hook_that_raises_is_reported_and_does_not_break_the_import(monkeypatch, caplog):
    monkeypatch.setattr(wrapt, "register_post_import_hook", lambda hook, name: hook(object()))

    @hooks.when_imported("some.module")
    def broken(module):
        raise KeyError("moved upstream")

    assert "gdpo-verl could not be installed into some.module" in caplog.text
    assert "doctor" in caplog.text


def test_doctor_requires_no_gpu_if_the_packages_for_the_cpu_are_installed():
    nothing = {"platform": "cuda", "gpus": 0}
    assert not doctor._device(nothing, {"version": "0.27.1", "device": "cpu"}).remedy
    assert "setup.sh cpu" in doctor._device(nothing, {"version": "0.24.0", "device": ""}).remedy


def test_doctor_explains_for_what_a_missing_verl_is_needed(monkeypatch):
    monkeypatch.setattr(doctor, "installed_version", {"torch": "2.13.0"}.get)
    (verl,) = [found for found in doctor._versions() if found.subject == "verl"]
    assert not verl.remedy
    assert "only training with verl needs it" in verl.state
    assert "pip install '.[verl]'" in verl.state


def run_doctor(**environment):
    variables = {"VERL_PLATFORM": "cpu"} | environment
    return run(sys.executable, "-m", "gdpo_verl.lab.cli", "doctor", environment=variables)


@pytest.mark.real
def test_doctor_finds_no_fault_in_this_environment():
    well = run_doctor()
    assert well.returncode == 0, well.stdout + well.stderr
    assert "gdpo_verl.plugin.step.estimator.gdpo" in well.stdout
    assert "starts and runs a task" in well.stdout


@pytest.mark.real
@pytest.mark.slow
def test_doctor_names_missing_packages_and_a_trl_with_which_verl_cannot_build_models():
    trl = Path(sys.prefix) / "trl"  # scripts/test.sh installs TRL there
    ill = run_doctor(VERL_USE_EXTERNAL_PLUGINS="gdpo_cpu", PYTHONPATH=str(trl))
    assert ill.returncode == 1
    assert "FAIL  adv_estimator=gdpo" in ill.stdout
    assert "FAIL  trainer hooks" in ill.stdout
    assert "VERL_USE_EXTERNAL_PLUGINS" in ill.stdout
    for words in ("FAIL  TRL", "pip uninstall trl"):
        assert (words in ill.stdout) == trl.is_dir()


def test_the_reward_manager_is_registered_even_if_it_is_imported_before_verl():
    code = (
        "import json, gdpo_verl.plugin.step.reward_manager\n"
        "from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls\n"
        "print('@' + json.dumps(get_reward_manager_cls('gdpo_components').__module__))"
    )
    assert in_fresh_process(code) == "gdpo_verl.plugin.step.reward_manager"
