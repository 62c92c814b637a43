"""A run directory as verl and `gdpo-verl train` leave it: metrics, dumps, configuration, state."""
