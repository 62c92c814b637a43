"""The package as it is published: built, and installed alone beside verl."""

import re
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from processes import environment_without, run
from trainings import SMALL_STEPS, Training, inputs, overrides_of

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (find_spec("build") and find_spec("twine")), reason="scripts/setup.sh cpu test"
    ),
]


def output_of(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel made of the source archive beside it."""
    out = tmp_path_factory.mktemp("dist")
    output_of(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (wheel,) = out.glob("*.whl")
    return wheel


def test_wheel_has_every_module_recipe_and_template_and_nothing_of_the_tests(wheel):
    output_of(sys.executable, "-m", "twine", "check", "--strict", *wheel.parent.iterdir())
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = output_of("git", "ls-files", "gdpo_verl", "recipes", cwd=ROOT).split()
    wanted = {re.sub("^recipes/", "gdpo_verl/recipes/", name) for name in tracked}
    assert {name for name in names if ".dist-info/" not in name} == wanted


def test_wheel_alone_trains_a_recipe_by_its_name_and_makes_the_run_longer(
    wheel, toolbox, policy, tmp_path
):
    python = environment_without(re.compile("gdpo_verl"), tmp_path / "environment")
    output_of(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", wheel)
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    train = [
        Path(python).with_name("gdpo-verl"),
        "train",
        "toolbox/gdpo",
        "--run",
        "run",
        "hardware=cpu",
        *inputs(toolbox, policy),
        *overrides_of(SMALL_STEPS),
        "trainer.save_freq=2",
    ]
    two = "trainer.total_training_steps=2"
    assert "All checks passed" in output_of(*train, two, "--dry-run", cwd=directory)
    output_of(*train, two, cwd=directory)
    training = Training(directory / "run")
    padded = training.metrics()
    assert sorted(padded) == [1, 2]

    # The rest with rows packed, and with a dump of every second step.
    packed = "actor_rollout_ref.model.use_remove_padding=true"
    longer = ["trainer.total_training_steps=4", "trainer.rollout_dump_freq=2", packed]
    output_of(*train, *longer, cwd=directory)
    assert sorted(training.metrics()) == [3, 4]
    assert {file.stem for file in (directory / "run/rollouts").glob("*.jsonl")} == {"1", "2", "4"}
    for metrics in (padded | training.metrics()).values():
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
