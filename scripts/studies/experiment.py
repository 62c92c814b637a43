"""Train each arm of an experiment with each seed, and store the metrics of each run.

    python scripts/studies/experiment.py scripts/studies/pretrained.yaml    # the rest, seed by seed

Data and runs are in runs/NAME, the metrics in docs/evidence/NAME.jsonl.gz. When the script is
started again, it resumes: a finished run is not repeated. It needs scripts/setup.sh cpu data.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from evidence import EVIDENCE, read
from page import ROOT

KEPT = re.compile(
    r"(rewards|gdpo|val-core|val-aux)/.+|response_length/mean|actor/(entropy|grad_norm)|"
    r"timing_s/(step|gen|update_actor)"
)


def train_rest(name: str, experiment: dict[str, Any]) -> None:
    """Start the missing runs, all arms of a seed before the next seed."""
    # The processes of a run must also find an arm's estimator in experiment_rewards.py.
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts/studies"), "VERL_PLATFORM": "cpu"}

    def command(*words: str | Path) -> None:
        subprocess.run(
            [sys.executable, "-m", "gdpo_verl.lab.cli", *words], check=True, env=environment
        )

    done = read(name)
    for seed in experiment["seeds"]:
        for task, settings in experiment["tasks"].items():
            for arm, (recipe, *more) in settings["arms"].items():
                if seed in done.get(arm, ()):
                    continue
                work = ROOT / "runs" / name / task
                run = work.parent / f"{arm}-{seed}"
                if not (work / "data").exists():
                    command("prepare", *settings["prepare"], "--out", work / "data")
                policy = work / "policy"
                if isinstance(settings["policy"], str):  # one that a script has made
                    policy = ROOT / settings["policy"]
                elif not policy.exists():
                    command("make-policy", *settings["policy"], "--out", policy)
                overrides = [
                    *experiment["every"],
                    *settings.get("overrides", ()),
                    f"actor_rollout_ref.model.path='{policy}'",
                    f"data.train_files='{work / 'data/train.parquet'}'",
                    f"data.val_files='{work / 'data/validation.parquet'}'",
                    f"data.seed={seed}",
                    *more,
                ]
                if "rewards" in experiment:
                    path = ROOT / experiment["rewards"]
                    overrides.append(f"reward.custom_reward_function.path='{path}'")
                command("train", recipe, "--run", run, *overrides)
                # Stored only now, so that an interrupted run has no line and does not count as
                # finished.
                line = {"arm": arm, "seed": seed, **metrics(run / "metrics.jsonl")}
                with gzip.open(EVIDENCE / f"{name}.jsonl.gz", "at", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def metrics(path: Path) -> dict[str, Any]:
    """Read the steps of a run, and each stored metric at each step, None where it is missing."""
    steps = [json.loads(line) for line in path.open(encoding="utf-8")]
    names = dict.fromkeys(name for step in steps for name in step["data"] if KEPT.fullmatch(name))
    values: dict[str, list[float | None]] = {name: [] for name in names}
    for step in steps:
        for name in names:
            value = step["data"].get(name)
            values[name].append(None if value is None else round(value, 6))
    return {"steps": [step["step"] for step in steps], "metrics": values}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", type=Path, help="the YAML file")
    options = parser.parse_args()
    name = options.experiment.stem
    experiment = yaml.safe_load(options.experiment.read_text(encoding="utf-8"))
    train_rest(name, experiment)


if __name__ == "__main__":
    main()
