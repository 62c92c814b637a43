"""The worker that asks math-verify; `math_length` starts it and gives it a deadline."""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

from gdpo_verl.rewards.deadline import serve
from gdpo_verl.rewards.parse_error import ParseError

_IN_A_BOX = (LatexExtractionConfig(boxed_match_priority=0),)


def compare(question: tuple[str, str]) -> tuple[bool, int]:
    """Tell whether an answer is the ground truth, both LaTeX; with a `ParseError`."""
    ground_truth, answer = question
    wanted = _read_ground_truth(ground_truth)
    if not wanted:
        return False, ParseError.GROUND_TRUTH
    found = _read(answer)
    if not found:
        return False, ParseError.UNREADABLE
    return bool(verify(wanted, found, timeout_seconds=None)), ParseError.NONE


def _read(latex: str) -> list[Any]:
    """Read a formula with math-verify, as a whole and in one way; empty for nothing."""
    found = parse(
        f"\\boxed{{{latex}}}", _IN_A_BOX, extraction_mode="first_match", parsing_timeout=None
    )
    # It returns the text alone when it could not read it, and takes equal texts for equal.
    return [] if not found or isinstance(found[0], str) else found[:1]


_read_ground_truth = lru_cache(maxsize=256)(_read)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    compare((r"\frac{1}{2}", "0.5"))  # imports and grammar, before the first deadline runs
    serve(compare)
