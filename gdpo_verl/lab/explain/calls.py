"""Seven answers with real tool calls: scored by the tool-calling reward, and executed."""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.lab.explain.charts import Table
from gdpo_verl.rewards.tool_call import compute_score
from gdpo_verl.rewards.tool_text import read

KEYS = ("format", "correctness")
PROMPT = "What will 1,000 euros be worth in 10 years at 3% a year, compounded monthly?"


def future_value(principal: float, rate: float, years: float, per_year: int) -> float:
    """The one tool: what a deposit has grown to."""
    return float(principal * (1 + rate / per_year) ** (per_year * years))


_THOUGHT = "<think>Compound interest: 3% is a rate of 0.03, and monthly is 12 a year.</think>\n"
_ARGUMENTS = '"principal": 1000, "rate": 0.03, "years": 10, "per_year": 12'


def _answer(arguments: str, *, thought: str = _THOUGHT, end: str = "}}") -> str:
    call = f'{{"name": "future_value", "parameters": {{{arguments}{end}'
    return f"{thought}<tool_call>\n{call}\n</tool_call>"


GROUND_TRUTH = _answer(_ARGUMENTS)
# As asked for; without a thought; a wrong rate; two arguments too many; one too few; cut off; no
# call. The second and the third are the pair that the page talks about.
ANSWERS = (
    GROUND_TRUTH,
    _answer(_ARGUMENTS, thought=""),
    _answer(_ARGUMENTS.replace("0.03", "3")),
    _answer(f'{_ARGUMENTS}, "currency": "EUR", "decimals": 2'),
    _answer(_ARGUMENTS.partition(', "per_year"')[0]),
    _answer(_ARGUMENTS, end="}"),
    "<think>I can work that out myself.</think>\nAbout 1,350 euros.",
)


def rewards() -> Tensor:
    """Format and correctness of each answer, by `tool_call.compute_score`: shape (7, 2)."""
    scores = [compute_score("", answer, GROUND_TRUTH) for answer in ANSWERS]
    return torch.tensor([[score[key] for key in KEYS] for score in scores], dtype=torch.float64)


def execute(answer: str) -> str:
    """Call the tool as an answer asks for it, and say what came back.

    >>> execute(GROUND_TRUTH)
    'returns 1,349.35'
    """
    reading = read(answer)
    if not reading.calls:
        return "no call" if not reading.error else "cannot be read"
    (call,) = reading.calls  # each answer here has one at most
    try:
        return f"returns {future_value(**call['parameters']):,.2f}"
    except TypeError as error:  # Python's own words for a wrong or missing argument
        return f"refused: {str(error).removeprefix('future_value() ')}"


def table() -> Table:
    """Head and rows: each answer's rewards, and what its call does."""
    rows = [
        [str(i), *[f"{value:.4g}" for value in scores], execute(answer)]
        for i, (answer, scores) in enumerate(zip(ANSWERS, rewards().tolist(), strict=True), 1)
    ]
    return ["answer", *KEYS, "executed"], rows
