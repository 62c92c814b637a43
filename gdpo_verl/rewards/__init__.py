"""Reward functions: pure functions from text to named components, independent of verl."""

from gdpo_verl.config.components import Component, declared_components, declares

__all__ = ["Component", "declared_components", "declares"]
