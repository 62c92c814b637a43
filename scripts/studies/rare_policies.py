"""Make the policies of docs/evidence/rare.md, whose tool calls rarely have the right format.

    python scripts/studies/rare_policies.py                          # some minutes on one core
    python scripts/studies/rare_policies.py --pretrained models/smollm2    # for one check

These are the toolbox's tiny policies, with demonstrations whose format is right in 3, 1 and 0.3 %
of the responses. They are written to runs/rare/policy-RATE unless they exist; policy.json in each
has its shares on held-out prompts. docs/evidence/rare_before.json counts the responses to each
prompt that have the format.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from evidence import EVIDENCE
from gdpo_verl.recipes.toolbox import policy as toolbox
from page import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.policy import evaluate, make_policy
from gdpo_verl.lab.policy.task import FINETUNING, Settings

TASK = replace(toolbox.TASK, name="toolbox, rare form", format_band=(0, 1), exact_band=(0, 1))
RATES = {"3": 0.03, "1": 0.01, "0.3": 0.003}
SEED = 0
PROMPTS = 128
ANSWERS = 32  # to each of them


def right_forms(folder: Path) -> list[int]:
    """Count the responses with the right format to each of the first held-out prompts."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(SEED)
    counts = []
    for example in islice(TASK.held_out(SEED), PROMPTS):
        examples = [example] * ANSWERS
        shares = evaluate(TASK, model, tokenizer, examples, Settings(), sample=True)
        counts.append(round(shares["format"] * ANSWERS))
    return counts


def make_pretrained(base: Path) -> None:
    """Teach a pretrained model the calls, with the right format in 1 % of the demonstrations."""
    settings = replace(
        Settings(**FINETUNING),
        flawed_format=1 - RATES["1"],
        threads=torch.get_num_threads(),
    )
    folder = ROOT / "runs/rare_pretrained/policy"
    record = make_policy(folder, TASK, seed=SEED, settings=settings, base=str(base))
    print(f"{folder}: {record['sampled']}")


def make_tiny() -> None:
    """Make the missing policy of each rate, and count its responses with the right format."""
    torch.set_num_threads(Settings.threads)
    counts = {}
    for name, rate in RATES.items():
        folder = ROOT / "runs/rare" / f"policy-{name}"
        if not folder.exists():
            settings = Settings(flawed_format=1 - rate, evaluated=2048)
            record = make_policy(folder, TASK, seed=SEED, settings=settings)
            print(f"{folder.name}: {record['sampled']}", flush=True)
        counts[name] = right_forms(folder)
    before = {"answers": ANSWERS, "right": counts}
    write_text(EVIDENCE / "rare_before.json", json.dumps(before) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--pretrained",
        type=Path,
        help="directory of a pretrained model; makes the policy for the check with it",
    )
    options = parser.parse_args()
    if options.pretrained:
        make_pretrained(options.pretrained)
    else:
        make_tiny()


if __name__ == "__main__":
    main()
