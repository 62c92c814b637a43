"""Measure a model on held-out questions: `gdpo-verl evaluate` and `gdpo-verl compare`.

An evaluation is verl's own validation, in a run of zero training steps. `model` finds the weights,
and `run` starts verl. `answers` reads the dump that verl writes, `result` computes the numbers, and
`compare` compares two evaluations.
"""
