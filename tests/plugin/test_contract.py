"""The contract with verl: the installed verl keeps it, and a difference of another one is named."""

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import in_fresh_process

from gdpo_verl.lab.run import checkpoints, progress
from gdpo_verl.plugin import contract
from gdpo_verl.plugin.contract import CONTRACT, first_violation
from gdpo_verl.plugin.watch import deaths
from gdpo_verl.upstream.dependencies import Dependency, source_of, violations

VERL = Path(str(find_spec("verl").origin)).parent
PACKAGE = Path(__file__).parents[2] / "gdpo_verl"
TRAINER = "trainer.ppo.v1.trainer_base"


def test_installed_verl_keeps_the_contract():
    assert first_violation() is None


@pytest.mark.parametrize(
    ("module", "dependency", "problem"),
    [
        (
            TRAINER,
            Dependency("PPOTrainer._compute_advantage", "self batch"),
            f"{TRAINER}.PPOTrainer._compute_advantage takes (self, batch, metrics), "
            "expected (self, batch)",
        ),
        (TRAINER, Dependency("PPOTrainer", reads="fits"), "PPOTrainer does not use fits"),
        (
            TRAINER,
            Dependency("PPOTrainer.fit", writes=["Step 1 of "]),
            "PPOTrainer.fit does not write 'Step 1 of '",
        ),
        ("trainer.ppo.core_algos", Dependency("ESTIMATORS"), "ESTIMATORS is not there"),
        ("trainer.ppo.v9", Dependency("fit"), "verl.trainer.ppo.v9.fit is not there"),
    ],
)
def test_what_verl_does_not_have_is_named(module, dependency, problem):
    (found,) = violations(VERL, {module: [dependency]})
    assert problem in found


def test_a_module_that_may_be_missing_is_not_named():
    optional = "trainer.ppo.v9"
    assert violations(VERL, {optional: [Dependency("fit")]}, [optional]) == []


@pytest.mark.parametrize("package", contract.WRITTEN)
def test_installed_packages_contain_the_texts_that_are_read_from_logs_and_file_names(package):
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert violations(source_of(package), contract.WRITTEN[package]) == []


def test_all_texts_that_are_read_from_logs_and_file_names_are_in_the_contract():
    dependencies = []
    for modules in contract.WRITTEN.values():
        for listed in modules.values():
            dependencies += listed
    written = set()
    names = set()
    for dependency in dependencies:
        written.update(dependency.writes)
        names.update((dependency.name, *dependency.reads.split()))

    patterns = [pattern for pattern, _ in progress._PHASES]
    patterns.append(progress._TOTAL_STEPS)
    for pattern in patterns:
        assert any(pattern.search(f"{text}7") for text in written), pattern
    assert set(deaths._ROLES) <= names
    assert {checkpoints.TRACKER, "data.pt", "actor", "global_step_"} <= written
    for kind in ("model", "optim", "extra_state"):
        assert f"{kind}_world_size_" in written
        assert checkpoints._SHARD.fullmatch(f"{kind}_world_size_2_rank_0.pt")
    fields = re.findall(r"(\w+: )", deaths._BLOCK.pattern)
    assert len(fields) > 5
    assert set(fields) <= written


@pytest.mark.parametrize(
    "line",
    ["from verl.here.moved import compute as advantage", "from .moved import compute as advantage"],
)
def test_a_function_that_moved_is_found_if_its_old_module_imports_it(tmp_path, line):
    package = tmp_path / "verl/here"
    package.mkdir(parents=True)
    (package / "before.py").write_text(f"{line}\n")
    (package / "moved.py").write_text("def compute(data, estimator): ...\n")
    (problem,) = violations(tmp_path / "verl", {"here.before": [Dependency("advantage", "data")]})
    assert problem.startswith("verl.here.before.advantage takes (data, estimator), expected (data)")
    assert not violations(tmp_path / "verl", {"here.before": [Dependency("advantage", "data ...")]})


def test_every_wrapped_function_is_in_the_contract():
    wrapped = {
        name
        for path in (PACKAGE / "plugin").rglob("*.py")
        for name in re.findall(r'\bwrap\(\s*[\w.]+, "(\w+)"', path.read_text())
    }
    assert len(wrapped) > 10
    known = {
        word
        for uses in (CONTRACT | contract.SHARED_PROMPTS).values()
        for use in uses
        for word in f"{use.name} {use.reads}".replace(".", " ").split()
    }
    assert wrapped - {"TCPStore"} <= known  # a class of torch


MISFIT = """
import json, sys
import verl.trainer.ppo.v1 as v1
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
try:
    core_algos.get_adv_estimator_fn("gdpo")(token_level_rewards=None)
    message = "ran"
except RuntimeError as error:
    message = str(error)
print("@" + json.dumps({
    "message": message, "managers": sorted(REWARD_MANAGER),
    "wrapped": [hasattr(f, "__wrapped__") for f in (
        v1.PPOTrainer._compute_advantage, agent_loop_tq._settle_session_tasks)]}))
"""


def test_a_verl_that_does_not_fit_gets_only_an_estimator_that_explains_the_reason(
    tmp_path,
):
    shutil.copytree(VERL, tmp_path / "verl", ignore=shutil.ignore_patterns("__pycache__"))
    base = tmp_path / "verl/trainer/ppo/v1/trainer_base.py"
    base.write_text(base.read_text().replace("def _save_checkpoint(", "def _save("))

    found = in_fresh_process(MISFIT, PYTHONPATH=str(tmp_path))

    assert "does not fit verl" in found["message"]
    assert "trainer_base.PPOTrainer._save_checkpoint is not there" in found["message"]
    assert "pip install verl==0.9.1" in found["message"]
    assert found["wrapped"] == [False, False]
    assert "gdpo_components" not in found["managers"]
