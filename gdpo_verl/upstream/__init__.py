"""Knowledge of verl and of other packages, for the plug-in and all that comes after it.

- `dependencies` compares what we use of another package with its installed source.
- `hooks` changes modules of other packages.
- `row_key` is verl's key of a row.
- `model` reads the model of a run from verl's configuration.
- `loopback` keeps the sockets of Ray, vLLM and torch on one machine.
"""
