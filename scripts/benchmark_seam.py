"""The plug-in's cost in one step of verl's trainer, on a real TransferQueue.

    python scripts/benchmark_seam.py                        # the default sizes, about half an hour
    python scripts/benchmark_seam.py --size 1024x256 --repeats 3
    python scripts/benchmark_seam.py --part dump --size 10000x64
    python scripts/benchmark_seam.py --against OTHER        # another checkout of this repository

Timed is verl's own method (`--part`: `_compute_advantage`, `_log_rollout_data` or
`_compute_metrics`) in a Ray actor, where verl's trainer lives, too. One actor has loaded no
plug-in (VERL_USE_EXTERNAL_PLUGINS=none), the other has; both read the same rows from the same
queue, in turns. The first turn is not counted. A third takes the plug-in from the checkout
`--against`, whose columns are called "other".

grpo_vectorized    verl's faster GRPO, without the plug-in: what the others are divided by
control            the same with the plug-in: metrics, and no dumps
gdpo               with metrics, as a recipe has it, but without dumps
gdpo + dumps       with trainer.rollout_data_dir, too
gdpo - metrics     with algorithm.gdpo.metrics=false

For each, wall time and the actor's processor time, all of its threads: the median, the least, and
the ratio to the first line of the same turn (median and quartiles).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray

RECIPES = Path(__file__).parents[1] / "recipes"
SIZES = ["4096x1024", "65536x256"]  # rows x longest response
GROUP = 8
# Rows that one put writes; verl's agent loops write one session at a time.
PUT_ROWS = 512
BASE = "grpo_vectorized"
# By name: the estimator, algorithm.gdpo.metrics, dumps.
COLUMNS = {
    BASE: ("grpo_vectorized", True, False),
    "control": ("grpo_vectorized", True, False),
    "gdpo": ("gdpo", True, False),
    "gdpo + dumps": ("gdpo", True, True),
    "gdpo - metrics": ("gdpo", False, False),
}
PARTS = ("advantage", "dump", "metrics")


def recipe(name: str, directory: str) -> Any:
    import hydra
    from omegaconf import open_dict

    estimator, metrics, dumps = COLUMNS[name]
    with hydra.initialize_config_dir(str(RECIPES), version_base=None):
        config = hydra.compose("toolbox/gdpo")
    with open_dict(config):
        config.algorithm.adv_estimator = estimator
        config.algorithm.gdpo = {"metrics": metrics}
        config.trainer.rollout_data_dir = directory if dumps else None
    return config


class Tokenizer:
    """One character a token: what a tokenizer takes is the same in every column."""

    pad_token_id = 0

    def decode(self, ids: Any, *, skip_special_tokens: bool) -> str:
        return bytes(ids[ids != 0].tolist()).decode("ascii")


@ray.remote(num_cpus=1)
class Driver:
    """A process in which verl's default trainer does its part of a step."""

    def __init__(self, directory: str) -> None:
        import transfer_queue as tq

        self.directory = directory
        tq.init()
        self.trainers: dict[str, Any] = {}

    def fill(self, size: tuple[int, int]) -> None:
        """Put rows into the queue as verl's agent loops leave them, with log-probs."""
        import torch
        import transfer_queue as tq
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        rows, tokens = size
        generator = torch.Generator().manual_seed(0)
        lengths = torch.randint(tokens // 4, tokens + 1, (rows,), generator=generator).tolist()
        components = torch.randint(0, 4, (rows, 2), generator=generator).tolist()
        for start in range(0, rows, PUT_ROWS):
            several = range(start, min(start + PUT_ROWS, rows))
            fields = [row(index, lengths[index], components[index]) for index in several]
            keys = [key(index) for index in several]
            tq.kv_batch_put(
                keys=keys,
                partition_id="train",
                fields=list_of_dict_to_tensordict(fields),
                tags=[tag(lengths[index]) for index in several],
            )

    def use(self, size: tuple[int, int]) -> None:
        """Take the rows that are in the queue as the batch."""
        import transfer_queue as tq
        from transfer_queue import KVBatchMeta

        tags = tq.kv_list("train")["train"]
        keys = [key(index) for index in range(size[0])]
        self.batch = KVBatchMeta(
            partition_id="train", keys=keys, tags=[dict(tags[key]) for key in keys]
        )

    def clear(self) -> None:
        import transfer_queue as tq

        tq.kv_clear(keys=self.batch.keys, partition_id="train")

    def seconds(self, name: str, part: str) -> tuple[float, float]:
        """Wall and processor time of one part of a step."""
        if name not in self.trainers:
            self.trainers[name] = self.trainer(name)
        trainer = self.trainers[name]
        run: dict[str, Callable[[], Any]] = {
            "advantage": lambda: trainer._compute_advantage(self.batch, {}),
            "dump": lambda: self.dump(trainer),
            "metrics": lambda: trainer._compute_metrics(self.batch, {}, {"step": 1.0}, 1, 0),
        }
        if part == "dump":
            run["advantage"]()
        wall, cpu = time.perf_counter(), time.process_time()
        run[part]()
        return time.perf_counter() - wall, time.process_time() - cpu

    def dump(self, trainer: Any) -> None:
        trainer._init_dump_executor()
        trainer._log_rollout_data(self.batch, {}, self.directory)
        trainer._shutdown_dump_executor()

    def trainer(self, name: str) -> Any:
        """verl's trainer with nothing set up but what the parts read."""
        from verl.trainer.ppo.v1 import PPOTrainerSync

        trainer = object.__new__(PPOTrainerSync)
        trainer.config = recipe(name, self.directory)
        trainer.tokenizer = Tokenizer()
        trainer.use_critic, trainer.global_steps = False, 1
        trainer._rollout_moe_lb_metrics_accumulator = None
        trainer._get_n_gpus_for_throughput = lambda: 1
        return trainer


def key(index: int) -> str:
    # A uid as long as verl's uuid4, eight sessions a prompt, one output each.
    return f"{index // GROUP:08x}-0000-4000-8000-000000000000_{index % GROUP}_0"


def row(index: int, length: int, components: list[int]) -> dict[str, Any]:
    import torch

    form, correctness = float(components[0] > 0), float(components[1])
    score = torch.zeros(length)
    score[-1] = form + correctness
    return {
        "uid": key(index).rsplit("_", 2)[0],
        "prompts": torch.full((16,), 65),
        "responses": torch.full((length,), 66),
        "response_mask": torch.ones(length, dtype=torch.int64),
        "rm_scores": score,
        "old_log_probs": torch.full((length,), -0.5),
        "rollout_log_probs": torch.full((length,), -0.5),
        "num_turns": 2,
        "reward_model": {"ground_truth": "[]", "style": "rule"},
        "extra_fields": {
            "reward_extra_info": {
                "score": form + correctness,
                "format": form,
                "correctness": correctness,
                "parse_error": int(not form),
            },
            "min_global_steps": 0,
            "max_global_steps": 0,
            "turn_scores": [],
            "tool_rewards": [],
        },
    }


def tag(length: int) -> dict[str, Any]:
    lengths = {"prompt_len": 16, "response_len": length, "seq_len": 16 + length}
    steps = {"global_steps": 1, "min_global_steps": 0, "max_global_steps": 0}
    return {"status": "success", **lengths, **steps}


def drivers(directory: str, against: str | None) -> dict[str, Any]:
    """An actor for each prefix of a column's name, and the one without the plug-in."""
    variables = {
        BASE: {"VERL_USE_EXTERNAL_PLUGINS": "none"},
        "": {"VERL_USE_EXTERNAL_PLUGINS": "auto"},
    }
    if against:
        variables["other "] = variables[""] | {"PYTHONPATH": str(Path(against).resolve())}
    return {
        prefix: Driver.options(runtime_env={"env_vars": env}).remote(directory)
        for prefix, env in variables.items()
    }


def in_turns(
    actors: dict[str, Any], columns: list[str], args: argparse.Namespace
) -> dict[str, list[tuple[float, float]]]:
    """Wall and processor seconds of each column, by turn."""
    runs = {BASE: (actors[BASE], BASE)}
    for prefix, actor in actors.items():
        if prefix != BASE:
            runs |= {prefix + name: (actor, name) for name in columns}
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in runs}
    for turn in range(args.repeats + 1):
        for label, (actor, name) in runs.items():
            measured = wall, cpu = ray.get(actor.seconds.remote(name, args.part))
            print(f"  turn {turn}  {label:20} wall {wall:8.3f} s  CPU {cpu:8.3f} s", flush=True)
            if turn:
                times[label].append(measured)
    return times


def report(times: dict[str, list[tuple[float, float]]]) -> None:
    for clock, kind in enumerate(("wall", "CPU")):
        base = [turn[clock] for turn in times[BASE]]
        for name, turns in times.items():
            seconds = [turn[clock] for turn in turns]
            ratios = [own / other for own, other in zip(seconds, base, strict=True)]
            low, middle, high = statistics.quantiles(ratios * 2, n=4, method="inclusive")
            print(
                f"  {kind:4} {name:20} {statistics.median(seconds):8.3f} s, least "
                f"{min(seconds):8.3f}   x {middle:5.2f} ({low:.2f} to {high:.2f}), least "
                f"{min(seconds) / min(base):5.2f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", nargs="*", default=SIZES, metavar="ROWSxTOKENS")
    ours = [name for name in COLUMNS if name != BASE]
    parser.add_argument("--columns", nargs="*", default=ours, choices=ours)
    parser.add_argument("--against", metavar="CHECKOUT")
    parser.add_argument("--part", choices=PARTS, default="advantage")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count")
    parser.add_argument("--units", type=int, default=1, help="the queue's storage units")
    args = parser.parse_args()

    ray.init(num_cpus=32, include_dashboard=False, log_to_driver=False)
    os.environ["VERL_USE_EXTERNAL_PLUGINS"] = "none"
    import transfer_queue as tq

    queue = recipe(BASE, "").transfer_queue
    queue.backend.SimpleStorage.num_data_storage_units = args.units
    queue.backend.SimpleStorage.total_storage_size = None
    tq.init(queue)
    with tempfile.TemporaryDirectory() as directory:
        actors = drivers(directory, args.against)
        for text in args.size:
            size = tuple(int(number) for number in text.split("x"))
            ray.get(actors[BASE].fill.remote(size))
            ray.get([actor.use.remote(size) for actor in actors.values()])
            print(f"\n{args.part}: {size[0]:,} rows of at most {size[1]:,} tokens", flush=True)
            report(in_turns(actors, args.columns, args))
            ray.get(actors[BASE].clear.remote())
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
