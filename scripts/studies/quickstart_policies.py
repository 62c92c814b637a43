"""Make the ten policies of docs/evidence/quickstart.md.

    python scripts/studies/quickstart_policies.py       # about 15 minutes on one core

These are the toolbox's tiny policies, with demonstrations whose format is right in 4 % of the
responses. The weights and the demonstrations of each have their own seed. They are written to
runs/quickstart_seeds/policy-SEED unless they exist.
"""

from __future__ import annotations

from dataclasses import replace

from gdpo_verl.recipes.toolbox import policy as toolbox
from page import ROOT

from gdpo_verl.lab.policy import make_policy
from gdpo_verl.lab.policy.task import Settings

TASK = replace(toolbox.TASK, name="toolbox, rare format", format_band=(0, 1), exact_band=(0, 1))


def main() -> None:
    settings = Settings(flawed_format=0.96)
    for seed in range(1, 11):
        folder = ROOT / "runs/quickstart_seeds" / f"policy-{seed}"
        if not folder.exists():
            record = make_policy(folder, TASK, seed=seed, settings=settings)
            print(f"{folder.name}: {record['sampled']} in {record['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
