"""Run untrusted code in a sandbox. This package does not depend on the rewards or on verl."""

from gdpo_verl.sandbox.protection import Unprotected, best_protection
from gdpo_verl.sandbox.session import Limits, Outcome, Protection, Sandbox, SandboxError, Status
from gdpo_verl.sandbox.slots import core_slot

__all__ = ["Limits", "Outcome", "Protection", "Sandbox", "SandboxError", "Status", "Unprotected"]
__all__ += ["best_protection", "core_slot"]
