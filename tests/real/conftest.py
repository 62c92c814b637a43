"""Trainings and clusters, one at a time: the task, the tiny policy, verl's driver, no hub."""

from trainings import driver as driver
from trainings import no_hub as no_hub
from trainings import policy as policy
from trainings import toolbox as toolbox
from trainings import train as train
from trainings import turn_of_clusters as turn_of_clusters
