"""The command `gdpo-verl`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from gdpo_verl import __version__
from gdpo_verl.data.catalog import DATASETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    # Hydra's overrides may stand before and behind our own options.
    options.overrides = rest
    takes_overrides = options.command in (_train, _submit, _check_reward)
    if rest and (not takes_overrides or any(word.startswith("--") for word in rest)):
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
    prepare.add_argument("dataset", choices=list(DATASETS))
    prepare.add_argument(
        "--from", dest="source", metavar="SOURCE", help="hub id, file or folder; default: the hub"
    )
    prepare.add_argument("--out", type=Path, help="default: data/DATASET")
    prepare.add_argument("--seed", type=int, default=0)
    prepare.add_argument(
        "--validation", metavar="ROWS", type=int, help="to hold out where there is no such split"
    )
    prepare.add_argument("--model", help="whose tokenizer counts the prompts; default: uncounted")
    prepare.add_argument(
        "--max-prompt-length", metavar="TOKENS", type=int, help="default: the recipe's"
    )
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

    submit = commands.add_parser(
        "submit",
        help="train a recipe on a Ray cluster",
        usage="gdpo-verl submit [-h] --run RUN [OPTIONS] RECIPE [HYDRA OVERRIDES]",
    )
    submit.add_argument("recipe", help="for example tool_call/gdpo")
    submit.add_argument(
        "--run", type=Path, required=True, help="a directory that every node can write"
    )
    submit.add_argument(
        "--address", help="http://HEAD:8265; default: RAY_API_SERVER_ADDRESS, or this machine"
    )
    submit.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="a variable for every process of the job; a name alone takes its value here",
    )
    submit.add_argument(
        "--upload", action="store_true", help="send this gdpo-verl to every node with the job"
    )
    submit.set_defaults(command=_submit)

    check = commands.add_parser(
        "check-reward",
        help="try a reward on rows of the data, before a training",
        usage="gdpo-verl check-reward [-h] [--recipe RECIPE | --function PATH:NAME] [--data FILE] "
        "[OPTIONS] [HYDRA OVERRIDES]",
    )
    check.add_argument("--recipe", help="for example toolbox/gdpo; default: verl's own ppo_trainer")
    check.add_argument("--config-dir", type=Path, help="where the recipe is, if not in gdpo-verl")
    check.add_argument(
        "--function", metavar="PATH:NAME", help="pkg://package.module:name or a file"
    )
    check.add_argument("--data", metavar="FILE", action="append", help="for data.train_files")
    check.add_argument("--rows", type=int, help="default: 64; with --answers all of its prompts")
    given = check.add_mutually_exclusive_group()
    given.add_argument("--answers", metavar="FILE", type=Path, help="JSON lines, or a rollout dump")
    given.add_argument("--column", help="answers in a column of the data, for example extra_info.x")
    given.add_argument("--model", metavar="DIRECTORY", type=Path, help="sample answers from it")
    check.add_argument("--timeout", type=float, default=20.0, help="seconds for one answer")
    check.add_argument(
        "--json", metavar="FILE", type=Path, help="write the report with each answer"
    )
    check.set_defaults(command=_check_reward)

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
    explain.add_argument("run", type=Path, nargs="?", help="a run directory whose rollouts to show")
    explain.add_argument("--port", type=int, help="default: a free one")
    explain.add_argument("--no-browser", action="store_true", help="print the address only")
    explain.add_argument(
        "--static", metavar="FILE", type=Path, help="write the page without widgets and end"
    )
    explain.set_defaults(command=_explain)
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
    from gdpo_verl.data import catalog

    out = options.out or Path("data") / options.dataset
    provenance = catalog.prepare(
        options.dataset,
        out,
        source=options.source,
        seed=options.seed,
        validation=options.validation,
        model=options.model,
        max_prompt_length=options.max_prompt_length,
    )
    for name, file in provenance["files"].items():
        print(f"{out / name}: {file['rows']} rows")
    for line in catalog.remarks(provenance):
        print(line, file=sys.stderr)


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


def _submit(options: argparse.Namespace) -> int:
    from gdpo_verl.submit import submit

    return submit(
        options.recipe,
        options.run,
        options.overrides,
        address=options.address,
        env=options.env,
        upload=options.upload,
    )


def _check_reward(options: argparse.Namespace) -> int:
    from gdpo_verl import check_reward

    config = check_reward.compose(options.recipe, options.overrides, options.config_dir)
    check_reward.point_at(config, options.function, options.data or [])
    source = check_reward.Source(options.answers, options.column, options.model)
    checked = check_reward.check(config, source, rows=options.rows, timeout=options.timeout)
    print(checked.to_text())
    if options.json:
        options.json.write_text(checked.to_json(), encoding="utf-8")
    return int(bool(checked.report.problems))


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
        serve.serve(options.run, port=options.port, browser=not options.no_browser)


if __name__ == "__main__":
    sys.exit(main())
