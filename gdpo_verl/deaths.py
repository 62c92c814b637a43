"""Say in words which process of a training died, from what Ray says of it.

Pure text: the running trainer describes an exception of Ray's with it
(`gdpo_verl.plugin.liveness`), the launcher what a log holds (`gdpo_verl.run.launch`).
"""

from __future__ import annotations

import re
import signal

# verl 0.9.1's classes of actors.
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
_TRAINERS = {"TaskRunner", "TaskRunnerV1"}
# Ray's ActorDiedError (ray/exceptions.py); all but the first two lines of it may be missing.
_BLOCK = re.compile(
    r"class_name: (?P<kind>\S+)\n\s*actor_id: \w+\n"
    r"(?:\s*pid: (?P<pid>\d+)\n)?(?:\s*name: (?P<name>\S+)\n)?"
    r"(?:\s*namespace: .*\n)?(?:\s*ip: (?P<ip>\S+)\n)?(?P<cause>.*)"
)
_CAUSES = (
    (re.compile(r"out of memory|low on memory", re.I), "Ray ended it, its node ran out of memory"),
    (re.compile(r"node (?:has )?died|node was terminated", re.I), "its Ray node died"),
    # Ray learns that the connection broke, not which signal did it.
    (re.compile(r"worker process has died", re.I), "its process was killed or crashed"),
)
# Ray's OutOfMemoryError, which names the node first; each call to the process raises it.
_MEMORY = re.compile(
    r"worker\(s\) were killed due to the node running low on memory\.\s+"
    r"Memory on the node \(IP: (?P<ip>[^,]+), .*?\) was (?P<used>\S+ used / \S+ limit)"
)
# In lines of the driver's own, without a process before them. It calls no actor but the trainer's;
# what the trainer's calls raise is a RayTaskError to it.
_LOST = re.compile(r"^ray\.exceptions\.ActorUnavailableError: ", re.M)
_RAISED = re.compile(r"^ray\.exceptions\.RayTaskError", re.M)
# What Ray raises for a call to a process that is stopped, or on a node that is out of reach.
_UNANSWERED = re.compile(
    r"^ray\.exceptions\.RayTaskError\(ActorUnavailableError\).*"
    r"^ray\.exceptions\.ActorUnavailableError: The actor \w+ is unavailable: "
    r"(?:The actor is temporarily unavailable: )?(?:RpcError: )?(?:RPC error: )?"
    r"(?P<why>[^\n]*?)(?: rpc_code|\.? The task|$)",
    re.M | re.S,
)
# A worker that waits for one on a lost node may fail before Ray knows of the node, by an error of
# gloo's or NCCL's. Every driver is told of the raylet, also one that never used the node.
_RAYLET = re.compile(r"Raylet is terminated\. Termination is unexpected")
_BROKEN = re.compile(
    r"^(?:\w+\.)*\w*Error: .*(?:gloo|NCCL|Connection (?:reset|closed))", re.M | re.I
)
_INTENDED = re.compile(r"INTENDED|ray\.kill|references to the actor|creation task|owner has died")
_SAID = re.compile(r"(?:RuntimeError|gdpo-verl): ((?:an?|the) [\w (),.']+ died: .+)")
_PREFIX = re.compile(r"^(?:\([^()]*pid=[^()]*\) )+", re.M)  # vLLM adds one of its own
_REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$", re.M)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(log: str) -> str:
    """A log without colours and without the name of the process before each line."""
    return _REPEATED.sub("", _PREFIX.sub("", _COLOUR.sub("", log)))


def of_actor(error: str) -> str | None:
    """Name the actor that died, from the text of Ray's ActorDiedError.

    Returns:
      For example "a reward worker died: reward_loop_worker_0 (pid 7 on 10.0.0.2), its process was
      killed or crashed"; None when it ended as intended or the text is another one.
    """
    deaths = _deaths(error)
    return deaths[0][1] if deaths else None


def of_memory(error: str) -> str | None:
    """Say which node ran out of memory, from the text of Ray's OutOfMemoryError; None of others."""
    if found := _MEMORY.search(error):
        return (
            f"a worker died: Ray ended it, because its node {found['ip']} ran low on memory "
            f"({found['used']})"
        )
    return None


def of_log(log: str) -> str | None:
    """Name the first process that died, from a training's output; None when none did.

    What follows a death, such as the end of the trainer's own process, is not taken for it.
    """
    text = plain(log)
    if said := _SAID.search(text):
        return said[1]
    if memory := of_memory(text):
        return memory
    deaths = _deaths(text)
    first = [sentence for kind, sentence in deaths if kind not in _TRAINERS]
    # The engines end with the trainer, too: after the driver has failed.
    before = text.partition("Error executing job")[0]
    if not first and ("EngineDeadError" in before or "RayTaskError(EngineDeadError)" in text):
        return "a vLLM engine died: see the log for its last words"
    if deaths:
        return (first or [sentence for _, sentence in deaths])[0]
    # The connection breaks before Ray knows whether a process or its whole node is gone.
    if _LOST.search(log) and not _RAISED.search(log):
        return "the trainer's process or its Ray node died: the driver lost the connection to it"
    if _RAYLET.search(text) and _BROKEN.search(log):
        return "a Ray node died: its raylet was killed or crashed"
    if unanswered := _UNANSWERED.search(log):
        return f"a worker or its Ray node does not answer: {unanswered['why']}"
    return None


def of_driver(pid: int, status: int) -> str | None:
    """Describe the driver's death from its return code; None if it exited by itself."""
    if status >= 0:
        return None
    return f"the driver died: pid {pid} was killed by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """Name a signal: 9 is "SIGKILL", a number without a name "signal 99"."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _deaths(text: str) -> list[tuple[str, str]]:
    found = []
    for block in _BLOCK.finditer(text):
        cause = next((words for known, words in _CAUSES if known.search(block["cause"])), None)
        if cause and not _INTENDED.search(block["cause"]):
            kind = block["kind"].rpartition(".")[2]
            where = f" on {block['ip']}" if block["ip"] else ""
            pid = f" (pid {block['pid']}{where})" if block["pid"] else where
            role = _ROLES.get(kind, f"an actor of verl ({kind})")
            found.append((kind, f"{role} died: {block['name'] or kind}{pid}, {cause}"))
    return found
