"""Train each arm of an experiment with each seed, and keep a line of metrics for every step.

    python scripts/experiment.py scripts/pretrained.yaml              # what is left, seed by seed
    python scripts/experiment.py scripts/pretrained.yaml --minutes 60 # starts no run after an hour
    python scripts/experiment.py scripts/pretrained.yaml --table      # of what is done, as Markdown

Data, policy and runs are in runs/NAME, what is kept in docs/evidence/NAME.jsonl. Started again, it
goes on: a run that has come to its end is not repeated. Needs scripts/setup.sh cpu data.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
KEPT = re.compile(
    r"rewards/.+/(mean|std)|gdpo/.+/advantage_share|response_length/mean|timing_s/(step|gen|update_actor)"
)
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # Student's t for as many differences
Values = dict[tuple[str, int], float]  # of an arm and a seed


def run_left(name: str, experiment: dict[str, Any], until: float) -> None:
    """Train what is left until that time, all arms of a seed before the next seed."""
    work, kept = ROOT / "runs" / name, ROOT / f"docs/evidence/{name}.jsonl"
    command = [sys.executable, "-m", "gdpo_verl.cli"]
    for made, make in [
        (work / "data", ["prepare", *experiment["prepare"]]),
        (work / "policy", ["make-policy", *experiment["policy"]]),
    ]:
        if not made.exists():
            subprocess.run([*command, *make, "--out", made], check=True)
    done = {(line["arm"], line["seed"]) for line in read(kept)}
    for seed in experiment["seeds"]:
        for arm, (recipe, reward) in experiment["arms"].items():
            if (arm, seed) in done or time.time() > until:
                continue
            run = work / f"{arm}-{seed}"
            overrides = [
                *experiment["every"],
                f"actor_rollout_ref.model.path={work / 'policy'}",
                f"data.train_files={work / 'data/train.parquet'}",
                f"data.val_files={work / 'data/validation.parquet'}",
                f"data.seed={seed}",
                f"reward.custom_reward_function.path={ROOT / 'scripts/study_rewards.py'}",
                f"reward.custom_reward_function.name={reward}",
            ]
            subprocess.run([*command, "train", recipe, "--run", run, *overrides], check=True)
            steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            with kept.open("a") as file:
                for step in steps:
                    found = {k: round(v, 6) for k, v in step["data"].items() if KEPT.fullmatch(k)}
                    line = {"arm": arm, "seed": seed, "step": step["step"], **found}
                    file.write(json.dumps(line) + "\n")


def read(kept: Path) -> list[dict[str, Any]]:
    """The lines of all steps that are kept."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def over_steps(lines: Sequence[dict[str, Any]], metric: str) -> Values:
    """The mean of a metric over the steps of each run."""
    runs: dict[tuple[str, int], list[float]] = {}
    for line in lines:
        runs.setdefault((line["arm"], line["seed"]), []).append(line[metric])
    return {run: fmean(values) for run, values in runs.items()}


def spread(values: Sequence[float]) -> str:
    """Mean and 95 % interval, by Student's t."""
    if len(values) < 2:
        return f"{fmean(values):.3f}"
    half = T95[len(values)] * stdev(values) / len(values) ** 0.5
    return f"{fmean(values):.3f} [{fmean(values) - half:+.3f}, {fmean(values) + half:+.3f}]"


def table(experiment: dict[str, Any], lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Means over the steps by arm, and what they differ by, paired by seed."""
    unit = {arm: float(arm.rpartition("-")[2]) for arm in experiment["arms"]}
    names = ["format", "integer", "correctness"]
    found = {name: over_steps(lines, f"rewards/{name}/mean") for name in names}
    found["correctness"] = {
        run: value / unit[run[0]] for run, value in found["correctness"].items()
    }
    deviations = {name: over_steps(lines, f"rewards/{name}/std") for name in names}
    sums = {run: sum(each[run] for each in deviations.values()) for run in found["format"]}
    shares = {run: deviations["correctness"][run] / sums[run] for run in sums}
    own = over_steps(lines, "gdpo/correctness/advantage_share")
    # GRPO normalises the sum, in which a reward has its deviation's part; GDPO adds equal parts.
    part = {run: own[run] if run[0].startswith("gdpo") else shares[run] for run in sums}
    columns = {**found, "correctness's part of the advantage": part}
    yield f"| arm | seeds | {' | '.join(columns)} |"
    yield "|" + "---|" * (len(columns) + 2)
    for arm in experiment["arms"]:
        runs = [run for run in sorted(sums) if run[0] == arm]
        cells = (spread([values[run] for run in runs]) for values in columns.values() if runs)
        yield f"| {arm.replace('-', ' ×')} | {len(runs)} | {' | '.join(cells)} |"
    pairs = [(f"gdpo-{u}", f"grpo-{u}") for u in (1, 10)] + [
        (f"{e}-10", f"{e}-1") for e in ("gdpo", "grpo")
    ]
    for first, second in pairs:
        seeds = sorted({s for a, s in sums if a == first} & {s for a, s in sums if a == second})
        differences = (
            spread([values[first, seed] - values[second, seed] for seed in seeds])
            for values in columns.values()
            if seeds
        )
        label = f"{first.replace('-', ' ×')} − {second.replace('-', ' ×')}"
        yield f"| {label} | {len(seeds)} | {' | '.join(differences)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", type=Path, help="the YAML file")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run later")
    parser.add_argument("--table", action="store_true", help="print what is done; train nothing")
    options = parser.parse_args()
    name = options.experiment.stem
    experiment = yaml.safe_load(options.experiment.read_text(encoding="utf-8"))
    if not options.table:
        run_left(name, experiment, time.time() + 60 * options.minutes)
    print("\n".join(table(experiment, read(ROOT / f"docs/evidence/{name}.jsonl"))))


if __name__ == "__main__":
    main()
