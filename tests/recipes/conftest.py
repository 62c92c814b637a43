"""The recipes: no hub."""

from __future__ import annotations

from trainings import no_hub as no_hub
