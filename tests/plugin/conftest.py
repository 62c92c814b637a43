"""What runs inside verl: no hub, a patient Ray, a queue."""

from trainings import no_hub as no_hub
from trainings import queue as queue
