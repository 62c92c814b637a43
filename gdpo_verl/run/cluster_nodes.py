"""Ask every node of a Ray cluster whether a training would find the same software there.

`gdpo_verl.run.submit` sends this one file with the job, and it runs there before the training:
``python -m cluster_nodes EXPECTED``. So it imports nothing of gdpo-verl, which may be missing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

# Importing verl takes seconds, and longer from a network file system.
TIMEOUT_SECONDS = 300.0


def look() -> dict[str, Any]:
    """What a process on this node finds: versions (None = missing), and the plug-in in verl."""

    found: dict[str, Any] = {name: _version(name) for name in ("gdpo-verl", "verl")}
    found["loaded"] = False
    if found["verl"]:
        import verl  # noqa: F401  it loads its plug-ins, or passes over one that raises

        found["loaded"] = "gdpo_verl.plugin" in sys.modules
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def problems(found: Mapping[str, Any], expected: str, verl: str | None) -> list[str]:
    """What is wrong with one node.

    Args:
      found: what `look` returned there, or {"error": why it did not}.
      expected: the version of gdpo-verl that the job was submitted with.
      verl: the version of verl on the node of the job's driver.

    Returns:
      A sentence for each, with the remedy; empty when the node may train.
    """
    if "error" in found:
        return [f"could not be asked: {found['error']}"]
    wrong = []
    if found["verl"] is None:
        wrong.append("verl is missing. Install it there, or start the node from verl's image")
    elif found["verl"] != verl:
        wrong.append(
            f"verl {found['verl']}, expected {verl or 'none'} as on the driver's node. "
            "Install the same on all nodes"
        )
    if found["gdpo-verl"] != expected:
        state = f"gdpo-verl {found['gdpo-verl'] or 'is missing'}"
        wrong.append(
            f"{state}, expected {expected}. Install that version there, or submit with --upload"
        )
    elif found["verl"] and not found["loaded"]:
        wrong.append(
            "verl does not load gdpo-verl's plug-in. Run `gdpo-verl doctor` there, and leave "
            "VERL_USE_EXTERNAL_PLUGINS unset or 'auto'"
        )
    return wrong


def survey() -> dict[str, dict[str, Any]]:
    """What `look` finds on each living node, by the node's address and id."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    pending = {}
    for node in ray.nodes():
        if node["Alive"]:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            task = ray.remote(look).options(num_cpus=0, max_retries=0, scheduling_strategy=here)
            pending[f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})"] = task.remote()
    ray.wait(list(pending.values()), num_returns=len(pending), timeout=TIMEOUT_SECONDS)
    found: dict[str, dict[str, Any]] = {}
    for name, answer in pending.items():
        try:
            found[name] = ray.get(answer, timeout=0)
        except Exception as error:
            # The last line of a task's traceback is what was raised there.
            reason = str(error).strip().rpartition("\n")[2]
            found[name] = {"error": f"{type(error).__name__}: {reason}"}
    return found


def main(expected: str) -> int:
    """Print a line for each node; 1 when the cluster is refused."""
    import ray

    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    found = survey()
    ray.shutdown()
    here = _version("verl")
    refused = 0
    for name, answer in sorted(found.items()):
        wrong = problems(answer, expected, here)
        refused += bool(wrong)
        state = "; ".join(wrong) or f"gdpo-verl {expected}, verl {here}, plug-in loaded"
        print(f"node {name}: {state}", flush=True)
    if refused:
        print(f"refused: {refused} of {len(found)} nodes cannot train; nothing was started")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
