"""The checks that can reject a run, and the code with which they read its settings."""
