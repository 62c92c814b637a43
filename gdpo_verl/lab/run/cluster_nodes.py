"""Check whether every node of a Ray cluster has the software and the files of a run.

`gdpo_verl.lab.run.submit` sends this file with the job. The job runs it before the training:
``python3 -m cluster_nodes EXPECTED [KEY=PATH ...]``. The file imports nothing of gdpo-verl, because
gdpo-verl may be missing on the node.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# Importing verl takes seconds, or longer from a network file system.
TIMEOUT_SECONDS = 300.0


def inspect_node(files: Sequence[str] = ()) -> dict[str, Any]:
    """Look for the software and the files of a run on this node.

    Args:
      files: the files, each as KEY=PATH.

    Returns:
      a dict with "gdpo-verl" and "verl", their versions or None if missing; "loaded", True if verl
      has loaded the plug-in; "absent", the files that do not exist.
    """
    software: dict[str, Any] = {name: installed_version(name) for name in ("gdpo-verl", "verl")}
    software["absent"] = [file for file in files if not os.path.exists(file.partition("=")[2])]
    software["loaded"] = False
    if software["verl"]:
        import verl  # noqa: F401  loads its plug-ins, and skips a plug-in that raises an error

        software["loaded"] = "gdpo_verl.plugin.entry" in sys.modules
    return software


def installed_version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def problems(software: Mapping[str, Any], expected: str, verl: str | None) -> list[str]:
    """List the problems of one node, each with its remedy.

    Args:
      software: the result of `inspect_node` on that node, or {"error": reason} if it failed.
      expected: the version of gdpo-verl with which the job was submitted.
      verl: the version of verl on the driver's node, which all nodes should have.
    """
    if "error" in software:
        return [f"could not be asked: {software['error']}"]
    verl_version = software["verl"]
    own_version = software["gdpo-verl"]
    wrong = []
    if not verl_version:
        wrong.append("verl is missing. Install it there, or start the node from verl's image")
    elif verl and verl_version != verl:
        wrong.append(
            f"verl {verl_version}, expected {verl} as on the driver's node. Install the same on "
            "all nodes"
        )
    if own_version != expected:
        wrong.append(
            f"gdpo-verl {own_version or 'is missing'}, expected {expected}. Install that version "
            "there, or submit with --upload"
        )
    elif verl_version and not software["loaded"]:
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
    """Return the result of `inspect_node` on each node, by the node's id.

    Args:
      nodes: the ids of the nodes.
      files: the files of the run, each as KEY=PATH.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pending = {}
    for node in nodes:
        # The task reserves no CPU, because otherwise a busy node would not reply. Without `soft` it
        # never runs on another node.
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        task = ray.remote(inspect_node).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
        pending[node] = task.remote(list(files))
    ray.wait(list(pending.values()), num_returns=len(pending), timeout=TIMEOUT_SECONDS)
    by_node: dict[str, dict[str, Any]] = {}
    for name, answer in pending.items():
        try:
            by_node[name] = ray.get(answer, timeout=0)
        except Exception as error:
            # The last line of a task's traceback names the error.
            reason = str(error).strip().rpartition("\n")[2]
            by_node[name] = {"error": f"{type(error).__name__}: {reason}"}
    return by_node


def main(expected: str, *files: str) -> int:
    """Check all nodes, and print a line for each; return 1 if the cluster is rejected."""
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
