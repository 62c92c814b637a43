"""The laboratory: what a person starts. Nothing outside it imports from it."""
