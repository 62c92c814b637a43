"""GSM8K: grade-school mathematics problems whose answers are whole numbers.

    {"question": "Ines had 20 stamps. She used 6 and got 5. How many has she?",
     "answer": "20 - 6 = 14\\n14 + 5 = 19\\n#### 19"}            ->  ground truth "19"

https://huggingface.co/datasets/openai/gsm8k (MIT), configuration ``main``. The files of
https://github.com/openai/grade-school-math have the same columns. The ground truth keeps its
commas, as in the published example of GDPO (https://arxiv.org/abs/2601.05242). The rows are for the
three rewards of `rewards.gsm8k`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gdpo_verl.lab.tasks.build import build
from gdpo_verl.lab.tasks.rows import Row, make_row, text_of
from gdpo_verl.lab.tasks.source import Record, open_source
from gdpo_verl.rewards.gsm8k import CLOSE, HASHES, OPEN, parse_ground_truth
from gdpo_verl.rewards.thought import END_THINK, THINK

DATA_SOURCE = "gsm8k"
HUB_ID = "openai/gsm8k"
ABOUT = {"data_source": DATA_SOURCE, "published": f"{HUB_ID} on the hub; MIT"}

SYSTEM = """\
Solve the problem that the user gives you. Think first, then answer with one whole number, in \
exactly this form and with nothing else around it:
<think>your thoughts</think>
<answer>the number</answer>"""

# The question, the thought and the answer of each worked example. The examples were written for
# this project, and are in no data set.
WORKED: Sequence[tuple[str, str, str]] = (
    ("A hut has 3 beds and a barn has 4. How many beds are there?", "3 + 4 = 7", "7"),
    ("Ines had 20 stamps. She used 6 and got 5. How many has she?", "20 - 6 + 5 = 19", "19"),
    ("A tram has 4 cars of 30 seats. How many seats is that?", "4 * 30 = 120", "120"),
    ("Jo shares 18 nuts equally with 2 friends. How many has each?", "18 / (1 + 2) = 6", "6"),
)


def turns(worked: Sequence[tuple[str, str, str]] = (), shots: int = 0) -> list[dict[str, str]]:
    """Return the turns before a question: the system message, and ``shots`` worked examples."""
    if not 0 <= shots <= len(worked):
        raise ValueError(f"--shots: expected 0 to {len(worked)} worked examples, found {shots}")
    before = [{"role": "system", "content": SYSTEM}]
    for question, thought, answer in worked[:shots]:
        text = f"{THINK}{thought}{END_THINK}\n{OPEN}{answer}{CLOSE}"
        before += [{"role": "user", "content": question}, {"role": "assistant", "content": text}]
    return before


def convert(record: Record, before: Sequence[dict[str, str]] = ()) -> Row:
    """Convert to verl's columns; raise `BadRow`, or the ValueError of the reward's parser."""
    values = record.values
    question, answer = text_of(values, "question"), text_of(values, "answer")
    parse_ground_truth(answer)
    return make_row(
        DATA_SOURCE,
        [*(before or turns()), {"role": "user", "content": question.strip()}],
        answer.rpartition(HASHES)[2].strip(),
        ability="math",
        extra_info=record.place,
    )


def prepare(
    out_dir: Path, *, source: str | None = None, shots: int = 0, **options: Any
) -> dict[str, Any]:
    """Write GSM8K to ``out_dir`` and return its provenance; see `build` for the options."""
    convert_with_shots = partial(convert, before=turns(WORKED, shots))
    opened = open_source(source or HUB_ID, config="main")
    return build(out_dir, opened, convert_with_shots, about={**ABOUT, "shots": shots}, **options)
