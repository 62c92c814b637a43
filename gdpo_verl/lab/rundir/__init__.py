"""Read a run directory of verl or `gdpo-verl train`: metrics, dumps, configuration and state."""
