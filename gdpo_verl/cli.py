"""The command `gdpo-verl`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gdpo_verl import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    # Hydra's overrides may stand before and behind our own options.
    options.overrides = rest
    if rest and (options.command is not _train or any(word.startswith("--") for word in rest)):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return int(options.command(options) or 0)
    except (ValueError, RuntimeError, OSError, ModuleNotFoundError) as error:
        print(f"gdpo-verl: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gdpo-verl", description="GDPO for verl.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    doctor = commands.add_parser("doctor", help="would GDPO run here, and if not, what to do")
    doctor.set_defaults(command=_doctor)

    prepare = commands.add_parser("prepare", help="write a data set in verl's columns")
    prepare.add_argument("dataset", choices=["toolbox", "bfcl"])
    prepare.add_argument("--out", type=Path, help="default: data/DATASET")
    prepare.add_argument("--seed", type=int, default=0)
    prepare.set_defaults(command=_prepare)

    policy = commands.add_parser("make-policy", help="train the tiny policy that RL starts from")
    policy.add_argument("--out", type=Path, default=Path("models/toolbox"))
    policy.add_argument("--seed", type=int, default=0)
    policy.set_defaults(command=_make_policy)

    train = commands.add_parser(
        "train",
        help="train a recipe in a directory of its own",
        usage="gdpo-verl train [-h] [--run RUN] RECIPE [HYDRA OVERRIDES]",
    )
    train.add_argument("recipe", help="for example toolbox/gdpo")
    train.add_argument("--run", type=Path, help="default: runs/RECIPE")
    train.set_defaults(command=_train)

    report = commands.add_parser("report", help="runs to pictures and a page")
    report.add_argument("runs", type=Path, nargs="+")
    report.add_argument("--out", type=Path, default=Path("report"))
    report.set_defaults(command=_report)
    return parser


def _doctor(options: argparse.Namespace) -> int:
    from gdpo_verl.doctor import diagnose

    findings = diagnose()
    for finding in findings:
        print(f"{'FAIL' if finding.remedy else 'ok':4}  {finding.subject:20}  {finding.state}")
        if finding.remedy:
            print(f"      -> {finding.remedy}")
    return int(any(finding.remedy for finding in findings))


def _prepare(options: argparse.Namespace) -> None:
    out = options.out or Path("data") / options.dataset
    if options.dataset == "toolbox":
        from gdpo_verl.data import toolbox

        provenance = toolbox.prepare(out, seed=options.seed)
    else:
        from gdpo_verl.data import bfcl

        provenance = bfcl.prepare(out, seed=options.seed)
    for name, file in provenance["files"].items():
        print(f"{out / name}: {file['rows']} rows")
    if rejected := provenance.get("rejected"):
        print(f"{out / 'provenance.json'}: lists {len(rejected)} rejected rows and why")


def _make_policy(options: argparse.Namespace) -> None:
    from gdpo_verl.policy import make_policy

    result = make_policy(options.out, seed=options.seed)
    for decoding in ("sampled", "greedy"):
        share = result[decoding]
        print(f"{decoding}: correct format {share['format']:.1%}, exact calls {share['exact']:.1%}")
    print(f"{options.out}: trained in {result['seconds']:.0f} s from seed {options.seed}")


def _train(options: argparse.Namespace) -> None:
    from gdpo_verl.launch import train

    train(options.recipe, options.run or Path("runs") / options.recipe, options.overrides)


def _report(options: argparse.Namespace) -> None:
    from gdpo_verl.report import write_report

    print(write_report(options.runs, options.out))


if __name__ == "__main__":
    sys.exit(main())
