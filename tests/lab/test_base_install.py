"""Without the extras: the mathematics works, and messages name what is missing."""

import sys

import processes

# An environment in which only the packages of the base installation can be imported.
WITHOUT_EXTRAS = """
import sys
MISSING = set(
    "datasets httpx huggingface_hub hydra math_verify matplotlib omegaconf orjson pint "
    "pyarrow pyseccomp ray tensorboard tensordict tokenizers tqdm transfer_queue transformers "
    "verl vllm yaml".split()
)
class Missing:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
"""


def run(code):
    return processes.run(sys.executable, "-c", WITHOUT_EXTRAS + code)


def test_the_mathematics_needs_only_torch_and_numpy():
    process = run(
        "import torch, gdpo_verl, gdpo_verl.diagnostics, gdpo_verl.rewards.gsm8k\n"
        "rewards, mask = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2, 1)\n"
        "for variant in gdpo_verl.advantage.VARIANTS:\n"
        "    gdpo_verl.gdpo_advantages(\n"
        "        rewards.repeat(2, 1), [0] * 4, mask.repeat(2, 1), variant=variant,\n"
        "        ranges=[(0.0, 1.0)] * 2,\n"
        "    )\n"
        "config = {'gdpo': {'conditions': {'b': {'on': 'a', 'at_least': 1}}}}\n"
        "rewards = [{'a': 1, 'b': 1}, {'a': 0, 'b': 1}]\n"
        "print(gdpo_verl.advantages_of(rewards, [0, 0], config=config))\n"
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.startswith("[0.70")


def test_a_command_names_the_extra_to_install():
    needs = {
        "report x": "report",
        "train toolbox/gdpo": "verl",
        "prepare toolbox --out never": "verl",
        "check-reward --recipe toolbox/gdpo": "verl",
    }
    process = run(
        "from gdpo_verl.lab.cli import main\n"
        f"print([main(command.split()) for command in {list(needs)}])"
    )
    assert process.stdout == "[1, 1, 1, 1]\n", process.stderr
    for (command, extra), line in zip(needs.items(), process.stderr.splitlines(), strict=True):
        assert line.startswith(f"gdpo-verl {command.split()[0]}: No module named ")
        assert line.endswith(f"pip install '.[{extra}]'")


def test_the_rewards_for_mathematics_name_their_extra():
    process = run(
        "import importlib.util\n"
        "importlib.util.find_spec = lambda name: None if name == 'pint' else sys\n"
        "import gdpo_verl.rewards.math_length\n"
    )
    assert process.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: gdpo_verl.rewards.math_length: expected the package pint, found "
        "none. Run in a clone of gdpo-verl: pip install '.[rewards]'"
    )


def test_doctor_starts_no_process_without_verl():
    process = run(
        "from gdpo_verl.lab import doctor\n"
        "here = doctor.installed_version\n"
        "doctor.installed_version = lambda name: None if name == 'verl' else here(name)\n"
        "for finding in doctor.diagnose(): print(finding.subject, finding.state, finding.remedy)\n"
    )
    assert process.returncode == 0, process.stderr
    lines = dict(line.split(" ", 1) for line in process.stdout.splitlines())
    assert lines["verl"].startswith("not installed; only training with verl needs it. Run in a")
    assert "trainer" not in lines
