"""Make the policies of docs/evidence/rare.md, which hardly ever give a tool call its form.

    python scripts/studies/rare_policies.py        # some minutes on one core

The toolbox's tiny policy, with demonstrations whose form is right in 3, 1 and 0.3 % of the answers,
in runs/rare/policy-RATE; policy.json beside each holds what it does on held-out prompts.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice

import torch
from page import ROOT

from gdpo_verl.lab.policy import evaluate, train
from gdpo_verl.lab.policy.model import make_model, train_tokenizer
from gdpo_verl.lab.policy.pretrained import save
from gdpo_verl.lab.policy.tasks import TASKS, Settings

RATES = {"3": 0.03, "1": 0.01, "0.3": 0.003}
SEED = 0
EVALUATED = 2048  # answers, at temperature 1


def main() -> None:
    task = TASKS["toolbox"]
    torch.set_num_threads(1)  # sums over threads decide the last bits of the weights
    tokenizer = train_tokenizer(task, SEED, vocabulary=Settings.vocabulary)
    examples = list(islice(task.held_out(SEED), Settings.evaluated))
    for name, rate in RATES.items():
        settings = Settings(flawed_format=1 - rate)
        torch.manual_seed(SEED)
        model = make_model(tokenizer)
        train(task, model, tokenizer, settings, seed=SEED)
        times = EVALUATED // len(examples)
        found = [
            evaluate(task, model, tokenizer, examples, settings, sample=True) for _ in range(times)
        ]
        shares = {key: sum(each[key] for each in found) / times for key in found[0]}
        record = {"task": "toolbox", "seed": SEED, "settings": asdict(settings), "sampled": shares}
        save(ROOT / "runs/rare" / f"policy-{name}", model, tokenizer, record)
        print(f"{name} %: {shares}", flush=True)


if __name__ == "__main__":
    main()
