"""The toolbox: a synthetic tool-calling task, small enough for a laptop.

    system     … 1. Name: weather … 2. Name: timer … 3. Name: convert_base …
    user       What is 84 in base 6?
    answer     {"name": "convert_base", "parameters": {"number": 84, "base": 6}}

A user asks for one thing. The prompt lists several tools in random order, and one of them is the
needed tool. The seed determines all rows (`generated`). The rows are for the rewards of
`rewards.tool_call`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpo_verl.recipes.tool_call import prompt

from gdpo_verl.lab.tasks import generated
from gdpo_verl.lab.tasks.examples import Example

DATA_SOURCE = "toolbox"

CITIES = ("Paris", "Tokyo", "Lima", "Oslo", "Cairo", "Delhi", "Rome", "Quito", "Accra", "Hanoi")
UNITS = ("metres", "feet", "miles", "litres", "pints", "kilos", "pounds", "ounces")
CURRENCIES = ("euros", "dollars", "yen", "pesos", "francs", "rupees")
TIMERS = ("tea", "pasta", "bread", "rice", "laundry", "break")


@dataclass(frozen=True)
class Tool:
    """A tool, the values of its parameters, and the ways a user may ask for it."""

    name: str
    description: str
    parameters: Mapping[str, Sequence[int] | Sequence[str]]
    questions: Sequence[str]

    @property
    def block(self) -> str:
        """The fixed text of the tool in a system message."""
        schema = {
            name: {"type": "integer" if isinstance(values, range) else "string"}
            for name, values in self.parameters.items()
        }
        return prompt.tool_block(self.name, self.description, schema)

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Draw a value for each parameter; source and target are different."""
        pair: dict[str, Any] = {}
        if "source" in self.parameters:
            pair["source"], pair["target"] = rng.sample(self.parameters["source"], 2)
        return {
            name: pair[name] if name in pair else rng.choice(values)
            for name, values in self.parameters.items()
        }


_AB = {"a": range(100), "b": range(100)}
_TO_99 = range(1, 100)

TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "add",
            "Adds two integers.",
            _AB,
            ("What is {a} plus {b}?", "Add {a} and {b}.", "I want the sum of {a} and {b}."),
        ),
        Tool(
            "subtract",
            "Subtracts b from a.",
            _AB,
            ("What is {a} minus {b}?", "Take {b} from {a}.", "Subtract {b} from {a}."),
        ),
        Tool(
            "multiply",
            "Multiplies two integers.",
            _AB,
            (
                "What is {a} times {b}?",
                "Multiply {a} by {b}.",
                "I want the product of {a} and {b}.",
            ),
        ),
        Tool(
            "convert_base",
            "Writes a decimal integer in another base.",
            {"number": range(100), "base": range(2, 17)},
            ("Write {number} in base {base}.", "What is {number} in base {base}?"),
        ),
        Tool(
            "convert_units",
            "Converts an amount between units of measurement.",
            {"value": _TO_99, "source": UNITS, "target": UNITS},
            ("Convert {value} {source} to {target}.", "How many {target} are {value} {source}?"),
        ),
        Tool(
            "exchange",
            "Exchanges an amount of money at today's rate.",
            {"amount": _TO_99, "source": CURRENCIES, "target": CURRENCIES},
            ("Change {amount} {source} into {target}.", "How many {target} for {amount} {source}?"),
        ),
        Tool(
            "weather",
            "Gives the weather forecast for a city.",
            {"city": CITIES, "days": range(2, 31)},
            (
                "What is the weather in {city} for {days} days?",
                "I want a forecast for {city}, {days} days.",
            ),
        ),
        Tool(
            "timer",
            "Starts a timer with a label.",
            {"label": TIMERS, "minutes": range(2, 100)},
            ("Set a {label} timer for {minutes} minutes.", "Time my {label}, {minutes} minutes."),
        ),
    )
}


def draw_example(rng: random.Random) -> Example:
    """Draw one question, with the available tools and the needed call."""
    rng.random()  # the number is not used; without this draw, every seed would give other rows
    (needed,) = rng.sample(list(TOOLS), 1)
    arguments = TOOLS[needed].draw(rng)
    question = rng.choice(TOOLS[needed].questions).format(**arguments)
    listed = [needed, *rng.sample([name for name in TOOLS if name != needed], rng.randint(2, 4))]
    rng.shuffle(listed)
    calls = ((needed, arguments),)
    return Example(
        question,
        prompt.messages([TOOLS[name].block for name in listed], [prompt.turn("user", question)]),
        prompt.reference_answer(f"use {needed}", calls),
        calls,
        extra_info={"question": question},
    )


def prepare(out_dir: Path, **options: Any) -> dict[str, Any]:
    """Write the toolbox to ``out_dir`` and return its provenance; see `generated.write`."""
    return generated.write(
        out_dir,
        DATA_SOURCE,
        draw_example,
        ability="tool_call",
        source="generated by gdpo_verl.recipes.toolbox.rows; no outside data",
        about={"tools": list(TOOLS)},
        **options,
    )
