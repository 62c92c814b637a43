"""Describe the process of a run that died, from the text that Ray writes about its death.

The trainer uses these functions for an exception of Ray (`gdpo_verl.plugin.watch.liveness`), and
the launcher uses them for a log (`gdpo_verl.lab.run.log`).
"""

from __future__ import annotations

import re
import signal

# The classes of the actors in verl 0.9.1, and how we name them to users.
_ROLES = {
    "AgentLoopWorkerTQ": "an agent loop worker",
    "GlobalRequestLoadBalancer": "the load balancer of the rollout servers",
    "RewardLoopWorker": "a reward worker",
    "SGLangHttpServer": "an SGLang server",
    "SimpleStorageUnit": "a storage unit of the transfer queue",
    "TaskRunner": "the trainer's process",
    "TaskRunnerV1": "the trainer's process",
    "TransferQueueController": "the controller of the transfer queue",
    "WorkerDict": "a training worker (FSDP or Megatron)",
    "vLLMHttpServer": "a vLLM server",
}
# The text of Ray's ActorDiedError (ray/exceptions.py). All lines except the first two may be
# missing.
_BLOCK = re.compile(
    r"class_name: (?P<kind>\S+)\n\s*actor_id: \w+\n"
    r"(?:\s*pid: (?P<pid>\d+)\n)?(?:\s*name: (?P<name>\S+)\n)?"
    r"(?:\s*namespace: .*\n)?(?:\s*ip: (?P<ip>\S+)\n)?(?P<cause>.*)"
)
_CAUSES = (
    (re.compile(r"out of memory|low on memory", re.I), "Ray ended it, its node ran out of memory"),
    (re.compile(r"node (?:has )?died|node was terminated", re.I), "its Ray node died"),
    # Ray learns that the connection broke, but not which signal ended the process.
    (re.compile(r"worker process has died", re.I), "its process was killed or crashed"),
)
# The text of Ray's OutOfMemoryError, which names the node. Each call to the ended process raises
# this error.
_MEMORY = re.compile(
    r"worker\(s\) were killed due to the node running low on memory\.\s+"
    r"Memory on the node \(IP: (?P<ip>[^,]+), .*?\) was (?P<used>\S+ used / \S+ limit)"
)
_INTENDED = re.compile(r"INTENDED|ray\.kill|references to the actor|creation task|owner has died")


def describe_actor_death(error: str) -> str | None:
    """Describe the death of an actor, from the text of Ray's ActorDiedError.

    Returns:
      A sentence such as "a reward worker died: reward_loop_worker_0 (pid 7 on 10.0.0.2), its
      process was killed or crashed". The result is None if the actor ended as intended, or if the
      text is a different error.
    """
    return next((sentence for _, sentence in deaths_in(error)), None)


def describe_memory_death(error: str) -> str | None:
    """Describe which node ran out of memory, from the text of Ray's OutOfMemoryError.

    The result is None if the text is a different error.
    """
    node = _MEMORY.search(error)
    if node is None:
        return None
    return (
        f"a worker died: Ray ended it, because its node {node['ip']} ran low on memory "
        f"({node['used']})"
    )


def signal_name(number: int) -> str:
    """Return the name of a signal, such as "SIGKILL" for 9, or "signal 99" if it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def deaths_in(text: str) -> list[tuple[str, str]]:
    """List the class of each actor that died, and a sentence about its death."""
    deaths = []
    for block in _BLOCK.finditer(text):
        causes = [words for pattern, words in _CAUSES if pattern.search(block["cause"])]
        if not causes or _INTENDED.search(block["cause"]):
            continue
        kind = block["kind"].rpartition(".")[2]
        role = _ROLES.get(kind, f"an actor of verl ({kind})")
        node = f" on {block['ip']}" if block["ip"] else ""
        process = f" (pid {block['pid']}{node})" if block["pid"] else node
        deaths.append((kind, f"{role} died: {block['name'] or kind}{process}, {causes[0]}"))
    return deaths
