"""Keep the sockets of a run on one machine at the loopback address.

The processes of a run trust each other. TransferQueue 0.1.11 unpickles what it receives
(transfer_queue/utils/zmq_utils.py, `ZMQMessage.deserialize`), and verl's vLLM server replies
without a key (verl/workers/rollout/vllm_rollout/vllm_async_server.py). Both listen at the address
that Ray reports for the node. A cluster needs that address; one machine does not.
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
    # Ray's own switch, whose default is "1" on Linux: with "0" its node is at 127.0.0.1
    # (ray/_private/services.py, `get_node_ip_address`), and its servers listen there alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "VLLM_HOST_IP": ADDRESS,
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


def variables_for(config: Any) -> Mapping[str, str]:
    """Return the variables of a run on one machine that starts its own Ray; none for another.

    Args:
      config: verl's configuration.
    """
    if joins_cluster(config) or config.trainer.nnodes > 1:
        return {}
    return _VARIABLES


def listen_locally(config: Any) -> None:
    """Set the variables that are not set in this process; Ray's processes inherit them."""
    for name, value in variables_for(config).items():
        os.environ.setdefault(name, value)
    if os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == "0":
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False  # Ray reads the variable when it is imported


def bind(host: str, port: int = 0) -> int:
    """Return the file descriptor of a socket that is bound to `host` alone, for a `TCPStore`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family).detach()


def store_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a torch `TCPStore` that listens at its own host only.

    torch's store listens on all interfaces, also if its host is 127.0.0.1
    (torch/distributed/rendezvous.py, `_create_c10d_store`), unless it is given a socket.
    """
    if arguments.get("host_name") == ADDRESS and arguments.get("is_master"):
        with contextlib.suppress(OSError):  # this process has a store there, which is shared
            return arguments | {"master_listen_fd": bind(ADDRESS, arguments["port"])}
    return arguments
