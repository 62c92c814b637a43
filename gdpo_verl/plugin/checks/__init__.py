"""What can reject a run: the list of checks, and what they read of a run and of its reward."""
