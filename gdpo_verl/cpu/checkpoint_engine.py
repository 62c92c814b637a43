"""Send weights from the trainer to rollout replicas on other devices, over gloo.

verl's mode `separate_async` needs a checkpoint engine other than ``naive``. The other engines of
verl need GPUs, NPUs or RDMA (verl/checkpoint_engine), so this module registers another one with the
name ``gloo``. verl imports this module if it is the value of
``actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module``. The recipes' ``hardware=cpu``
sets this key.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from gdpo_verl.upstream.loopback import bind

# The time that a process waits for the others. If an update takes longer, a process has ended.
TIMEOUT = timedelta(minutes=10)
# The description that follows the last weight, in JSON.
_END = "null"


@CheckpointEngineRegistry.register("gloo")
class GlooCheckpointEngine(CheckpointEngine):
    """Broadcast one weight after the other from the first trainer process to all replicas.

    The process group exists only for one update. It is separate from torch's default group, which
    the processes of the trainer and of a replica already use. Names, shapes and dtypes are sent
    through the store of the group.

    Args:
      bucket_size: verl passes this argument to every engine. It is not used here, because there are
        no buckets.
      is_master: whether this is the trainer process that sends the weights.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self.is_master = is_master
        self.store: Any = None
        self.group: Any = None

    def prepare(self) -> dict[str, Any]:
        """Open the store in the process that sends; verl passes its address to `build_topology`."""
        if not self.is_master:
            return {}
        host = ray.util.get_node_ip_address().strip("[]")
        self.store = TCPStore(
            host,
            0,
            is_master=True,
            timeout=TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=bind(host),
        )
        return {"host_name": host, "port": self.store.port}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Give the sender the rank 0, the processes of replicas the next ranks, and others -1."""
        (store,) = filter(None, metadata)

        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            world_size = 1 + rollout_world_size
            return {
                "rank": ranks,
                "world_size": [world_size] * len(ranks),
                "store": [store] * len(ranks),
            }

        senders = [0] + [-1] * (actor_wg_world_size - 1)
        return arguments(senders), arguments(list(range(1, 1 + rollout_world_size)))

    def init_process_group(  # type: ignore[override]
        self, rank: int, world_size: int, store: dict[str, Any]
    ) -> None:
        """Join the group, and return when all processes have joined."""
        if rank < 0:
            return
        if self.store is None:
            self.store = TCPStore(**store, is_master=False, timeout=TIMEOUT)
        self.group = ProcessGroupGloo(self.store, rank, world_size, TIMEOUT)

    def finalize(self) -> None:
        """Leave the group."""
        self.group = None
        self.store = None

    @torch.no_grad()
    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> None:
        """Send all weights. A trainer process with the rank -1 only helps to gather them."""
        count = 0
        for name, weight in weights:  # each step gathers a weight from all trainer processes
            if self.group is not None:
                weight = weight.detach().cpu().contiguous()
                dtype = str(weight.dtype).removeprefix("torch.")
                self.store.set(f"weight {count}", json.dumps([name, list(weight.shape), dtype]))
                self._broadcast(weight)
                count += 1
        if self.group is not None:
            self.store.set(f"weight {count}", _END)

    @torch.no_grad()
    async def receive_weights(  # type: ignore[override]
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yield the names and weights in the order in which they are sent."""
        count = 0
        while True:
            described = json.loads(self.store.get(f"weight {count}"))
            if described is None:
                return
            name, shape, dtype = described
            weight = torch.empty(shape, dtype=getattr(torch, dtype))
            self._broadcast(weight)
            yield name, weight
            count += 1

    def _broadcast(self, weight: torch.Tensor) -> None:
        # The weight is sent as bytes, because gloo supports only few dtypes.
        self.group.broadcast(weight.reshape(-1).view(torch.uint8), 0).wait()
