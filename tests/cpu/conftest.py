"""verl on a CPU: no hub, a patient Ray."""

from trainings import no_hub as no_hub
