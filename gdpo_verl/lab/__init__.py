"""The commands that a user starts. No module outside of `lab` imports from this package."""
