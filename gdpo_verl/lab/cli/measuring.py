"""Commands that measure or show: check-reward, replay, evaluate, compare, report, explain."""

from __future__ import annotations

import argparse
import functools
import json
import re
from pathlib import Path
from typing import Any

from gdpo_verl.lab.text import printable

_SETTING = re.compile(r"\+{0,2}~?[\w.]+=")


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add these commands to the parser."""
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
    check.add_argument(
        "--samples",
        metavar="N",
        type=int,
        help="answers of the model to each row; default: actor_rollout_ref.rollout.n",
    )
    given = check.add_mutually_exclusive_group()
    given.add_argument("--answers", metavar="FILE", type=Path, help="JSON lines, or a rollout dump")
    given.add_argument("--model", metavar="DIRECTORY", type=Path, help="sample answers from it")
    for option, about in (
        ("--timeout", "seconds for one answer; default: 60"),
        ("--step-seconds", "of a training step, of which an answer may take 5 %%; default: 60"),
    ):
        check.add_argument(option, metavar="S", type=float, default=60.0, help=about)
    check.add_argument(
        "--json", metavar="FILE", type=Path, help="write the report with each answer"
    )
    check.set_defaults(command=_check_reward, takes_overrides=True)

    _add_replay(commands)
    _add_evaluate(commands)
    _add_compare(commands)

    report = commands.add_parser("report", help="runs to pictures and a page")
    report.add_argument("runs", type=Path, nargs="+")
    report.add_argument("--out", type=Path, default=Path("report"), help="default: report")
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


def _add_replay(commands: argparse._SubParsersAction) -> None:
    replay = commands.add_parser(
        "replay",
        help="stored answers under other weights, conditions, rewards or estimators",
        usage="gdpo-verl replay [-h] WHERE… [OPTIONS] [SETTINGS OF algorithm, as for a training]",
    )
    replay.add_argument(
        "where",
        metavar="WHERE",
        nargs="+",
        help="a run, a folder of verl's dumps or of TRL's completions, a file of rows",
    )
    for option, place, about in (
        ("--function", "FILE:NAME", "a reward that scores the answers anew"),
        ("--group", "COLUMN", "the answers of one prompt share its value; for other rows"),
        ("--components", "COLUMN[,…]", "the reward components, where nothing names them"),
        ("--outcome", "COMPONENT", "says whether an answer solved its task, where no name tells"),
        ("--tokenizer", "MODEL", "counts tokens where the rows hold no counts"),
    ):
        replay.add_argument(option, metavar=place, default="", help=about)
    for option, place, about in (
        ("--rows", "FILE.jsonl", "write a line for each answer"),
        ("--json", "FILE", "write all the numbers"),
        ("--out", "DIRECTORY", "write a page"),
    ):
        replay.add_argument(option, metavar=place, type=Path, help=about)
    _add_trust(replay)
    replay.set_defaults(command=_replay, takes_overrides=True)


def _add_evaluate(commands: argparse._SubParsersAction) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="measure a model on held-out questions",
        usage="gdpo-verl evaluate [-h] MODEL --out DIR [OPTIONS] [HYDRA OVERRIDES]",
    )
    evaluate.add_argument(
        "model", help="a run, one of its checkpoints, a Hugging Face folder, or a hub id[@revision]"
    )
    evaluate.add_argument("--out", metavar="DIR", type=Path, required=True, help="a new directory")
    evaluate.add_argument(
        "--recipe", help="whose questions and reward to take; default: the run's own configuration"
    )
    evaluate.add_argument(
        "--config-dir", metavar="DIR", type=Path, help="where the recipe is, if not in gdpo-verl"
    )
    evaluate.add_argument(
        "--data",
        metavar="FILE",
        action="append",
        default=[],
        help="for data.val_files, the questions; may be given several times",
    )
    for option, kind, metavar, about in (
        ("--samples", int, "N", "answers to each question; default: the recipe's validation's"),
        ("--temperature", float, "T", "0 is greedy; default: the recipe's validation's"),
        ("--limit", int, "N", "ask only N questions, the same ones each time"),
    ):
        evaluate.add_argument(option, metavar=metavar, type=kind, help=about)
    _add_trust(evaluate)
    evaluate.set_defaults(command=_evaluate, takes_overrides=True)


def _add_compare(commands: argparse._SubParsersAction) -> None:
    compare = commands.add_parser(
        "compare",
        help="two evaluations on the same questions",
        usage="gdpo-verl compare [-h] A B [--json FILE]\n"
        "       gdpo-verl compare A1 A2 … --to B1 B2 … [--json FILE]",
    )
    compare.add_argument(
        "evaluations",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="of `evaluate`, a run's directory, or a validation dump of verl's",
    )
    compare.add_argument(
        "--to", metavar="DIR", type=Path, nargs="+", help="the other side, if several"
    )
    compare.add_argument("--json", metavar="FILE", type=Path, help="write all the numbers")
    _add_trust(compare)
    compare.set_defaults(command=_compare)


def _add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        action="store_true",
        help="run code from outside of gdpo-verl that the run's configuration names",
    )


def _check_reward(options: argparse.Namespace) -> int:
    from gdpo_verl.lab import check_reward
    from gdpo_verl.lab.check_reward.report import to_text

    config = check_reward.compose(options.recipe, options.overrides, options.config_dir)
    check_reward.override_reward_and_data(config, options.function, options.data or [])
    report = check_reward.check(
        config,
        answers=options.answers,
        model=options.model,
        samples=options.samples,
        rows=options.rows,
        timeout=options.timeout,
        step_seconds=options.step_seconds,
    )
    print(printable(to_text(report)))
    _write_json(options.json, report)
    return int(bool(report["problems"]))


def _replay(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.replay import output, replay

    # Settings may stand among the places, as they do for a training.
    words = [*options.where, *options.overrides]
    settings = [word for word in words if _SETTING.match(word) and not Path(word).exists()]
    result = replay(
        [Path(word) for word in words if word not in settings],
        settings,
        group=options.group,
        components=options.components.split(",") if options.components else (),
        function=options.function,
        tokenizer=options.tokenizer,
        rows_file=options.rows,
        trust=options.trust,
        outcome=options.outcome,
    )
    print(printable(output.to_text(result)))
    _write_json(options.json, output.to_json(result))
    if options.out:
        print(output.write_page(result, options.out))


def _evaluate(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.evaluate.run import EvaluationRequest, evaluate, to_text

    request = EvaluationRequest(
        model=options.model,
        recipe=options.recipe,
        config_dir=options.config_dir,
        data=options.data,
        samples=options.samples,
        temperature=options.temperature,
        limit=options.limit,
        overrides=options.overrides,
        trust=options.trust,
    )
    print(printable(to_text(evaluate(request, options.out))))
    print(f"\n{options.out}: every answer in validation/, these numbers in evaluation.json")


def _compare(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.evaluate.compare import compare, to_text

    files = options.evaluations
    other = options.to
    if not other:
        if len(files) != 2:
            raise ValueError(
                "compare: expected two evaluations, or --to before those of the other side, found "
                f"{len(files)}"
            )
        files, other = files[:1], files[1:]
    found = compare(files, other, trust=options.trust)
    print(printable(to_text(found)))
    _write_json(options.json, found)


def _write_json(path: Path | None, record: Any) -> None:
    if path:
        text = json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n"
        # Half of a surrogate pair, which UTF-8 cannot hold, as JSON writes it.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _report(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.report import follow_report, write_report

    if options.follow:
        # Flushed: the reader of a log or a pipe waits for each line.
        say = functools.partial(print, flush=True)
        follow_report(options.runs, options.out, every=options.every, say=say)
    else:
        print(write_report(options.runs, options.out))


def _explain(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.explain import serve

    if options.static:
        print(serve.export(options.static))
    else:
        serve.serve(port=options.port, browser=not options.no_browser)
