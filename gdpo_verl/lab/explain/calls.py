"""Seven responses with real tool calls: scored by the tool-calling reward, and executed."""

from __future__ import annotations

import torch
from torch import Tensor

from gdpo_verl.lab.explain.charts import Table
from gdpo_verl.rewards.tool_call import compute_score
from gdpo_verl.rewards.tool_text import read

KEYS = ("format", "correctness")
PROMPT = "What will 1,000 euros be worth in 10 years at 3% a year, compounded monthly?"


def future_value(principal: float, rate: float, years: float, per_year: int) -> float:
    """Compute the future value of a deposit; this is the only tool."""
    return float(principal * (1 + rate / per_year) ** (per_year * years))


_THOUGHT = "<think>Compound interest: 3% is a rate of 0.03, and monthly is 12 a year.</think>\n"
_ARGUMENTS = '"principal": 1000, "rate": 0.03, "years": 10, "per_year": 12'


def _answer(arguments: str, *, thought: str = _THOUGHT, end: str = "}}") -> str:
    call = f'{{"name": "future_value", "parameters": {{{arguments}{end}'
    return f"{thought}<tool_call>\n{call}\n</tool_call>"


GROUND_TRUTH = _answer(_ARGUMENTS)
# In this order: correct; without a thought; with a wrong rate; with two arguments too many; with
# one too few; cut off; without a call. The page discusses the second and the third response.
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
    """Score format and correctness of each response with `tool_call.compute_score`: (7, 2)."""
    rows = []
    for answer in ANSWERS:
        score = compute_score("", answer, GROUND_TRUTH)
        rows.append([score[key] for key in KEYS])
    return torch.tensor(rows, dtype=torch.float64)


def execute(answer: str) -> str:
    """Call the tool as a response asks for it, and describe the result.

    >>> execute(GROUND_TRUTH)
    'returns 1,349.35'
    """
    reading = read(answer)
    if not reading.calls:
        return "no call" if not reading.error else "cannot be read"
    (call,) = reading.calls  # each response here has at most one
    try:
        return f"returns {future_value(**call['parameters']):,.2f}"
    except TypeError as error:  # Python's own message for a wrong or missing argument
        return f"rejected: {str(error).removeprefix('future_value() ')}"


def table() -> Table:
    """Return head and rows: the rewards of each response, and the result of its call."""
    rows = []
    for number, (answer, scores) in enumerate(zip(ANSWERS, rewards().tolist(), strict=True), 1):
        figures = [f"{value:.4g}" for value in scores]
        rows.append([str(number), *figures, execute(answer)])
    return ["answer", *KEYS, "executed"], rows
