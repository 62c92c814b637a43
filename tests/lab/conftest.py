"""What a person starts: no hub, a browser, the task, the tiny policy and a driver for both."""

from pages import browser as browser
from trainings import driver as driver
from trainings import no_hub as no_hub
from trainings import policy as policy
from trainings import toolbox as toolbox
from trainings import train as train
