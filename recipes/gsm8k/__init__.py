"""Tasks with whole numbers: GSM8K and Reasoning Gym, for the same three rewards."""

from gdpo_verl.lab.tasks.catalog import DataSet

DATA_SETS = {
    "gsm8k": DataSet(f"{__name__}.rows", 512, shots=True),
    **dict.fromkeys(
        ("reasoning-gym", "short-sums", "gsm-symbolic"),
        DataSet(f"{__name__}.reasoning_gym", 512, source="own", shots=True, several=True),
    ),
}
