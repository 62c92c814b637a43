"""Another plug-in that wraps the same methods of verl's trainer as gdpo-verl.

    python tests/neighbours.py inside|outside DIRECTORY

`test_unnoticed` runs this program. With `inside` the other plug-in wraps first, so that the wrapper
of gdpo-verl is called before it. DIRECTORY is the same as for `unnoticed`. The calls that the
plug-in has seen, and the results of the methods, are written to `<inside|outside>.json` there.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

METHODS = (
    "_init_dataloader",
    "_compute_advantage",
    "_log_rollout_data",
    "_dump_generations",
    "_save_checkpoint",
    "fit",
)
seen: list[str] = []


def wrap(owner: Any, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return original(self, *args, **kwargs)

    setattr(owner, name, wrapped)


def move_in(v1: Any) -> None:
    for name in METHODS:
        wrap(v1.PPOTrainer, name)


def step(directory: Path, estimator: str, queue: Any) -> dict[str, Any]:
    """Call each of the methods as verl does."""
    from fake_verl import advantages, put
    from unnoticed import settings
    from verl.trainer.ppo.v1 import get_trainer_cls

    seen.clear()
    components = ["+algorithm.gdpo_reward_keys=[parity,length]"] if estimator == "gdpo" else []
    config = settings(directory, "reward.py", f"algorithm.adv_estimator={estimator}", *components)
    trainer = get_trainer_cls("sync")(config)
    trainer._init_tokenizer()
    trainer._init_dataloader()
    lengths = [4.0, 2.0, 2.0, 1.0]
    infos = [{"parity": float(row % 2), "length": length} for row, length in enumerate(lengths)]
    batch = put(queue, [(f"a_{row}_0", [1, 1], info) for row, info in enumerate(infos)])
    metrics: dict[str, float] = {}
    trainer._compute_advantage(batch, metrics)
    trainer._init_dump_executor()
    trainer.global_steps = 0
    trainer._log_rollout_data(batch, {}, str(directory / estimator))  # dumps the generations
    trainer.actor_rollout_wg = SimpleNamespace(save_checkpoint=lambda *args, **kwargs: None)
    trainer._save_checkpoint()
    trainer.total_training_steps = 0
    trainer.fit(None)
    found = {
        "seen": list(seen),
        "advantages": advantages(queue, batch),
        "metrics": sorted(metrics),
        "dump": (directory / estimator / "0.jsonl").read_text(),
        "saved": sorted(path.name for path in (directory / "checkpoints").iterdir()),
    }
    queue.kv_clear(keys=batch.keys, partition_id="train")
    return found


def main(where: str, directory: Path) -> None:
    if where == "inside":  # registered before verl loads gdpo-verl, whose hook is then the second
        import wrapt

        wrapt.register_post_import_hook(move_in, "verl.trainer.ppo.v1")
    import ray
    import transfer_queue as tq
    import verl.trainer.ppo.v1 as v1
    from unnoticed import settings
    from waiting import start_ray

    if where == "outside":
        move_in(v1)
    start_ray(num_cpus=16)
    tq.init(settings(directory, "reward.py").transfer_queue)
    found = {estimator: step(directory, estimator, tq) for estimator in ("grpo", "gdpo")}
    (directory / f"{where}.json").write_text(json.dumps(found))
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
