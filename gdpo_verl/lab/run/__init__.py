"""Train a run: compose, check, lock the run directory, start, show progress and resume."""
