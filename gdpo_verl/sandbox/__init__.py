"""Run code that nobody trusts. Knows nothing of rewards, and nothing of verl."""

from gdpo_verl.sandbox.protection import Protection, Unprotected, best_protection
from gdpo_verl.sandbox.session import Limits, Outcome, Sandbox, SandboxError, Status, slot

__all__ = [
    "Limits",
    "Outcome",
    "Protection",
    "Sandbox",
    "SandboxError",
    "Status",
    "Unprotected",
    "best_protection",
    "slot",
]
