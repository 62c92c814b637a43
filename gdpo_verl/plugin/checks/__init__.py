"""The list of checks that can reject a run, and the code with which they read it."""
