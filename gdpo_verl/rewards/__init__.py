"""Reward functions. They compute named components from a text, and do not depend on verl."""

from gdpo_verl.config.components import Component, declared_components, declares

__all__ = ["Component", "declared_components", "declares"]
