"""What watches a run: whether its processes are alive, and that a complete checkpoint is kept."""
