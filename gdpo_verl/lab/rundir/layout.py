"""The names of a run directory's parts, as `gdpo-verl train` leaves them."""

METRICS = "metrics.jsonl"  # verl's `file` tracker, a line a step
ROLLOUTS = "rollouts"  # of trainer.rollout_data_dir, <step>.jsonl
VALIDATION = "validation"  # of trainer.validation_data_dir, <step>.jsonl
CHECKPOINTS = "checkpoints"  # of trainer.default_local_dir
CONFIG = "config.yaml"  # the resolved configuration of the last start
LAUNCH = "launch.json"  # recipe, overrides, version, and digests of what is learned from
LOG = "train.log"  # everything that verl, Ray and vLLM print
LOCK = "lock"  # held while the run is trained
DONE = "done"  # there when it has come to its end
