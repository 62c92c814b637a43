"""TRL's own `GRPOTrainer` trains a step on given rewards, and its advantages are ours.

TRL writes a table of each step's completions: the prompts, the rewards that it received (float32)
and the advantages that it gave. The tests read the table and nothing else of TRL.

verl 0.9.1 imports from any TRL that it finds a class which TRL 1.16 no longer has, and then cannot
train. So TRL lies beside the packages of the environment, where only `trl_step.py` sees it:

    python -m pip install --no-deps --target "$(python -c 'import sys; print(sys.prefix)')/trl" \
        trl==1.16.0
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from conftest import made_once
from torch import Tensor

from gdpo_verl import gdpo_advantages, grpo_advantages

TRL = Path(sys.prefix) / "trl"
ROOT = Path(__file__).parents[1]
NAN = math.nan
Rows = list[list[Any]]  # numbers; None and NaN where not scored
GDPO = {"multi_objective_aggregation": "normalize_then_sum"}
WEIGHTS = [1.0, 0.25, -2.0]

pytestmark = pytest.mark.skipif(
    not (TRL / "trl").is_dir(), reason=f"no TRL in {TRL}; the module's docstring says how to get it"
)


def random_rewards(seed: int) -> Rows:
    """Eight groups of four, three normal components that deviate by about 1, 30 and 0.1."""
    draw = random.Random(seed)
    # No mean far above its deviation: float32 would show more than the formulas do.
    return [[sigma * draw.gauss(2.0, 1.0) for sigma in (1.0, 30.0, 0.1)] for _ in range(32)]


PARTLY_SCORED: Rows = [
    # One component is scored in a single row.
    [1.0, None, 0.5],
    [0.0, 3.0, 0.25],
    [1.0, None, 0.0],
    [0.0, NAN, 2.0],
    # One component is constant, another is scored nowhere.
    [1.0, 4.0, None],
    [NAN, 4.0, NAN],
    [2.0, 4.0, None],
    [4.0, 4.0, NAN],
    # A row without any reward.
    [None, NAN, None],
    [3.0, -1.0, 0.0],
    [1.0, None, 1.0],
    [2.0, -2.0, None],
    # An ordinary group.
    [0.0, 5.0, 1.0],
    [1.0, 7.0, 1.0],
    [0.0, 7.0, 2.0],
    [1.0, 6.0, 3.0],
]
UNSCORED_ROW: Rows = [[1.0, 0.0], [0.0, 0.0], [None, NAN], [1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
TWO_GROUPS: Rows = [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]]
CANCELLING: Rows = [[6 * c - 3, 1 - c] for c in (1.0, 0.0, 1.0, 0.0)]
CONSTANTS: Rows = [[value] for value in (100.1, 77.7, 55.5, 33.3, 12.3, 99.9) for _ in range(7)]
FAR_FROM_ZERO: Rows = [[5000.0001], [5000.0], [5000.0001], [5000.0], [1.0], [0.0], [0.0], [0.0]]
SEEDS = range(3)


def step(rewards: Rows, group_size: int, **config: Any) -> dict[str, Any]:
    return {"rewards": rewards, "group_size": group_size, "config": config}


STEPS = {
    **{
        f"random {seed}": step(random_rewards(seed), 4, reward_weights=WEIGHTS, **GDPO)
        for seed in SEEDS
    },
    "partly scored": step(PARTLY_SCORED, 4, reward_weights=WEIGHTS, **GDPO),
    "two groups": step(TWO_GROUPS, 2, **GDPO),
    "unscored row": step(UNSCORED_ROW, 3, **GDPO),
    "nothing scored": step([[None], [NAN], [None], [None]], 2, **GDPO),
    "cancelling": step(CANCELLING, 4, **GDPO),
    "constants": step([*CONSTANTS, *([float(i == 0)] for i in range(7))], 7, **GDPO),
    "far from zero": step(FAR_FROM_ZERO, 4, **GDPO),
    "unscaled": step(random_rewards(0), 4, reward_weights=WEIGHTS, scale_rewards="none", **GDPO),
    # Only an evaluation may have groups of one.
    "groups of one": {
        **step([[50.0], [1.0], [0.0], [0.5]], 1, num_generations=2, num_generations_eval=1, **GDPO),
        "evaluate": True,
    },
    "training with groups of one": step([[50.0], [1.0], [0.0], [0.5]], 1, **GDPO),
    "one weight for two": step(TWO_GROUPS, 2, reward_weights=[1.0], **GDPO),
    "sum, partly scored": step(PARTLY_SCORED, 4, reward_weights=WEIGHTS),
    "sum, two groups": step(TWO_GROUPS, 2),
    "sum, unscaled": step(PARTLY_SCORED, 4, reward_weights=WEIGHTS, scale_rewards="none"),
}


@dataclass
class Table:
    """What TRL wrote about one step: its rewards (B, K) and advantages (B,), NaN where unscored."""

    prompts: list[str]
    rewards: Tensor
    advantages: Tensor

    def ours(self, function: Callable[..., Tensor] = gdpo_advantages, **settings: Any) -> Tensor:
        """Our advantages for TRL's rewards and prompts, float64, shape (B,)."""
        mask = torch.ones(len(self.prompts), 1)
        return function(self.rewards, self.prompts, mask, epsilon=1e-4, **settings)[:, 0]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def take_steps(out: Path) -> None:
        out.mkdir(exist_ok=True)
        (out / "steps.json").write_text(json.dumps(STEPS))
        program = Path(__file__).with_name("trl_step.py")
        output = run_beside_trl(str(program), str(out / "steps.json"), str(out))
        assert output.returncode == 0, output.stdout[-3000:] + output.stderr[-3000:]

    return made_once(tmp_path_factory, "trl", take_steps)


@pytest.fixture
def table(results: Path) -> Callable[[str], Table]:
    def read(name: str) -> Table:
        (path,) = (results / name / "completions").glob("*.parquet")
        columns = pq.read_table(path).to_pydict()
        components = [columns[f"component_{k}"] for k in range(len(STEPS[name]["rewards"][0]))]
        received = tensor(zip(*components, strict=True))
        # Nothing was lost on the way: what we compare with is what was given, in float32.
        given = tensor(STEPS[name]["rewards"]).float().double()
        torch.testing.assert_close(received, given, rtol=0, atol=0, equal_nan=True)
        advantages = torch.tensor(columns["advantage"], dtype=torch.float64)
        return Table(columns["prompt"], received, advantages)

    return read


def tensor(rows: Any) -> Tensor:
    return torch.tensor(
        [[NAN if value is None else value for value in row] for row in rows], dtype=torch.float64
    )


def run_beside_trl(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{TRL}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


# ---------------------------------------------------------------- where they agree

DECOUPLED = [*(f"random {seed}" for seed in SEEDS), "partly scored"]


@pytest.mark.parametrize("name", DECOUPLED)
def test_over_sequences_with_epsilon_1e_4_it_is_trl_times_a_known_factor(
    table: Callable[[str], Table], name: str
) -> None:
    # TRL divides the combined advantages by s + 1e-4, we by sqrt(s^2 + 1e-8), and nothing else
    # differs: what remains is TRL's float32, a few 1e-7 at advantages of 2, a few times more in a
    # group that happens to deviate little.
    trl = table(name)
    combined = trl.ours(weights=WEIGHTS, whiten="none")
    s = float(combined[~trl.rewards.isnan().all(dim=1)].std())
    factor = (s + 1e-4) / math.sqrt(s**2 + 1e-8)
    found = trl.ours(weights=WEIGHTS, whiten="sequence")
    torch.testing.assert_close(found, factor * trl.advantages, rtol=0, atol=1e-5)
    # sqrt(s^2 + 1e-8) is between s and s + 1e-4, so the factor is between 1 and 1 + 1e-4 / s.
    torch.testing.assert_close(found, trl.advantages, rtol=1e-4 / s, atol=1e-5)
    # The factor is seen, not lost in the tolerance.
    assert (found - trl.advantages).abs().max() > 5e-5


def test_the_worked_example_has_the_digits_of_the_page(table: Callable[[str], Table]) -> None:
    # Combined: 0.70711 and 1.41421, so s = sqrt(5/3) and (before the epsilons) sqrt(3/10) and
    # twice that, 0.54772 and 1.09545; the epsilons of both steps take 4e-5 and 9e-5.
    trl = table("two groups")
    expected = torch.tensor([0.54768, -0.54768, 1.09536, -1.09536]).double()
    torch.testing.assert_close(trl.advantages, expected, rtol=0, atol=5e-6)


def test_a_row_without_any_reward_is_zero_and_out_of_the_statistics_in_both(
    table: Callable[[str], Table],
) -> None:
    # Of the five others, three and two scored rows a group, the sums are ±1/sqrt(2), ±sqrt(3) and
    # 0: s = sqrt((1 + 6) / 4). The page's 0.53450 and 1.30920 are these less the epsilons.
    trl = table("unscored row")
    theirs = torch.tensor([0.53450, -0.53450, 0.0, 1.30920, -1.30920, 0.0]).double()
    torch.testing.assert_close(trl.advantages, theirs, rtol=0, atol=1e-5)
    expected = torch.tensor([0.53452, -0.53452, 0.0, 1.30931, -1.30931, 0.0]).double()
    torch.testing.assert_close(trl.ours(whiten="sequence"), expected, rtol=0, atol=2e-4)
    assert trl.advantages[2] == 0.0


@pytest.mark.parametrize("name", ["nothing scored", "groups of one"])
def test_with_nothing_to_compare_both_give_zero(table: Callable[[str], Table], name: str) -> None:
    trl = table(name)
    zeros = torch.zeros(4, dtype=torch.float64)
    assert torch.equal(trl.advantages, zeros)
    assert torch.equal(trl.ours(whiten="sequence"), zeros)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sum, two groups", {}),
        ("sum, partly scored", {"weights": WEIGHTS}),
        ("sum, unscaled", {"weights": WEIGHTS, "scale": False}),
    ],
)
def test_trl_summing_first_is_our_grpo_with_epsilon_1e_4(
    table: Callable[[str], Table], name: str, settings: dict[str, Any]
) -> None:
    trl = table(name)
    found = trl.ours(grpo_advantages, **settings)
    torch.testing.assert_close(found, trl.advantages, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one weight for two", "Number of reward weights (1) must match"),
        ("training with groups of one", "GRPO requires at least 2 generations per prompt"),
    ],
)
def test_trl_refuses(results: Path, name: str, message: str) -> None:
    assert message in (results / name / "error.txt").read_text()


# ---------------------------------------------------------------- where they differ


def test_cancelling_rewards_are_half_a_unit_in_trl_and_zero_here(
    table: Callable[[str], Table],
) -> None:
    # 6c - 3 deviates by 3.46410, 1 - c by 0.57735, and z is ±0.86603 before the epsilons e. They
    # leave 0.86603 e (1/0.57735 - 1/3.46410) = 1.25 e, which deviates by 1.44338 e, and TRL adds
    # another e: 1.25 / 2.44338.
    trl = table("cancelling")
    expected = torch.tensor([0.51159, -0.51159, 0.51159, -0.51159]).double()
    torch.testing.assert_close(trl.advantages, expected, rtol=0, atol=5e-3)
    ours = gdpo_advantages(trl.rewards, trl.prompts, torch.ones(4, 1), whiten="sequence")
    assert not ours.any()


def test_constant_groups_keep_their_rounding_in_trl_and_nothing_here(
    table: Callable[[str], Table],
) -> None:
    # Which constants are hit depends on the order of the sum; of six, some are.
    trl = table("constants")
    assert trl.advantages[: len(CONSTANTS)].abs().max() > 1e-3
    assert trl.ours(whiten="sequence")[: len(CONSTANTS)].abs().max() < 1e-15


def test_trl_rounds_rewards_to_float32_and_we_do_not(table: Callable[[str], Table]) -> None:
    # float32 has no number between 5000 and 5000.0005.
    trl = table("far from zero")
    assert trl.advantages[:4].abs().max() < 1e-6
    given = torch.tensor(FAR_FROM_ZERO, dtype=torch.float64)
    ours = gdpo_advantages(given, trl.prompts, torch.ones(8, 1), whiten="sequence", epsilon=1e-4)
    assert ours[:4, 0].abs().min() > 0.1


def test_trl_scales_decoupled_rewards_whatever_scale_rewards_says(
    table: Callable[[str], Table],
) -> None:
    trl = table("unscaled")
    assert torch.equal(trl.advantages, table("random 0").advantages)
    ours = trl.ours(weights=WEIGHTS, whiten="sequence", scale=False)
    assert (ours - trl.advantages).abs().max() > 0.1


@pytest.mark.slow
def test_verl_cannot_train_where_it_finds_this_trl() -> None:
    # Its FSDP engine prepares every model so. Once this works, TRL may simply be installed.
    program = """
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch
config = Qwen2Config(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                     num_attention_heads=2, num_key_value_heads=2)
apply_monkey_patch(Qwen2ForCausalLM(config), use_remove_padding=False)
"""
    output = run_beside_trl("-c", program)
    assert "cannot import name 'AutoModelForCausalLMWithValueHead' from 'trl'" in output.stderr
