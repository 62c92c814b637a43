"""Write docs/reward_cards.md: what the rewards pay and refuse of right and wrong answers.

    python scripts/reward_cards.py [--math FILE] [--gsm8k FILE ...] [--toolrl FILE] ...

Each reward's card stands in a file of its own, card_<reward>.py, with the corpora it reads. A
corpus that is not given is named and left out, and so is a card with --rewards, which then
stays as it was. Only what was counted is written.
"""

from __future__ import annotations

import argparse
import importlib
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
            print(f"--{name.replace('_', '-')} is not given: its rows are left out", flush=True)
    sections = written(args.out)
    for name in args.rewards:
        start = time.monotonic()
        card = modules[name].card(args)
        sections[card.title] = card.markdown()
        page = HEAD + "\n".join(text for _, text in sorted(sections.items()))
        args.out.write_text(page, encoding="utf-8")
        print(f"{args.out}: {card.title}, {time.monotonic() - start:.0f} s", flush=True)


def written(page: Path) -> dict[str, str]:
    """The cards that stand in the page, by their titles; those not made anew are kept."""
    if not page.exists():
        return {}
    _, *sections = page.read_text(encoding="utf-8").split("\n## ")
    return {text.partition("\n")[0]: f"## {text.rstrip()}\n" for text in sections}


if __name__ == "__main__":
    main()
