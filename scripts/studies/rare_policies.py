"""Make the policies of docs/evidence/rare.md, which hardly ever give a tool call its form.

    python scripts/studies/rare_policies.py        # some minutes on one core

The toolbox's tiny policy, with demonstrations whose form is right in 3, 1 and 0.3 % of the answers,
in runs/rare/policy-RATE, where there is none; policy.json beside each holds its shares on held-out
prompts. docs/evidence/rare_before.json counts the answers to each prompt that have the form.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from evidence import EVIDENCE
from page import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

from gdpo_verl.lab.files import write_text
from gdpo_verl.lab.policy import evaluate, train
from gdpo_verl.lab.policy.model import make_model, train_tokenizer
from gdpo_verl.lab.policy.pretrained import save
from gdpo_verl.lab.policy.tasks import TASKS, Settings

TASK = TASKS["toolbox"]
RATES = {"3": 0.03, "1": 0.01, "0.3": 0.003}
SEED = 0
EVALUATED = 2048  # answers, at temperature 1
PROMPTS = 128
ANSWERS = 32  # to each of them


def make(folder: Path, rate: float) -> None:
    tokenizer = train_tokenizer(TASK, SEED, vocabulary=Settings.vocabulary)
    examples = list(islice(TASK.held_out(SEED), Settings.evaluated))
    settings = Settings(flawed_format=1 - rate)
    torch.manual_seed(SEED)
    model = make_model(tokenizer)
    train(TASK, model, tokenizer, settings, seed=SEED)
    times = EVALUATED // len(examples)
    found = [
        evaluate(TASK, model, tokenizer, examples, settings, sample=True) for _ in range(times)
    ]
    shares = {key: sum(each[key] for each in found) / times for key in found[0]}
    record = {"task": "toolbox", "seed": SEED, "settings": asdict(settings), "sampled": shares}
    save(folder, model, tokenizer, record)
    print(f"{folder.name}: {shares}", flush=True)


def right_forms(folder: Path) -> list[int]:
    """Count the answers to each of the first held-out prompts that have the form."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(SEED)
    counts = []
    for example in islice(TASK.held_out(SEED), PROMPTS):
        asked = [example] * ANSWERS
        found = evaluate(TASK, model, tokenizer, asked, Settings(), sample=True)
        counts.append(round(found["format"] * ANSWERS))
    return counts


def main() -> None:
    torch.set_num_threads(1)  # sums over threads decide the last bits of the weights
    counts = {}
    for name, rate in RATES.items():
        folder = ROOT / "runs/rare" / f"policy-{name}"
        if not folder.exists():
            make(folder, rate)
        counts[name] = right_forms(folder)
    before = {"answers": ANSWERS, "right": counts}
    write_text(EVIDENCE / "rare_before.json", json.dumps(before) + "\n")


if __name__ == "__main__":
    main()
