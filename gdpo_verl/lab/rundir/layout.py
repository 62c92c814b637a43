"""The names of the files and folders that `gdpo-verl train` writes into a run directory."""

METRICS = "metrics.jsonl"  # verl's `file` tracker writes one line for each step
ROLLOUTS = "rollouts"  # trainer.rollout_data_dir, with files <step>.jsonl
VALIDATION = "validation"  # trainer.validation_data_dir, with files <step>.jsonl
CHECKPOINTS = "checkpoints"  # trainer.default_local_dir
CONFIG = "config.yaml"  # the resolved configuration of the last start
LAUNCH = "launch.json"  # recipe, overrides, version, and digests of the data and the model
LOG = "train.log"  # everything that verl, Ray and vLLM print
LOCK = "lock"  # locked while the run trains
DONE = "done"  # exists once the run has finished
