"""The commands that make pages: report, explain."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add these commands to the parser."""
    report = commands.add_parser("report", help="runs to pictures and a page")
    report.add_argument("runs", type=Path, nargs="+")
    report.add_argument("--out", type=Path, default=Path("report"))
    report.add_argument(
        "--follow", action="store_true", help="keep it current until the runs have ended"
    )
    report.add_argument(
        "--every", metavar="SECONDS", type=float, default=30.0, help="with --follow; default: 30"
    )
    report.set_defaults(command=_report)

    explain = commands.add_parser("explain", help="play with GDPO and GRPO in the browser")
    explain.add_argument("--port", type=int, help="default: a free one")
    explain.add_argument("--no-browser", action="store_true", help="print the address only")
    explain.add_argument(
        "--static", metavar="FILE", type=Path, help="write the page without widgets and end"
    )
    explain.set_defaults(command=_explain)


def _report(options: argparse.Namespace) -> None:
    from gdpo_verl.report import follow_report, write_report

    if options.follow:
        say = functools.partial(print, flush=True)
        follow_report(options.runs, options.out, every=options.every, say=say)
    else:
        print(write_report(options.runs, options.out))


def _explain(options: argparse.Namespace) -> None:
    from gdpo_verl.explain import serve

    if options.static:
        print(serve.export(options.static))
    else:
        serve.serve(port=options.port, browser=not options.no_browser)
