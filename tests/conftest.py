"""What tests share: the task, the tiny policy, verl's own driver, a browser, numbers compared."""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import Tensor
from waiting import HANGS, start_ray

from gdpo_verl.advantage import Whiten
from gdpo_verl.cpu.patches import give_ray_time_to_start
from gdpo_verl.lab.rundir.run import flattened
from gdpo_verl.plugin.hooks import when_imported

RECIPES = Path(__file__).parents[1] / "recipes"
STOCK = "verl's own configuration"


@dataclass
class Training:
    """A finished or killed run of ``python -m verl.trainer.main_ppo``."""

    directory: Path
    status: int
    output: str

    def metrics(self) -> dict[int, dict[str, float]]:
        lines = (self.directory / "metrics.jsonl").read_text().splitlines()
        return {record["step"]: record["data"] for record in map(json.loads, lines)}

    def rollouts(self, step: int) -> list[dict[str, Any]]:
        lines = (self.directory / "rollouts" / f"{step}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


# verl, torch and vLLM are a million objects to go through, and were a tenth of the tests' time.
gc.set_threshold(100_000)

# Container images often forbid it; compiling verl anew in each process takes a third of the time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Ray starts on a busy machine too.
when_imported("ray._private.node")(give_ray_time_to_start)

# A shell's background job ignores Ctrl-C, and so would the commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest's workers begin with the files that take longest.
LONGEST = (
    *("test_wheel.py", "test_chaos.py", "test_faults.py"),
    # The first that needs the policy makes it; the next ones would only wait.
    *("test_training.py", "test_pretrained.py", "test_explain.py", "test_recipes.py"),
    "test_modes.py",
    *("test_unnoticed.py", "test_docs_site.py", "test_check_reward.py", "test_launch.py"),
    *("test_code.py", "test_plugin.py", "test_cpu.py"),
    *("test_trl.py", "test_submit.py", "test_child.py", "test_contract.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, whole, and the clusters last, which would wait for the chaos."""
    places = {name: place for place, name in enumerate(LONGEST)} | {"test_cluster.py": 1000}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the hub to count the weights of the recipes' models."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(autouse=True)
def warnings_for_caplog(monkeypatch: pytest.MonkeyPatch) -> None:
    """caplog listens at the root, where our warnings do not go since a vLLM would lose them."""
    monkeypatch.setattr(logging.getLogger("gdpo_verl"), "propagate", True)


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    """A TransferQueue on a separate Ray."""
    import ray
    import transfer_queue as tq
    from fake_verl import recipe

    start_ray(num_cpus=8)
    tq.init(recipe().transfer_queue)
    yield tq
    tq.close()
    ray.shutdown()


@pytest.fixture(scope="session")
def toolbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared toolbox task."""
    return made_once(
        tmp_path_factory, "toolbox", lambda out: run_cli("prepare", "toolbox", "--out", str(out))
    )


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny policy, as `gdpo-verl make-policy` trains it; the command checks its competence."""
    return made_once(
        tmp_path_factory, "policy", lambda out: run_cli("make-policy", "--out", str(out))
    )


def inputs(toolbox: Path, policy: Path) -> list[str]:
    """The overrides that name the task's rows and the policy."""
    return [
        f"data.train_files={toolbox / 'train.parquet'}",
        f"data.val_files={toolbox / 'validation.parquet'}",
        f"actor_rollout_ref.model.path={policy}",
    ]


@pytest.fixture(scope="module")
def turn_of_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Waits for the other modules with clusters: two at a time take more than 24 GB."""
    with (of_all_workers(tmp_path_factory) / "clusters.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def of_all_workers(factory: pytest.TempPathFactory) -> Path:
    """The directory that xdist's workers share."""
    root = factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A directory or file, made by the first of xdist's workers that asks for it."""
    root = of_all_workers(factory)
    made = root / name
    with (root / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unfinished = root / f"{name}.unfinished"
            make(unfinished)
            unfinished.rename(made)
    return made


def stock_overrides() -> list[str]:
    """The settings of the hardware recipe `cpu`, as overrides of verl's own configuration."""
    recipe = OmegaConf.load(RECIPES / "hardware" / "cpu.yaml")
    flat = [
        f"++{key}={json.dumps(value) if isinstance(value, str) else value}"
        for key, value in flattened("", OmegaConf.to_container(recipe))
    ]
    lengths = ["data.max_prompt_length=64", "data.max_response_length=48"]
    return [*flat, *lengths, "trainer.logger=[console,file]"]


def run_cli(*arguments: str) -> str:
    command = [sys.executable, "-m", "gdpo_verl.lab.cli", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture
def driver(
    tmp_path: Path, toolbox: Path, policy: Path
) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start verl's driver with a recipe's configuration; what still runs at the end is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        config: str,
        *overrides: str,
        directory: Path = tmp_path,
        environment: dict[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        directory.mkdir(exist_ok=True)
        settings = {
            "data.train_files": toolbox / "train.parquet",
            "data.val_files": toolbox / "validation.parquet",
            "data.val_max_samples": 16,
            "actor_rollout_ref.model.path": policy,
            "trainer.default_local_dir": directory / "checkpoints",
            "trainer.rollout_data_dir": directory / "rollouts",
            "trainer.save_freq": -1,
            "trainer.test_freq": -1,
            "trainer.val_before_train": "false",
            "trainer.total_training_steps": 2,
            "data.train_batch_size": 8,
            "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
            "actor_rollout_ref.rollout.n": 4,
            "hydra.run.dir": directory,
        }
        chosen = ["--config-dir", str(RECIPES), "--config-name", config]
        command = [
            *[sys.executable, "-m", "verl.trainer.main_ppo"],
            *(stock_overrides() if config == STOCK else chosen),
            *[f"{key}={value}" for key, value in settings.items()],
            *overrides,
        ]
        log = (directory / "train.log").open("ab")
        variables = {
            "VERL_FILE_LOGGER_PATH": str(directory / "metrics.jsonl"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "VERL_PLATFORM": "cpu",
            "HYDRA_FULL_ERROR": "1",
        }
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | variables | (environment or {}),
            start_new_session=True,
            cwd=directory,
        )
        log.close()
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def train(
    driver: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> Callable[..., Training]:
    """Run verl's driver to its end."""

    def run(config: str, *overrides: str, fails: bool = False, **options: Any) -> Training:
        process = driver(config, *overrides, **options)
        status = process.wait(HANGS)
        directory = options.get("directory", tmp_path)
        output = (directory / "train.log").read_text(errors="replace")
        assert fails == (status != 0), output[-6000:]
        return Training(directory, status, output)

    return run


def processes_of(needles: Sequence[str]) -> list[str]:
    """Command lines of running processes that contain one of the needles."""
    found = [f"{pid} {args}" for pid, _, _, args in _processes() if "ps -eww" not in args]
    return [line for line in found if any(needle in line for needle in needles)]


def session(*leaders: int) -> list[tuple[int, str]]:
    """The processes of these sessions, but for zombies, by number and arguments."""
    return [
        (int(pid), args)
        for pid, sid, state, args in _processes()
        if int(sid) in leaders and state[0] != "Z"
    ]


def _processes() -> list[list[str]]:
    """Number, session, state and arguments of all processes."""
    listing = ["ps", "-eww", "-o", "pid,sid,stat,args"]
    done = subprocess.run(listing, capture_output=True, text=True, check=True)
    return [line.split(None, 3) for line in done.stdout.splitlines()[1:]]


def environment_without(package: re.Pattern, directory: Path) -> str:
    """This Python environment but for the files of some packages; returns its interpreter."""
    venv.create(directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.search(entry.name):
            (packages / entry.name).symlink_to(entry)
    return str(directory / "bin" / "python")


# ------------------------------------------------ pages, in a real Chromium

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
PATIENCE = 1000 * HANGS  # milliseconds; playwright's own is half a minute


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("no Chromium on this machine: apt install chromium")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, timeout=PATIENCE)
        yield chromium
        chromium.close()


def new_page(browser: Any, **options: Any) -> Any:
    """A page in a new context, which `options` are for."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE)
    return page


# ------------------------------------------------ texts, whose time grows linearly with them


def seconds(work: Callable[[], object]) -> float:
    """Processor time, the best of three: other people share the machine."""
    times = []
    for _ in range(3):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def long() -> float:
    """Seconds in which this machine, at this moment, counts to twenty million.

    No text of 1 MB may take longer.
    """
    return 100 * seconds(lambda: sum(1 for _ in range(200_000)))


def assert_linear(judge: Callable[[str], object], text: Callable[[int], str]) -> None:
    """A quadratic rule would need 100 times as long for 10 times the text, these need 13."""
    texts = text(1_000_000), text(100_000)
    large, small = (seconds(lambda text=text: judge(text)) for text in texts)
    assert large < long()
    assert large < 30 * small + 0.05


def filled(unit: str, start: str = "", end: str = "") -> Callable[[int], str]:
    """Texts of any size, of which all but the ends repeats one unit."""
    return lambda size: start + unit * ((size - len(start) - len(end)) // len(unit)) + end


# ------------------------------------------------ advantages, and how their numbers are compared

NAN = math.nan
S = 1 / math.sqrt(2)
WHITEN: tuple[Whiten, ...] = ("token", "sequence", "none")


def close(found: Tensor, expected: Any, tolerance: float = 1e-5) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=0.0)


def exactly_zero(found: Tensor) -> bool:
    return found.numel() > 0 and bool((found == 0).all())


def lengths(*tokens: int) -> Tensor:
    """A mask with these numbers of response tokens in its rows."""
    return (torch.arange(max(tokens)) < torch.tensor(tokens)[:, None]).long()


def by_row(advantage: Tensor, mask: Tensor) -> Tensor:
    """The one advantage of each row; its masked tokens must be exactly 0."""
    assert advantage.shape == mask.shape
    assert not bool(advantage[mask == 0].any())
    scalar = torch.stack(
        [row[kept != 0][0] for row, kept in zip(advantage, mask, strict=True) if kept.any()]
    )
    assert torch.equal(advantage[mask != 0], scalar.repeat_interleave(mask.sum(1)[mask.any(1)]))
    return scalar


TWO_GROUPS = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
PAIRS = [0, 0, 1, 1]
