"""Watch a run: its processes are alive, and a complete checkpoint is kept."""
