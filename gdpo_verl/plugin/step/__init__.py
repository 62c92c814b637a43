"""A step of verl's trainers: its rewards, groups, advantages, metrics and dumps."""
