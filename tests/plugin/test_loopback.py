"""The sockets of a run on one machine, and the upstream code that makes each change necessary."""

import os

import psutil
from omegaconf import OmegaConf
from ray._private import ray_constants, services
from torch.distributed import TCPStore

from gdpo_verl.upstream import loopback


def addresses(port):
    """Return the addresses at which this process listens on a port."""
    listening = [
        each
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    return {each.laddr.ip for each in listening if each.laddr.port == port}


def test_the_store_of_a_single_machine_listens_only_at_the_loopback_address():
    arguments = {"host_name": "127.0.0.1", "world_size": 1, "is_master": True, "multi_tenant": True}
    store = TCPStore(**loopback.store_arguments(arguments | {"port": 0}))
    assert addresses(store.port) == {"127.0.0.1"}
    store.set("key", "value")
    # A second group shares the store.
    again = TCPStore(**loopback.store_arguments(arguments | {"port": store.port}))
    assert again.get("key") == b"value"
    # Without the change, torch's store is reachable from other machines.
    alone = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert addresses(alone.port) <= {"::", "0.0.0.0"}


def test_ray_that_a_run_starts_listens_at_the_loopback_address(monkeypatch):
    environment = {"VLLM_HOST_IP": "10.0.0.1"}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    one, two = ({"trainer": {"nnodes": nodes}} for nodes in (1, 2))
    joins = {"ray_kwargs": {"ray_init": {"address": "auto"}}}
    for cluster in (two, one | joins):
        loopback.listen_locally(OmegaConf.create(cluster))
        assert environment == {"VLLM_HOST_IP": "10.0.0.1"}
    loopback.listen_locally(OmegaConf.create(one))
    assert environment["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment["VLLM_HOST_IP"] == "10.0.0.1"
    assert services.get_node_ip_address() == "127.0.0.1"
