"""The code that depends on details of verl and of other packages.

- `dependencies` compares the parts of another package that we use with its installed source.
- `hooks` changes modules of other packages.
- `row_key` reads and writes verl's keys of rows.
- `model` checks the model of a run in verl's configuration.
- `loopback` keeps the sockets of Ray, vLLM and torch on one machine.
"""
