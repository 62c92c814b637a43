"""The recipes: Hydra configurations, in the wheel as `gdpo_verl.recipes`."""
