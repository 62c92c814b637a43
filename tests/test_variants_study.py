"""The study's advantages over seeds are the library's, one seed at a time."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from gdpo_verl.advantage import decompose, find_variant, grpo_scalars

ROOT = Path(__file__).parents[1]
STUDY: dict[str, Any] = runpy.run_path(str(ROOT / "scripts/variants_study.py"))
SEEDS, PROMPTS, GROUP = 6, 4, 5
OURS = {
    "GDPO": ("gdpo", {}),
    "DVAO": ("dvao", {}),
    "SA-MRPO": ("sa_mrpo", {}),
    "DARA": ("dara", {}),
    "DARA, symmetric": ("dara", {"symmetric": True}),
    "GD²PO": ("gd2po", {}),
    "GD²PO, hard": ("gd2po", {"hard": True}),
    "SAW": ("saw", {}),
    "CorrGRPO": ("corr_grpo", {}),
    "MO-GRPO": ("mo_grpo", {}),
    "RVPO": ("rvpo", {}),
    "GDPO, gate": ("gdpo", {}),
}


def rewards_of_seeds() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 3, (SEEDS, PROMPTS, GROUP, 3), generator=generator).double()
    rewards[::2, 1, :, 0] = 1.0  # a reward that is constant in one group of every second seed
    return rewards


@pytest.mark.parametrize("method", OURS)
def test_a_method_is_the_library_s_for_each_seed(method: str) -> None:
    rewards, ranges = rewards_of_seeds(), [(0.0, 2.0)] * 3
    name, settings = OURS[method]
    found = (STUDY["METHODS"] | STUDY["OUTCOME"])[method](
        rewards, torch.tensor(ranges, dtype=torch.float64)
    )
    variant = find_variant(name)
    for seed in range(SEEDS):
        rows = rewards[seed].reshape(-1, 3)
        expected = decompose(
            rows,
            [row // GROUP for row in range(len(rows))],
            torch.ones(len(rows)),
            whiten="sequence" if variant.whiten == "token" else None,
            variant=variant.with_settings(settings) if settings else variant,
            ranges=ranges,
            gate=0 if "gate" in method else None,
        ).advantage
        torch.testing.assert_close(found[seed].reshape(-1), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("scale", [True, False], ids=["GRPO", "Dr.GRPO"])
def test_the_controls_are_the_library_s(scale: bool) -> None:
    rewards = rewards_of_seeds()
    found = STUDY["grpo"](rewards, scale)
    rows = rewards.reshape(-1, 3)
    expected = grpo_scalars(rows, [row // GROUP for row in range(len(rows))], scale=scale)
    torch.testing.assert_close(found.reshape(-1), expected, atol=1e-9, rtol=0)


def test_the_page_s_part_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{STUDY['BEGIN']}\nold\n{STUDY['END']}\nafter\n", encoding="utf-8")
    STUDY["write"](page, ["new"])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert ("new" in text, "old" in text) == (True, False)


def test_training_makes_a_policy_better_and_is_the_same_twice() -> None:
    task = next(STUDY["tasks"]())
    runs = [
        STUDY["train"](task, STUDY["METHODS"]["GDPO"], "SGD", 4, steps) for steps in (1, 60, 60)
    ]
    assert float((runs[1].mean - runs[0].mean).min()) > 0.1
    assert torch.equal(runs[1].mean, runs[2].mean)
