"""GDPO's advantages as pure functions of rewards, groups and masks.

GDPO (https://arxiv.org/abs/2601.05242) normalises each reward component within its group (Eq. 4),
adds the results with their weights (Eq. 5 and 7), and whitens the sum (normalises it over the
batch, Eq. 6). GRPO, the baseline, adds the components first and normalises the sum. A group is the
set of responses to one prompt.

Dimensions: B responses, K reward components, T tokens. The arithmetic on responses is done in
float64 on any device. NaN in a reward means *not scored*.
"""

from __future__ import annotations

from gdpo_verl.advantage.conditions import apply_conditions, check_conditions
from gdpo_verl.advantage.decomposition import Credit, Decomposition, EstimatorSettings, decompose
from gdpo_verl.advantage.gate import Gate
from gdpo_verl.advantage.gdpo import gdpo_advantages
from gdpo_verl.advantage.groups import Groups, factorize_groups, group_normalize
from gdpo_verl.advantage.grpo import grpo_advantages
from gdpo_verl.advantage.tokens import MaskedRows
from gdpo_verl.advantage.turns import TurnDecomposition, Turns, decompose_turns, to_go
from gdpo_verl.advantage.variant import GDPO, Variant
from gdpo_verl.advantage.variants import VARIANTS, find_variant, validate_variant
from gdpo_verl.advantage.whitening import NOISE_FLOOR, Whiten

__all__ = [
    "GDPO",
    "NOISE_FLOOR",
    "VARIANTS",
    "Credit",
    "Decomposition",
    "EstimatorSettings",
    "Gate",
    "Groups",
    "MaskedRows",
    "TurnDecomposition",
    "Turns",
    "Variant",
    "Whiten",
    "apply_conditions",
    "check_conditions",
    "decompose",
    "decompose_turns",
    "factorize_groups",
    "find_variant",
    "gdpo_advantages",
    "group_normalize",
    "grpo_advantages",
    "to_go",
    "validate_variant",
]
