"""Ask the nodes of a Ray cluster whether a run would find its software and files there.

`gdpo_verl.lab.run.submit` sends this one file with the job, and it runs there before the training:
``python3 -m cluster_nodes EXPECTED [KEY=PATH ...]``. So it imports nothing of gdpo-verl, which may
be missing.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# Importing verl takes seconds, and longer from a network file system.
TIMEOUT_SECONDS = 300.0


def inspect_node(files: Sequence[str] = ()) -> dict[str, Any]:
    """Look for the software of a run and its files, KEY=PATH each, on this node.

    Returns:
      "gdpo-verl" and "verl": versions, None = missing; "loaded": whether verl has the plug-in;
      "absent": those of the files that are not there.
    """
    software: dict[str, Any] = {name: installed_version(name) for name in ("gdpo-verl", "verl")}
    software["absent"] = [file for file in files if not os.path.exists(file.partition("=")[2])]
    software["loaded"] = False
    if software["verl"]:
        import verl  # noqa: F401  it loads its plug-ins, or passes over one that raises

        software["loaded"] = "gdpo_verl.plugin.entry" in sys.modules
    return software


def installed_version(name: str) -> str | None:
    """The version of a package, None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def problems(software: Mapping[str, Any], expected: str, verl: str | None) -> list[str]:
    """List what is wrong with one node, each with its remedy.

    Args:
      software: what `inspect_node` returned there, or {"error": why it did not}.
      expected: the version of gdpo-verl that the job was submitted with.
      verl: the version of verl on the driver's node, which all nodes should have.
    """
    if "error" in software:
        return [f"could not be asked: {software['error']}"]
    its_verl = software["verl"]
    ours = software["gdpo-verl"]
    wrong = []
    if not its_verl:
        wrong.append("verl is missing. Install it there, or start the node from verl's image")
    elif verl and its_verl != verl:
        wrong.append(
            f"verl {its_verl}, expected {verl} as on the driver's node. Install the same on all "
            "nodes"
        )
    if ours != expected:
        wrong.append(
            f"gdpo-verl {ours or 'is missing'}, expected {expected}. Install that version there, "
            "or submit with --upload"
        )
    elif its_verl and not software["loaded"]:
        wrong.append(
            "verl does not load gdpo-verl's plug-in. Run `gdpo-verl doctor` there, and leave "
            "VERL_USE_EXTERNAL_PLUGINS unset or 'auto'"
        )
    if software["absent"]:
        wrong.append(
            f"{', '.join(software['absent'])} not found. Put it where every node reads it under "
            "this path, and name that path"
        )
    return wrong


def check_nodes(nodes: Sequence[str], files: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what `inspect_node` finds on each of the nodes, which have these ids."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pending = {}
    for node in nodes:
        # Without a CPU, because a busy node would not reply; and never on another node instead.
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(inspect_node).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        pending[node] = task.remote(list(files))
    ray.wait(list(pending.values()), num_returns=len(pending), timeout=TIMEOUT_SECONDS)
    by_node: dict[str, dict[str, Any]] = {}
    for name, answer in pending.items():
        try:
            by_node[name] = ray.get(answer, timeout=0)
        except Exception as error:
            # The last line of a task's traceback is what was raised there.
            reason = str(error).strip().rpartition("\n")[2]
            by_node[name] = {"error": f"{type(error).__name__}: {reason}"}
    return by_node


def main(expected: str, *files: str) -> int:
    """Print a line for each node; return 1 when the cluster is rejected."""
    try:
        import ray
    except ModuleNotFoundError:
        print(
            f"rejected: the job's python3 on this node is {sys.executable}, which has no Ray. Ray "
            "hands a job the PATH with which it was started: activate the environment that has "
            "gdpo-verl (source .venv/bin/activate), and start Ray there again"
        )
        return 1
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    by_node = check_nodes([node["NodeID"] for node in nodes], files)
    ray.shutdown()
    verl = installed_version("verl")
    refused = 0
    for node in sorted(nodes, key=lambda node: str(node["NodeManagerAddress"])):
        wrong = problems(by_node[node["NodeID"]], expected, verl)
        refused += bool(wrong)
        state = "; ".join(wrong) or f"gdpo-verl {expected}, verl {verl}, plug-in loaded"
        print(f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]}): {state}", flush=True)
    if refused:
        print(f"rejected: {refused} of {len(nodes)} nodes cannot train. Nothing was started")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
