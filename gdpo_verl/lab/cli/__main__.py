"""``python -m gdpo_verl.cli``."""

import sys

from gdpo_verl.cli import main

sys.exit(main())
