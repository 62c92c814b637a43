"""Seconds of a training's start and of its steps, in this checkout and in another one, in turn.

    python scripts/benchmark_training.py [--against CHECKOUT] [--steps 6] [--repeats 2] [OVERRIDES]

Both train toolbox/gdpo without a GPU from the same policy on the same data, each with the package
and the environment (.venv) of its checkout; overrides are for this checkout's. The start ends when
verl begins its first step. A step's parts are verl's own `timing_s/*`, its first step left out. The
CPU seconds are those of all the training's processes: on a busy machine they tell more than the
clock does. Take ratios, on a machine with nothing else to do. Needs psutil, of the extra `test`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parents[1]
FIRST_STEP = "Training Progress"  # verl's progress bar, in the training's log


def cpu_seconds(process: subprocess.Popen[bytes], seen: dict[int, float]) -> float:
    """User and system seconds of a process and all its descendants, also of those that ended."""
    root = psutil.Process(process.pid)
    for member in [root, *root.children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.Error:
            continue
        seen[member.pid] = times.user + times.system
    return sum(seen.values())


def train(checkout: Path, inputs: Path, run: Path, steps: int, overrides: list[str]) -> Any:
    """Train once; seconds by name."""
    command = [
        *[checkout / ".venv/bin/gdpo-verl", "train", "toolbox/gdpo", "--run", run],
        *["hardware=cpu", f"actor_rollout_ref.model.path={inputs / 'policy'}"],
        f"data.train_files={inputs / 'data' / 'train.parquet'}",
        f"data.val_files={inputs / 'data' / 'validation.parquet'}",
        *["trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=-1"],
        *[f"trainer.total_training_steps={steps}", *overrides],
    ]
    began, seen, found = time.monotonic(), {}, {}
    process = subprocess.Popen(
        command,
        cwd=checkout,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "VERL_PLATFORM": "cpu", "PYTHONDONTWRITEBYTECODE": ""},
    )
    log = run / "train.log"
    while process.poll() is None:
        cpu = cpu_seconds(process, seen)
        if not found and log.exists() and FIRST_STEP in log.read_text(errors="replace"):
            found = {"start": time.monotonic() - began, "start, CPU": cpu}
        time.sleep(0.25)
    if process.returncode:
        said = log.read_text(errors="replace")[-4000:] if log.exists() else "before it had a log"
        raise SystemExit(f"the training failed: {said}")
    found["steps, CPU"] = (sum(seen.values()) - found["start, CPU"]) / steps
    return found | parts_of_a_step((run / "metrics.jsonl").read_text())


def parts_of_a_step(metrics: str) -> dict[str, float]:
    """Medians of verl's timings over all steps but the first."""
    records = [json.loads(line)["data"] for line in metrics.splitlines()]
    steps = [data for data in records if "timing_s/step" in data][1:]
    names = sorted(name for name in steps[0] if name.startswith("timing_s/"))
    return {name: statistics.median(step[name] for step in steps) for name in names}


def prepare(inputs: Path) -> None:
    gdpo = HERE / ".venv/bin/gdpo-verl"
    subprocess.run([gdpo, "prepare", "toolbox", "--out", inputs / "data"], check=True)
    subprocess.run([gdpo, "make-policy", "--out", inputs / "policy"], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, help="another checkout with its own .venv")
    parser.add_argument("--inputs", type=Path, help="where data and policy are kept for next time")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("overrides", nargs="*", help="Hydra's, for this checkout's trainings")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="benchmark") as scratch:
        inputs = (options.inputs or Path(scratch)).resolve()
        if not (inputs / "policy" / "policy.json").exists():
            prepare(inputs)
        sides = {"here": (HERE, options.overrides)}
        if options.against:
            sides["there"] = (options.against.resolve(), [])
        results: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for turn in range(options.repeats):
            for side, (checkout, overrides) in sides.items():
                run = Path(scratch) / f"{side}{turn}"
                results[side].append(train(checkout, inputs, run, options.steps, overrides))
    for name in results["here"][0]:
        medians = {
            side: statistics.median(result[name] for result in of_side)
            for side, of_side in results.items()
        }
        ratio = f"   ratio {medians['here'] / medians['there']:.2f}" if "there" in medians else ""
        print(f"{name:28}", *(f"{side} {value:7.2f} s" for side, value in medians.items()), ratio)


if __name__ == "__main__":
    main()
