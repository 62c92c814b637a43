"""Make the policy of docs/evidence/q2.md and q3.md: sums of which most are wrong.

    python scripts/studies/sums_policy.py      # ten minutes on one core

The result is wrong in 90 % of its demonstrations. It is written to runs/q2/sums-policy unless that
exists.
"""

from __future__ import annotations

from dataclasses import replace

from gdpo_verl.recipes.gsm8k.policy import TASK
from page import ROOT

from gdpo_verl.lab.policy import make_policy


def main() -> None:
    settings = replace(TASK.settings, flawed_content=0.9)
    task = replace(TASK, name="sums, mostly wrong", settings=settings, exact_band=(0, 1))
    record = make_policy(ROOT / "runs/q2/sums-policy", task)
    print(record["sampled"])


if __name__ == "__main__":
    main()
