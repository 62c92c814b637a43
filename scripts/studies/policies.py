"""Make the policies of a study, which has the name of its YAML file.

    python scripts/studies/policies.py rare               # some minutes on one core
    python scripts/studies/policies.py rare_pretrained    # after gdpo-verl make-policy smollm2
    python scripts/studies/policies.py quickstart_seeds   # about 15 minutes
    python scripts/studies/policies.py q2                 # ten minutes
    python scripts/studies/policies.py relative           # some minutes

The policies are written to runs/STUDY unless they exist; policy.json in each has its shares on
held-out prompts.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from evidence import EVIDENCE
from gdpo_verl.recipes.gsm8k.policy import TASK as SUMS
from gdpo_verl.recipes.toolbox.policy import TASK as TOOLBOX
from page import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.policy import evaluate, make_policy
from gdpo_verl.lab.policy.task import FINETUNING, PolicyTask
from gdpo_verl.lab.tasks.examples import Example
from gdpo_verl.rewards import math_length
from gdpo_verl.rewards.thought import END_THINK, THINK


def make(folder: Path, task: PolicyTask, seed: int = 0, base: str | None = None) -> None:
    """Make a policy with the settings of its task, unless the folder exists."""
    if folder.exists():
        return
    # The responses may be right less often than those of the policies that users train.
    task = replace(task, format_band=(0, 1), exact_band=(0, 1))
    record = make_policy(folder, task, seed=seed, settings=task.settings, base=base)
    print(f"{folder}: {record['sampled']} in {record['seconds']} s", flush=True)


# ---------------------------------------------------------------- a rare format

RATES = {"3": 0.03, "1": 0.01, "0.3": 0.003}
PROMPTS = 128
ANSWERS = 32  # to each of them


def with_rare_format(share: float, **settings: Any) -> PolicyTask:
    """Return the toolbox with the right format in a share of the demonstrations."""
    chosen = replace(TOOLBOX.settings, flawed_format=1 - share, **settings)
    return replace(TOOLBOX, name="toolbox, rare format", settings=chosen)


def quickstart_seeds(runs: Path) -> None:
    """Make ten policies, whose weights and demonstrations each have their own seed."""
    for seed in range(1, 11):
        make(runs / f"policy-{seed}", with_rare_format(0.04), seed)


def rare_pretrained(runs: Path) -> None:
    """Teach a pretrained model the calls."""
    settings = {**FINETUNING, "threads": torch.get_num_threads()}
    task = with_rare_format(RATES["1"], **settings)
    make(runs / "policy", task, base=str(ROOT / "models/smollm2"))


def rare(runs: Path) -> None:
    """Make a policy for each rate, and count its responses with the right format."""
    counts = {}
    for name, rate in RATES.items():
        task = with_rare_format(rate, evaluated=2048)
        folder = runs / f"policy-{name}"
        make(folder, task)
        counts[name] = right_formats(folder, task)
    before = {"answers": ANSWERS, "right": counts}
    write_text(EVIDENCE / "rare_before.json", json.dumps(before) + "\n")


def right_formats(folder: Path, task: PolicyTask) -> list[int]:
    """Count the responses with the right format to each of the first held-out prompts."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.set_num_threads(task.settings.threads)
    torch.manual_seed(0)
    counts = []
    for example in islice(task.held_out(0), PROMPTS):
        examples = [example] * ANSWERS
        shares = evaluate(task, model, tokenizer, examples, task.settings, sample=True)
        counts.append(round(shares["format"] * ANSWERS))
    return counts


# ---------------------------------------------------------------- sums

LIMIT = 32  # tokens, more than any response has
BOX = "\\boxed{"


def q2(runs: Path) -> None:
    """Make a policy whose sums are mostly wrong, as in 90 % of its demonstrations."""
    settings = replace(SUMS.settings, flawed_content=0.9)
    make(runs / "sums-policy", replace(SUMS, name="sums, mostly wrong", settings=settings))


def relative(runs: Path) -> None:
    """Make a policy that writes results of sums in a box.

    Half of its demonstrations think in one step and the others in all steps, so that correct
    responses differ in length.
    """
    task = replace(
        SUMS,
        name="boxed sums",
        phrases=(*SUMS.phrases, BOX),
        demonstrate=demonstrate,
        grade=grade,
        settings=replace(SUMS.settings, steps=1600, flawed_format=0.05, flawed_content=0.1),
    )
    make(runs / "policy", task)


def demonstrate(
    example: Example, rng: random.Random, flawed_format: float, flawed_content: float
) -> str:
    """Answer a sum, ``9 + 8 - 7``, with its last step or all steps before the box."""
    first, *rest = example.extra_info["expression"].split()
    result = int(first)
    steps = []
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        steps.append(f"{result} {sign} {number}")
        result += int(number) if sign == "+" else -int(number)
    if rng.random() < 0.5:
        steps = steps[-1:]
    if rng.random() < flawed_content:
        result = max(0, result + rng.choice([-2, -1, 1, 2]))
    end = "" if rng.random() < flawed_format else "}"
    return f"{THINK} {' = '.join(steps)} {END_THINK}\n{BOX}{result}{end}"


def grade(answer: str, ground_truth: str) -> tuple[bool, bool]:
    """Return whether a response has a box, and whether the box is right."""
    length = {"response_length": 1}
    rewards = math_length.compute_score("", answer, ground_truth, length, limit=LIMIT)
    return BOX in answer, rewards["correctness"] == 1


STUDIES = {
    study.__name__: study for study in (rare, rare_pretrained, quickstart_seeds, q2, relative)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=STUDIES)
    name = parser.parse_args().study
    STUDIES[name](ROOT / "runs" / name)


if __name__ == "__main__":
    main()
