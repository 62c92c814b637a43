"""verl on a CPU: no hub, a patient Ray."""

from __future__ import annotations

from trainings import no_hub as no_hub
