"""Let the processes of a run on one machine listen only at the loopback address.

The processes of a run trust each other. TransferQueue 0.1.11 unpickles the data that it receives
(transfer_queue/utils/zmq_utils.py, `ZMQMessage.deserialize`), and verl's vLLM server replies
without a key (verl/workers/rollout/vllm_rollout/vllm_async_server.py). Both listen at the address
that Ray reports for the node, where other machines may reach them. A cluster needs this address,
but a single machine does not.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

from gdpo_verl.upstream.model import joins_cluster

ADDRESS = "127.0.0.1"
_VARIABLES = {
    # This switch of Ray is "1" by default on Linux. With "0" the address of the node is 127.0.0.1
    # (ray/_private/services.py, `get_node_ip_address`), and Ray's servers listen only there.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "VLLM_HOST_IP": ADDRESS,
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


def variables_for(config: Any) -> Mapping[str, str]:
    """Return the environment variables for a run on one machine that starts its own Ray.

    For all other runs the result is empty.

    Args:
      config: verl's configuration.
    """
    if joins_cluster(config) or config.trainer.nnodes > 1:
        return {}
    return _VARIABLES


def listen_locally(config: Any) -> None:
    """Set the variables in this process, unless they are set; Ray's processes inherit them."""
    for name, value in variables_for(config).items():
        os.environ.setdefault(name, value)
    if os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "0":
        from ray._private import ray_constants

        # Ray reads the variable when it is imported, which may have happened already.
        ray_constants.ENABLE_RAY_CLUSTER = False


def bind(host: str, port: int = 0) -> int:
    """Return the file descriptor of a socket that listens only at `host`, for a `TCPStore`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family).detach()


def store_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a torch `TCPStore`, changed so that it listens only at its host.

    Without a socket among its arguments, torch's store listens on all interfaces, even if its host
    is 127.0.0.1 (torch/distributed/rendezvous.py, `_create_c10d_store`).
    """
    if arguments.get("host_name") == ADDRESS and arguments.get("is_master"):
        # An OSError means that this process already has a store at this port, which torch reuses.
        with contextlib.suppress(OSError):
            return arguments | {"master_listen_fd": bind(ADDRESS, arguments["port"])}
    return arguments
