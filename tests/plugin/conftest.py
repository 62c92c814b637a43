"""Fixtures for code that runs inside verl: no hub, a Ray with time to start, and a queue."""

from trainings import no_hub as no_hub
from trainings import queue as queue
