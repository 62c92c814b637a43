"""Measure a model on held-out questions: `gdpo-verl evaluate` and `compare`.

An evaluation is verl's own validation, a run of zero steps: `model` finds the weights, `run`
starts verl. `answers` reads the dump that verl writes, `result` makes numbers of it, and `compare`
sets two of them side by side.
"""
