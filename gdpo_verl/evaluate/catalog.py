"""The benchmarks by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gdpo_verl.evaluate.benchmark import Benchmark

BENCHMARKS = {
    "bfcl": "gdpo_verl.evaluate.bfcl:Bfcl",
    "gsm8k": "gdpo_verl.evaluate.gsm8k:Gsm8k",
    "math": "gdpo_verl.evaluate.boxed:Boxed",
    "aime24": "gdpo_verl.evaluate.boxed:Aime24",
    "aime25": "gdpo_verl.evaluate.boxed:Aime25",
    "amc": "gdpo_verl.evaluate.boxed:Amc",
    "math500": "gdpo_verl.evaluate.boxed:Math500",
    "minerva": "gdpo_verl.evaluate.boxed:Minerva",
    "olympiad": "gdpo_verl.evaluate.boxed:Olympiad",
    "code": "gdpo_verl.evaluate.programs:Programs",
    "humaneval": "gdpo_verl.evaluate.humaneval:HumanEval",
    "toolbox": "gdpo_verl.evaluate.toolbox:Toolbox",
}


def open_benchmark(
    name: str, *, allow_unprotected: bool = False, prompt_from: Sequence[str] = ()
) -> Benchmark:
    """The benchmark of this name; see there for the other arguments.

    Raises:
      ValueError: there is none; names a close one.
    """
    if name not in BENCHMARKS:
        from gdpo_verl.config import did_you_mean

        known = list(BENCHMARKS)
        raise ValueError(
            f"benchmark: expected one of {known}, found {name!r}.{did_you_mean(name, known)}"
        )
    module, _, kind = BENCHMARKS[name].partition(":")
    found = getattr(importlib.import_module(module), kind)
    benchmark: Benchmark = found(allow_unprotected=allow_unprotected, prompt_from=prompt_from)
    return benchmark
