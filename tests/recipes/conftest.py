"""The recipes: no hub, the tiny policy."""

from __future__ import annotations

from trainings import no_hub as no_hub
from trainings import policy as policy
