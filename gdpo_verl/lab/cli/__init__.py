"""The command line `gdpo-verl`. Each command is defined in one of this folder's modules."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from gdpo_verl import __version__
from gdpo_verl.lab.cli import measuring, setting_up, training
from gdpo_verl.lab.text import install_extra, printable


class _CommandParser(argparse.ArgumentParser):
    """Accept only the full names of options, so that no option is mistaken for another one."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # The words after `--` are options of Ray, and may look like options of this command.
    end = words.index("--") if "--" in words else len(words)
    command_words = words[:end]
    ray_options = words[end + 1 :]
    parser = _parser()
    options, rest = parser.parse_known_args(command_words)
    # Hydra's overrides may stand before and after the options of this command.
    options.overrides = rest
    options.ray_options = ray_options
    if ray_options and not options.takes_ray_options:
        parser.error(f"unrecognized arguments: -- {' '.join(ray_options)}")
    # Hydra would treat a misspelt option as a key, and its error would not name the option.
    if rest and (not options.takes_overrides or any(word.startswith("--") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        status = int(options.command(options) or 0)
        sys.stdout.flush()
        return status
    except ModuleNotFoundError as error:
        # The attribute `name` is empty if this package has raised the error, with its own remedy.
        where = ""
        problem = str(error)
        if error.name:
            where = f" {command_words[0]}"
            extra = "report" if command_words[0] in ("report", "replay") else "verl"
            problem = f"{error}. {install_extra(extra)}"
        print(f"gdpo-verl{where}: {problem}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed the pipe. This is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the status that a shell gives to a program that SIGPIPE ended
    except (ValueError, RuntimeError, OSError) as error:
        print(printable(f"gdpo-verl: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gdpo-verl", description="GDPO for verl.")
    parser.add_argument("--version", action="version", version=__version__)
    parser.set_defaults(takes_overrides=False, takes_ray_options=False)
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_CommandParser)
    for kind in (setting_up, training, measuring):
        kind.add_commands(commands)
    return parser
