"""Measure a model on held-out questions, through vLLM: `gdpo-verl evaluate` and `compare`.

`catalog` names the benchmarks, each in a file of its own. `run` puts the parts together: `model`
finds the weights, `sampling` draws the answers, `result` holds the numbers. `compare` sets two
evaluations side by side.
"""
