"""What happens in a step of verl's trainers: rewards, groups, advantages, metrics and dumps."""
