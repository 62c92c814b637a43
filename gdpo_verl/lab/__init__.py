"""The commands that a person starts. No package outside of `lab` imports from it."""
