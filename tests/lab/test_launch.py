"""The launcher: the run directory, the settings that may change, and the reason for a failure."""

import importlib.util
import itertools
import re
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import processes
import pytest
from omegaconf import OmegaConf
from test_checkpoints import write_checkpoint

from gdpo_verl.lab import dry_run
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.run import launch, progress
from gdpo_verl.lab.run.checkpoints import CheckpointError
from gdpo_verl.lab.run.claim import RunDirectoryError, is_finished, lock_run
from gdpo_verl.lab.run.composition import NOT_SCIENCE, changed_science, compose
from gdpo_verl.lab.run.memory import remedy_for
from gdpo_verl.lab.rundir.metrics import RunError
from gdpo_verl.lab.rundir.run import flattened

RECIPE = "toolbox/gdpo"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a run directory, and shorten the time between two looks at a run."""
    monkeypatch.setattr(progress, "POLL_SECONDS", 0.01)
    return tmp_path


@pytest.fixture
def unchecked(monkeypatch):
    """Start runs whose model and machine are not checked."""
    monkeypatch.setattr(launch, "check_model", print)
    monkeypatch.setattr(launch.preflight, "check_machine", print)


def composed(run, *overrides, recipe=RECIPE):
    return launch.composed(recipe, run, overrides)[0]


def started(run, *overrides, recipe=RECIPE):
    """Write the files of a start: the configuration and the launcher's record."""
    config = composed(run, *overrides, recipe=recipe)
    with lock_run(run, recipe, config):
        OmegaConf.save(config, run / "config.yaml")


MAY_CHANGE = [
    "trainer.total_training_steps=80",
    "trainer.logger=[console,file,tensorboard]",
    "trainer.save_freq=5",
    "reward.num_workers=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
    "ray_kwargs.ray_init.num_cpus=16",
]
CONSTANT = [
    "actor_rollout_ref.actor.optim.lr_scheduler_type=constant",
    "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0",
]
SCIENCE = [
    "data.train_batch_size=16",
    "+data.seed=1",
    "actor_rollout_ref.actor.optim.lr=1e-5",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=bfloat16",
    "actor_rollout_ref.model.path=/another",
    "+algorithm.gdpo.whiten=sequence",
    "trainer.v1.trainer_mode=colocate_async",
]


def test_only_settings_that_do_not_affect_learning_may_change_between_two_starts(run):
    started(run)
    with lock_run(run, RECIPE, composed(run, *MAY_CHANGE)):
        pass
    with pytest.raises(RunDirectoryError) as refused:
        started(run, *SCIENCE)
    named = re.findall(r"^  (\S+): .*, not ", str(refused.value), re.MULTILINE)
    assert named == sorted(change.lstrip("+").partition("=")[0] for change in SCIENCE)
    with pytest.raises(RunDirectoryError, match=r"adv_estimator: 'gdpo', not 'grpo'"):
        started(run, recipe="toolbox/grpo")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.4])
@pytest.mark.parametrize("name", ["config.yaml", "launch.json"])
def test_an_incomplete_file_of_the_last_start_is_named_with_a_remedy(name, part, run):
    started(run)
    file = run / name
    whole = file.read_bytes()
    file.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises((RunDirectoryError, RunError), match=rf"{name}.*another run directory"):
        started(run)
    file.write_bytes(whole)
    started(run)


def test_a_lost_configuration_of_a_run_with_checkpoints_is_named(run):
    started(run)
    (run / "config.yaml").unlink()
    write_checkpoint(run / "checkpoints", 2)
    with pytest.raises(RunDirectoryError, match=r"config\.yaml is missing, and there are check"):
        started(run)


@pytest.mark.parametrize(
    ("schedule", "changed"),
    [
        # The schedule of the recipe is a cosine.
        ([], ["trainer.total_training_steps"]),
        (CONSTANT, []),
    ],
)
def test_the_number_of_steps_may_not_change_if_the_learning_rate_depends_on_it(schedule, changed):
    short = compose("gsm8k/gdpo", [*schedule, "trainer.total_training_steps=20"])
    long = compose("gsm8k/gdpo", [*schedule, "trainer.total_training_steps=40"])
    assert list(changed_science(short, long)) == changed
    # If the number of steps is set, the number of epochs is only a limit.
    epochs = short.copy()
    epochs.trainer.total_epochs += 1
    assert changed_science(short, epochs) == {}


def test_every_pattern_of_keys_that_may_change_matches_a_key_of_verl():
    config = compose("toolbox/gdpo")
    keys = [key for key, _ in flattened("", OmegaConf.to_container(config, resolve=False))]
    for pattern in NOT_SCIENCE:
        assert any(fnmatchcase(key, pattern) for key in keys), pattern


def test_another_number_of_workers_than_that_of_the_checkpoints_is_rejected(run):
    started(run)
    write_checkpoint(run / "checkpoints", 2)
    expected = r"trainer\.nnodes × trainer\.n_gpus_per_node: 1, not 2"
    with pytest.raises(RunDirectoryError, match=expected):
        started(run, "trainer.nnodes=2")


def test_a_finished_run_is_not_repeated_but_may_be_extended(run, capsys):
    started(run)
    (run / "done").touch()
    launch.train(RECIPE, run)
    said = r"is finished, and nothing was trained\. .* raise trainer\.total_training_steps=40$"
    assert re.search(said, capsys.readouterr().err.strip())
    launch.train(RECIPE, run, ["trainer.total_training_steps=20"])
    assert not (run / "train.log").exists()
    assert not is_finished(run, composed(run, "trainer.total_training_steps=80"))


def test_a_run_that_ends_with_its_epochs_before_its_steps_names_the_key():
    trainer = {"total_epochs": 2, "total_training_steps": 90, "logger": ["console", "file"]}
    config = OmegaConf.create({"trainer": trainer})
    launch._require_last_step(RECIPE, config, 90)
    with pytest.raises(launch.LaunchError, match=r"total_epochs=2 ended .* step 80, before .*=90"):
        launch._require_last_step(RECIPE, config, 80)
    # Without the file of metrics the last step is unknown, and without a number of steps every step
    # may be the last.
    for change in ({"logger": ["console"]}, {"total_training_steps": None}):
        other = OmegaConf.create({"trainer": trainer | change})
        launch._require_last_step(RECIPE, other, 0)


@pytest.mark.parametrize(
    ("key", "path", "file"),
    [
        ("reward.custom_reward_function.path", "rewards.py", "rewards.py"),
        ("actor_rollout_ref.model.path", "model", "model/model.safetensors"),
    ],
)
def test_an_edited_file_is_rejected_with_the_option_that_accepts_it(tmp_path, key, path, file):
    run = tmp_path / "run"
    config = composed(run, f"{key}={tmp_path / path}")

    def start(**options):
        with lock_run(run, RECIPE, config, **options):
            pass

    (tmp_path / "model").mkdir()
    (tmp_path / file).write_text("before")
    start()
    start()
    (tmp_path / file).write_text("after")
    refused = rf"(?s){key}=.*/{path} holds .* --accept-changed-files"
    with pytest.raises(RunDirectoryError, match=refused):
        start()
    start(accept_changed_files=True)
    start()
    # A changed setting can be corrected, so that no option accepts it.
    OmegaConf.save(config, run / "config.yaml")
    config.data.train_batch_size += 1
    with pytest.raises(RunDirectoryError, match=r"(?s)train_batch_size: .* may change\.$"):
        start(accept_changed_files=True)


def test_a_dry_run_rejects_the_directories_that_a_start_rejects(run):
    started(run)
    before = {file.name: file.read_bytes() for file in run.iterdir()}
    override = "actor_rollout_ref.actor.optim.lr=1e-5"
    problem, *_ = dry_run.dry_run(RECIPE, run, [override]).problems
    assert "actor.optim.lr: " in problem
    damaged = run.parent / "damaged"
    started(damaged)
    (damaged / "launch.json").write_text("")
    problem, *_ = dry_run.dry_run(RECIPE, damaged).problems
    assert "launch.json: expected the JSON object" in problem
    config = composed(run)

    def check():
        dry_run._check_directory(run, RECIPE, config, False)

    checkpoint = write_checkpoint(run / "checkpoints", 1)
    check()
    (checkpoint / "data.pt").unlink()
    with pytest.raises(CheckpointError, match="no checkpoint is complete"):
        check()
    assert before == {file.name: file.read_bytes() for file in run.iterdir() if file.is_file()}
    with lock_run(run, RECIPE, config):
        for start in (check, partial(launch.train, RECIPE, run)):
            with pytest.raises(RunDirectoryError, match="still trains"):
                start()


PLATFORM = "VERL_PLATFORM"
SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
BYTECODE = "PYTHONDONTWRITEBYTECODE"


@pytest.mark.parametrize(
    ("hardware", "given", "package", "variable", "value"),
    [
        # The driver has the platform of its workers, unless its environment sets another one.
        ("cpu", {}, None, PLATFORM, "cpu"),
        ("cpu", {}, None, "GLOO_SOCKET_IFNAME", "lo"),
        ("gpu8", {}, None, PLATFORM, None),
        ("cpu", {PLATFORM: "nvidia"}, None, PLATFORM, "nvidia"),
        # FlashInfer's sampler is switched off if it would have to be compiled.
        ("gpu8", {}, None, SAMPLER, "0"),
        ("gpu8", {}, "flashinfer_jit_cache", SAMPLER, None),
        ("gpu8", {SAMPLER: "1"}, None, SAMPLER, "1"),
        ("cpu", {}, None, SAMPLER, None),
        # Container images set this variable. Then every process would compile all imported modules.
        ("cpu", {BYTECODE: "1"}, None, BYTECODE, None),
    ],
)
def test_the_environment_of_the_driver_is_complete(
    run, monkeypatch, hardware, given, package, variable, value
):
    config = composed(run, f"hardware={hardware}")
    for name in (PLATFORM, SAMPLER):
        monkeypatch.delenv(name, raising=False)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == package)
    assert launch.environment_of(run, config).get(variable) == value


def test_workers_per_node_are_multiplied_by_the_number_of_nodes_unless_overridden():
    overrides = ["hardware=cluster", "trainer.nnodes=4", "reward.num_workers=5"]
    config = composed(Path("/run"), *overrides, recipe="code/gdpo")
    assert config.reward.num_workers == 5
    assert config.actor_rollout_ref.rollout.agent.num_workers == 32
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units == 32


def test_a_number_that_verl_chooses_is_not_set(monkeypatch):
    # A configuration of verl after 0.9.1 has this value, and a recipe may have it.
    def without_storage_units(*arguments):
        config = compose(*arguments)
        config.transfer_queue.backend.SimpleStorage.num_data_storage_units = None
        return config

    monkeypatch.setattr(launch, "compose", without_storage_units)
    config = composed(Path("/run"), "hardware=cluster", "trainer.nnodes=2")
    assert config.transfer_queue.backend.SimpleStorage.num_data_storage_units is None


def test_flash_attn_is_used_on_gpus_if_it_is_installed(tmp_path, monkeypatch):
    def chosen(*overrides):
        return launch.composed("tool_call/gdpo", Path("/run"), overrides)[1]

    key = "actor_rollout_ref.model.override_config.attn_implementation"
    assert chosen() == []
    (tmp_path / "flash_attn.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert chosen() == [f"++{key}=flash_attention_2"]
    assert chosen(f"{key}=sdpa") == [f"{key}=sdpa"]
    assert chosen("hardware=cpu") == ["hardware=cpu"]


def test_the_configuration_is_printed_as_by_hydra(run, capsys):
    overrides = ["trainer.total_training_steps=3"]
    assert main(["train", RECIPE, "--run", str(run), "--cfg", "job", *overrides]) == 0
    printed = capsys.readouterr().out
    command = [*launch.command(RECIPE, run, overrides), "--cfg", "job"]
    hydras = processes.run(*command, environment={"VERL_PLATFORM": "cpu"})
    assert OmegaConf.create(printed) == OmegaConf.create(hydras.stdout)
    assert "total_training_steps: 3\n" in printed
    assert list(run.iterdir()) == []


@pytest.mark.real
def test_a_rejected_run_is_not_retried_and_may_be_corrected(tmp_path, capsys):
    (tmp_path / "config.json").touch()  # the configuration of a model
    (tmp_path / "rows.jsonl").write_text("{}")
    rewards = tmp_path / "rewards.py"
    rewards.write_text("\nimport no_such_package\n")
    run = tmp_path / "run"
    overrides = [f"actor_rollout_ref.model.path={tmp_path}"]
    overrides += [f"reward.custom_reward_function.path={rewards}"]
    overrides += [f"data.{name}_files={tmp_path}/rows.jsonl" for name in ("train", "val")]

    assert main(["train", RECIPE, "--run", str(run), "--retries", "3", *overrides]) == 1
    error = capsys.readouterr().err
    assert f"ModuleNotFoundError: No module named 'no_such_package' ({rewards}:2)" in error
    assert "retr" not in error
    assert f"Its log: {run / 'train.log'}" in error
    assert not (run / "done").exists()
    # Settings may change as long as no step was trained.
    rewards.write_text("import another_package\n")
    started(run, *overrides)


def test_a_run_is_not_retried_after_two_starts_without_a_new_step(
    run, unchecked, capsys, monkeypatch
):
    monkeypatch.setattr(launch, "command", lambda *_: ["sh", "-c", "echo 'KeyError: 1'; exit 1"])
    assert main(["train", RECIPE, "--run", str(run), "--retries", "3"]) == 1
    error = capsys.readouterr().err
    assert "retry 1 of 3" in error
    assert "retry 2 of 3" not in error
    assert "status 1: KeyError: 1\nThe same command starts from the beginning" in error


def failure(run, program, hang_after=600.0):
    """Run a shell script in the place of verl's driver; return the reason for its failure."""
    config = OmegaConf.create({"trainer": {"total_training_steps": 5, "nnodes": 1}})
    with (run / "lock").open("a") as lock:
        program = f"cd '{run}'; {program}"
        return launch._run(["sh", "-c", program], RECIPE, run, config, lock, hang_after)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        # The last error of the log counts.
        ("ValueError: algorithm.gdpo.whiten: wrong", ": ValueError: algorithm.gdpo.whiten: wrong"),
        ("ray.exceptions.RayTaskError(ValueError): ray::run", "status 1: KeyError: 'first'"),
        # An error of Hydra has its cause on the next line.
        ("hydra.errors.InstantiationException: Error in 'M':\nOSError('no')", "'M': OSError('no')"),
        (
            "RuntimeError: a vLLM engine died: EngineCore of vllm_server_0_0\n"
            "(vLLMHttpServer pid=5) (EngineCore pid=6) ValueError: head_dim=2 is not supported",
            "a vLLM engine died: EngineCore of vllm_server_0_0: ValueError: head_dim=2 is not "
            "supported",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried",
            f"\nMemory ran out: {remedy_for('CUDA out of memory')}.",
        ),
    ],
)
def test_a_failure_is_named_with_its_cause(log, said, run):
    (run / "train.log").write_text("RuntimeError: a reward worker died: earlier\n")
    (run / "said").write_text(f"KeyError: 'first'\n{log}\nsome other line\n")
    assert (failure(run, "cat said; exit 1") or "").endswith(said)


def test_a_run_ends_with_its_driver_and_hangs_if_it_logs_nothing_for_long(run):
    assert failure(run, "true") is None
    killed = failure(run, "kill -9 $$") or ""
    assert re.fullmatch(r"the driver died: pid \d+ was killed by SIGKILL", killed)
    hangs = "the run hangs: no step was logged for 0.001 minutes (--hang-after)"
    assert failure(run, "sleep 600", hang_after=0.06) == hangs


def test_an_interrupted_run_explains_how_it_resumes(run, unchecked, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "_run", interrupted)
    started(run)
    write_checkpoint(run / "checkpoints", 2)
    with pytest.raises(KeyboardInterrupt):
        launch.train(RECIPE, run)
    said = "interrupted. The same command resumes from step 2, the last complete checkpoint.\n"
    assert said in capsys.readouterr().err


def test_a_clock_that_is_set_forward_does_not_end_a_run(run, monkeypatch):
    clock = itertools.count(0.0, 3 * 3600.0)  # the clock is set forward all the time
    monkeypatch.setattr("time.time", lambda: next(clock))
    assert failure(run, "sleep .3") is None
