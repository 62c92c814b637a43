"""Fixtures for the commands: no hub, a browser, a task, a tiny policy and verl's driver."""

from pages import browser as browser
from trainings import driver as driver
from trainings import no_hub as no_hub
from trainings import policy as policy
from trainings import toolbox as toolbox
from trainings import train as train
