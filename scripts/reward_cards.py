"""Write docs/reward_cards.md: what the rewards pay and refuse of right and wrong answers.

    python scripts/reward_cards.py [--math FILE] [--gsm8k FILE ...] [--toolrl FILE] ...

Each reward's card stands in a file of its own, card_<reward>.py, with the corpora it reads. A
corpus that is not given is named and left out. Only what was counted is written.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import time
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reward_cards.md"
HEAD = """\
# Reward cards

A reward is wrong in two ways: by what it pays and by what it refuses. Below, answers that are
known to be right or wrong, and how many of them each rule judges the other way; beside the strict
rules, which are the default, are the lenient or published ones and verl's own reward on the same
answers. `scripts/reward_cards.py` writes this page; its `--help` names the corpora, which are not
part of this repository.

"""


def main() -> None:
    found = sorted(Path(__file__).parent.glob("card_*.py"))
    modules = {
        path.stem.removeprefix("card_"): importlib.import_module(path.stem) for path in found
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rewards", nargs="*", choices=modules, default=list(modules))
    parser.add_argument("--out", type=Path, default=PAGE)
    for module in modules.values():
        module.add_arguments(parser)
    args = parser.parse_args()
    for name, value in vars(args).items():
        if value is None or value == []:
            print(f"--{name.replace('_', '-')} is not given: its rows are left out")
    sections = []
    for name in args.rewards:
        start = time.monotonic()
        sections.append(modules[name].card(args).markdown())
        print(f"{name}: {time.monotonic() - start:.0f} s")
    args.out.write_text(HEAD + "\n".join(sections), encoding="utf-8")
    print(f"{args.out}: {len(sections)} cards, Python {platform.python_version()}")


if __name__ == "__main__":
    main()
