"""The recipes and their tasks: no hub, the tiny policy and a driver that trains it."""

from trainings import driver as driver
from trainings import no_hub as no_hub
from trainings import policy as policy
from trainings import toolbox as toolbox
from trainings import train as train
