"""The public names and their signatures are those of the snapshot tests/public_names.txt."""

import importlib
import inspect
from pathlib import Path

import gdpo_verl

SNAPSHOT = Path(__file__).parent / "public_names.txt"
# The names of docs/api.md, except those for which TRL or ms-swift must be installed. Other names in
# these modules may change at any time.
PUBLIC = {
    "gdpo_verl": gdpo_verl.__all__,
    "gdpo_verl.advantage": ["Decomposition"],
    "gdpo_verl.conformance": ["assert_conforms", "check"],
    "gdpo_verl.rewards": ["Component", "declared_components", "declares"],
    "gdpo_verl.rewards.code": ["compute_score", "parse_ground_truth"],
    "gdpo_verl.rewards.derived": ["rank", "relative_length"],
    "gdpo_verl.rewards.gsm8k": ["compute_score", "parse_ground_truth"],
    "gdpo_verl.rewards.instructions": ["compute_score", "parse_ground_truth"],
    "gdpo_verl.rewards.length": ["length_reward"],
    "gdpo_verl.rewards.math_length": ["compute_score", "parse_ground_truth"],
    "gdpo_verl.rewards.tool_call": [
        "compute_score",
        "correctness_reward",
        "format_reward",
        "parse_ground_truth",
    ],
}


def public_names():
    """Return a line for each public name: its module, and its signature if it can be called."""
    lines = []
    for module_name, names in PUBLIC.items():
        module = importlib.import_module(module_name)
        for name in names:
            value = getattr(module, name)
            signature = str(inspect.signature(value)) if callable(value) else ""
            lines.append(f"{module_name}.{name}{signature}")
    return lines


def test_public_names_are_those_of_the_snapshot():
    """Announce a changed signature in CHANGELOG.md, and then write the snapshot again.

    PYTHONPATH=tests python -c "import test_public_names as names; names.write()"
    """
    assert gdpo_verl.__version__.startswith("0.")
    assert public_names() == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def write():
    SNAPSHOT.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
