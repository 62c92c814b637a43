"""Record a GRPO step of verl, and all state of verl that a plug-in could have changed.

    VERL_USE_EXTERNAL_PLUGINS=auto|none python tests/unnoticed.py DIRECTORY

`test_unnoticed` runs this program with and without the plug-in, and compares the results. The
trainer, the replay buffer, the agent loop worker, the reward worker and the TransferQueue are
verl's own; only the language model is replaced, by `Answers`. DIRECTORY contains `policy/` (a
tokenizer and a configuration), `rows.parquet`, `reward.py` and `exits.py`. The results are written
to `<auto|none>.json` there.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import json
import logging
import os
import pickle
import random
import re
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from neighbours import METHODS
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from waiting import start_ray

PROMPTS, SESSIONS = 4, 3
found: dict[str, Any] = {}


class Answers(AgentLoopBase):
    """An agent loop with fixed texts, which differ by session.

    Some sessions fail, among them all sessions of the last prompt.
    """

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        prompt, session = kwargs["index"], kwargs["session_id"]
        if (prompt, session) == (1, 2) or prompt == PROMPTS - 1:
            raise ValueError(f"no answer to prompt {prompt} in session {session}")
        answer = self.tokenizer.encode(f"{prompt} " + "call " * (session + 1))
        return AgentLoopOutput(
            prompt_ids=self.tokenizer.encode(kwargs["raw_prompt"][0]["content"]),
            response_ids=answer,
            response_mask=[1] * len(answer),
            response_logprobs=[-0.5 - session] * len(answer),
            num_turns=2,
            metrics={},
            extra_fields={"min_global_steps": 0, "max_global_steps": 0},
        )


def settings(directory: Path, reward: str, *more: str) -> Any:
    import hydra

    overrides = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": directory / "rows.parquet",
        "data.val_files": directory / "rows.parquet",
        "data.shuffle": "false",
        "data.train_batch_size": PROMPTS,
        "data.dataloader_num_workers": 0,
        "data.max_prompt_length": 64,
        "data.max_response_length": 64,
        "actor_rollout_ref.model.path": directory / "policy",
        "actor_rollout_ref.actor.ppo_mini_batch_size": PROMPTS,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": PROMPTS,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": PROMPTS,
        "actor_rollout_ref.rollout.n": SESSIONS,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.val_kwargs.n": 1,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "actor_rollout_ref.rollout.agent.default_agent_loop": "answers",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": directory / "agent_loop.yaml",
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": directory / reward,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": 1,
        "trainer.logger": "[console]",
        "trainer.val_before_train": "false",
        "trainer.rollout_data_dir": directory / "rollouts",
        "trainer.validation_data_dir": directory / "validation",
        "trainer.default_local_dir": directory / "checkpoints",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        given = [f"{key}={value}" for key, value in overrides.items()]
        return hydra.compose("ppo_trainer", [*given, *more])


def keep(name: str, run: Callable[[], Any]) -> Any:
    """Record under `name` what `run` returns or raises."""
    try:
        result = run()
        found[name] = plain(result)
    except BaseException as error:
        result = None
        text = re.sub(r"0x[0-9a-f]+|/site-packages/\S+", "...", str(error))
        found[name] = f"raised {type(error).__name__}: {text}"
    return result


def plain(value: Any) -> Any:
    """Return a value in a form for JSON, with tensors and floats to the last bit."""
    import torch

    if isinstance(value, torch.Tensor):
        rows = value.unbind() if value.is_nested else [value]
        return [[str(row.dtype), plain(row.flatten().tolist())] for row in rows]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (str, int, bool)) else repr(value)


def described(value: Any) -> str:
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__name__


def owners() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each module and class of verl with its members."""
    for module_name, module in sorted(sys.modules.items()):
        # verl's own loop over plug-ins leaves its variables in the module `verl`.
        if module_name.startswith("verl."):
            yield module_name, vars(module)
            for name, value in vars(module).items():
                if isinstance(value, type) and value.__module__ == module_name:
                    yield f"{module_name}.{name}", vars(value)


def registries() -> dict[str, dict[str, str]]:
    """Return every dict in a module or class of verl, with descriptions of its values."""
    tables = {}
    for owner, members in owners():
        for name, value in members.items():
            if isinstance(value, dict) and not name.startswith("__"):
                entries = {str(key): described(entry) for key, entry in value.items()}
                tables[f"{owner}.{name}"] = entries
    return tables


def names() -> dict[str, str]:
    """Return the names of the members of each module and class of verl."""
    return {owner: " ".join(sorted(members)) for owner, members in owners()}


def process() -> dict[str, Any]:
    """Return the state of the process that an imported module could change."""
    return {
        "signals": {str(number): described(signal.getsignal(number)) for number in (2, 6, 13, 15)},
        "hooks": [described(hook) for hook in (sys.excepthook, sys.unraisablehook)],
        "environment": sorted(name for name in os.environ if not name.startswith("RAY_")),
        "loggers": {
            name: [logger.level, logger.propagate, len(logger.handlers)]
            for name in sorted(logging.root.manager.loggerDict)
            if name.split(".")[0] == "verl"
            for logger in [logging.getLogger(name)]
        },
    }


def random_state() -> list[str]:
    import numpy as np
    import torch

    states = (random.getstate(), np.random.get_state(), torch.get_rng_state().numpy().tobytes())
    return [hashlib.sha256(pickle.dumps(state)).hexdigest() for state in states]


def modules() -> list[str]:
    return sorted(sys.modules)


def start(trainer: Any) -> list[Any]:
    """Read the data as verl does; return the random states, and whether the reward has printed."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    trainer._init_tokenizer()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        trainer._init_dataloader()
    return [random_state(), "a user's reward" in printed.getvalue()]


def fails(trainer: Any, directory: Path) -> None:
    """Record the errors that verl's methods raise in wrong runs."""
    from omegaconf import OmegaConf
    from ray.exceptions import RayActorError
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.utils.config import validate_config

    wrong = copy.copy(trainer)
    wrong.config = copy.deepcopy(trainer.config)
    keep("valid", lambda: validate_config(wrong.config, False, False))
    wrong.config.data.val_files = str(directory / "absent.parquet")
    keep("raises: no data file", wrong._init_dataloader)
    wrong.config.actor_rollout_ref.actor.ppo_micro_batch_size = PROMPTS
    keep("raises: invalid", lambda: validate_config(wrong.config, False, False))
    keep("raises: unknown estimator", lambda: get_adv_estimator_fn("gdpo2"))
    unknown = KVBatchMeta(partition_id="train", keys=["no_0_0"], tags=[{}])
    keep("raises: unknown row", lambda: wrong._compute_advantage(unknown, {}))
    for name in METHODS:
        keep(f"raises: {name} with too many", lambda name=name: getattr(wrong, name)(*range(9)))
        keep(f"raises: {name}, unknown name", lambda name=name: getattr(wrong, name)(unknown=1))
    keep("raises: too few arguments", lambda: wrong._dump_generations([], []))
    keep("raises: no workers to save", lambda: wrong._save_checkpoint())
    for error in (KeyError("step"), RayActorError()):

        def step(*args: Any, error: Exception = error) -> None:
            raise error

        wrong.step, wrong.global_steps = step, 0
        wrong.config.trainer.total_training_steps = wrong.total_training_steps = 1
        keep(f"raises: step, {type(error).__name__}", lambda: wrong.fit(None))
    found["settings after all"] = OmegaConf.to_yaml(trainer.config)


def queue_contents() -> dict[str, Any]:
    """Return the keys, tags and fields of each partition, without the times."""
    import transfer_queue as tq

    contents: dict[str, Any] = {}
    for partition, tags in tq.kv_list().items():
        rows = sorted(key for key, tag in tags.items() if not tag.get("is_prompt"))
        contents[partition] = {"tags": plain(dict(sorted(tags.items())))}
        if rows:
            data = tq.kv_batch_get(keys=rows, partition_id=partition)
            fields = {name: data[name] for name in sorted(data.keys()) if name != "metrics"}
            contents[partition] |= {"rows": rows, "fields": plain(fields)}
    return contents


def one_step(trainer: Any, directory: Path) -> None:
    """Take a training step without a model (rollout, advantages, metrics, dump), and validate."""
    import transfer_queue as tq
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    trainer.global_steps = 1
    trainer._add_batch_to_generate()
    batch, metrics = trainer.replay_buffer.sample(
        global_steps=1, partition_id="train", batch_size=PROMPTS
    )
    batch.reorder(sorted(range(len(batch.keys)), key=batch.keys.__getitem__))
    keep("queue after the rollout", queue_contents)
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id="train", select_fields=["rollout_log_probs"]
    )
    data["old_log_probs"] = data.pop("rollout_log_probs")
    tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=data)
    batch = upsample_batch_to_divisible_size(batch, 5, trainer.tokenizer.eos_token_id)
    keep("advantage", lambda: trainer._compute_advantage(batch, metrics).keys)
    keep("queue after the advantages", queue_contents)
    keep("metrics of verl", lambda: trainer._compute_metrics(batch, metrics, {"step": 1.0}, 1, 0))
    keep("metrics", lambda: metrics)
    keep(
        "dump",
        lambda: trainer._log_rollout_data(batch, {}, trainer.config.trainer.rollout_data_dir),
    )
    elsewhere = copy.copy(trainer)
    elsewhere.config = copy.deepcopy(trainer.config)
    elsewhere.config.trainer.rollout_data_dir = None
    keep("dump elsewhere", lambda: elsewhere._log_rollout_data(batch, {}, f"{directory}/elsewhere"))
    tq.kv_clear(keys=batch.keys, partition_id="train")
    keep("validation", trainer._validate)
    trainer._shutdown_dump_executor()
    for file in sorted(directory.glob("*/*.jsonl")):
        found[f"file {file.parent.name}/{file.name}"] = file.read_text()
        file.unlink()
    keep("queue in the end", queue_contents)


def main(directory: Path) -> None:
    import ray
    import transfer_queue as tq
    import verl.experimental.reward_loop.reward_manager  # noqa: F401
    from omegaconf import OmegaConf
    from verl.experimental.reward_loop import RewardLoopManager
    from verl.trainer import main_ppo  # noqa: F401  the driver imports this module
    from verl.trainer.ppo.v1 import AgentLoopManagerTQ, get_trainer_cls

    found["modules: imported"], found["registries"] = modules(), registries()
    found["names"], found["process"] = names(), process()
    config = settings(directory, "exits.py")
    trainer = get_trainer_cls("sync")(config)
    keep("start: reward that exits", lambda: start(trainer))
    config = settings(directory, "reward.py")
    trainer = get_trainer_cls("sync")(config)
    keep("start: reward that seeds", lambda: start(trainer))
    found["settings"], found["modules: started"] = OmegaConf.to_yaml(config), modules()

    start_ray(num_cpus=16)
    tq.init(config.transfer_queue)
    counter = itertools.count()
    # verl names prompts and padding rows by UUIDs, which must be the same in both runs.
    uuid.uuid4 = lambda: uuid.UUID(int=next(counter))
    trainer._init_dump_executor()
    trainer.get_reward_handles = lambda: trainer.reward_loop_manager.reward_loop_worker_handles
    trainer.reward_loop_manager = RewardLoopManager(config)
    trainer.agent_loop_manager = AgentLoopManagerTQ.create(
        config, None, None, trainer.get_reward_handles()
    )
    trainer._rollout_moe_lb_metrics_accumulator = None
    trainer._get_n_gpus_for_throughput = lambda: 1
    one_step(trainer, directory)
    fails(trainer, directory)
    workers = {
        "agent loop worker": trainer.agent_loop_manager.agent_loop_workers[0],
        "reward worker": trainer.get_reward_handles()[0],
    }
    for name, worker in workers.items():
        found[f"modules: {name}"] = ray.get(
            worker.__ray_call__.remote(lambda worker: sorted(sys.modules))
        )
    found["modules: in the end"] = modules()
    found["registries in the end"], found["process in the end"] = registries(), process()
    policy = os.environ["VERL_USE_EXTERNAL_PLUGINS"]
    (directory / f"{policy}.json").write_text(json.dumps(found))
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
