"""Tasks with whole numbers: GSM8K and Reasoning Gym, for the same three rewards."""

from types import ModuleType

from gdpo_verl.lab.tasks.data_set import DataSet


def _rows() -> ModuleType:
    from gdpo_verl.recipes.gsm8k import rows

    return rows


def _reasoning_gym() -> ModuleType:
    from gdpo_verl.recipes.gsm8k import reasoning_gym

    return reasoning_gym


_GENERATED = DataSet(_reasoning_gym, 512, source="own", shots=True, several=True)
DATA_SETS = {
    "gsm8k": DataSet(_rows, 512, shots=True),
    "reasoning-gym": _GENERATED,
    "short-sums": _GENERATED,
    "gsm-symbolic": _GENERATED,
}
