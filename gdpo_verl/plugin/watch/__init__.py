"""Protection of a run: notice processes that have died, and always keep a complete checkpoint."""
