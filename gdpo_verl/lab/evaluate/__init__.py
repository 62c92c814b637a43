"""Measure a model on held-out questions, through vLLM: `gdpo-verl evaluate` and `compare`.

`run` puts the parts together: `model` finds the weights, `sampling` draws the answers, `result`
holds the numbers. `compare` sets two evaluations side by side.
The benchmarks are in `gdpo_verl.lab.tasks`.
"""
