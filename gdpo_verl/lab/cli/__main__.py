"""Run the command line as ``python -m gdpo_verl.lab.cli``."""

import sys

from gdpo_verl.lab.cli import main

sys.exit(main())
