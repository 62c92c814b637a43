"""The part of a training step that is ours: rewards, groups, advantages, metrics and dumps."""
