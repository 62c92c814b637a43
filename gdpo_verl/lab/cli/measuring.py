"""The commands that measure or show: check-reward, replay, evaluate, compare, report, explain."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from gdpo_verl.lab.text import printable

# A word that sets a key, as an override of Hydra does.
_SETTING = re.compile(r"\+{0,2}~?[\w.]+=")


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add these commands to the parser."""
    _add_check_reward(commands)
    _add_replay(commands)
    _add_evaluate(commands)
    _add_compare(commands)
    _add_report(commands)
    _add_explain(commands)


def _add_check_reward(commands: argparse._SubParsersAction) -> None:
    check = commands.add_parser(
        "check-reward",
        help="Check a reward function on rows of the data, before a training run.",
        usage="gdpo-verl check-reward [-h] [--recipe RECIPE | --function PATH:NAME] [--data FILE] "
        "[OPTIONS] [HYDRA OVERRIDES]",
    )
    check.add_argument(
        "--recipe",
        help="Use the configuration of this recipe, for example toolbox/gdpo. Default: verl's own "
        "ppo_trainer.",
    )
    for option, place, about in (
        ("--config-dir", "DIR", "Look for the recipe in DIR. Default: the recipes of gdpo-verl."),
        ("--json", "FILE", "Write the report with each response to FILE. Default: no file."),
    ):
        check.add_argument(option, metavar=place, type=Path, help=about)
    check.add_argument(
        "--function",
        metavar="PATH:NAME",
        help="Check this reward function: FILE.py:name or pkg://package.module:name. Default: the "
        "function of the configuration.",
    )
    check.add_argument(
        "--data",
        metavar="FILE",
        action="append",
        help="Take the rows from this file; may be repeated. Default: data.train_files.",
    )
    for option, about in (
        ("--rows", "Use N rows. Default: 64, or all prompts of the file of --answers."),
        ("--samples", "Sample N responses to each row. Default: actor_rollout_ref.rollout.n."),
    ):
        check.add_argument(option, metavar="N", type=int, help=about)
    responses = check.add_mutually_exclusive_group()
    responses.add_argument(
        "--answers",
        metavar="FILE",
        type=Path,
        help="Score the responses in this file of JSON lines or rollout dump. Default: only "
        "made-up responses are scored.",
    )
    responses.add_argument(
        "--model",
        metavar="DIRECTORY",
        type=Path,
        help="Score responses that this model samples. Default: no model is loaded.",
    )
    check.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=60.0,
        help="Stop a call of the reward function after S seconds. Default: 60.",
    )
    check.set_defaults(command=_check_reward, takes_overrides=True)


def _add_report(commands: argparse._SubParsersAction) -> None:
    report = commands.add_parser("report", help="Draw runs as a page with pictures.")
    report.add_argument(
        "runs",
        type=Path,
        nargs="+",
        help="Run directories, folders of runs or dumps, or files of metrics.",
    )
    report.add_argument(
        "--out",
        type=Path,
        default=Path("report"),
        help="Write the page into this folder. Default: report.",
    )
    report.set_defaults(command=_report)


def _add_explain(commands: argparse._SubParsersAction) -> None:
    explain = commands.add_parser("explain", help="Explore GDPO and GRPO in the browser.")
    explain.add_argument("--port", type=int, help="Listen at this port. Default: a free port.")
    explain.add_argument(
        "--no-browser",
        action="store_true",
        help="Only print the address. Default: the browser is opened.",
    )
    explain.add_argument(
        "--static",
        metavar="FILE",
        type=Path,
        help="Write the page without interactive parts to FILE and exit. Default: serve the page.",
    )
    explain.set_defaults(command=_explain)


def _add_replay(commands: argparse._SubParsersAction) -> None:
    replay = commands.add_parser(
        "replay",
        help="Compute the advantages of stored responses under other settings.",
        usage="gdpo-verl replay [-h] WHERE… [OPTIONS] [SETTINGS OF algorithm]",
    )
    replay.add_argument(
        "where",
        metavar="WHERE",
        nargs="+",
        help="A run, a folder of verl's dumps or TRL's completions, or a file of rows.",
    )
    for option, place, about in (
        (
            "--function",
            "FILE:NAME",
            "Score the responses anew with this function. Default: the stored rewards.",
        ),
        (
            "--group",
            "COLUMN",
            "The responses to one prompt share the value of this column. Default: uid or prompt.",
        ),
        (
            "--response",
            "COLUMN",
            "This column is the text of the response. Default: output, completion or response.",
        ),
        (
            "--components",
            "COLUMN[,…]",
            "These columns are the reward components. Default: those that the run names.",
        ),
        (
            "--outcome",
            "COMPONENT",
            "This component says whether a response solves its task. Default: a usual name.",
        ),
        (
            "--tokenizer",
            "MODEL",
            "Count tokens with its tokenizer. Default: the stored counts, else none.",
        ),
    ):
        replay.add_argument(option, metavar=place, default="", help=about)
    for option, place, about in (
        ("--rows", "FILE.jsonl", "Write a line for each response. Default: no file is written."),
        ("--json", "FILE", "Write all numbers to FILE. Default: no file is written."),
    ):
        replay.add_argument(option, metavar=place, type=Path, help=about)
    _add_trust(replay)
    replay.set_defaults(command=_replay, takes_overrides=True)


def _add_evaluate(commands: argparse._SubParsersAction) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="Measure a model on held-out questions.",
        usage="gdpo-verl evaluate [-h] MODEL --out DIR [OPTIONS] [HYDRA OVERRIDES]",
    )
    evaluate.add_argument(
        "model",
        help="A run, one of its checkpoints, a Hugging Face folder, or a hub id[@revision].",
    )
    evaluate.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        required=True,
        help="Write the responses and the numbers into this new directory. It has no default.",
    )
    evaluate.add_argument(
        "--recipe",
        help="Use the questions and the reward function of this recipe. Default: the run's own "
        "configuration.",
    )
    evaluate.add_argument(
        "--config-dir",
        metavar="DIR",
        type=Path,
        help="Look for the recipe in this folder. Default: the recipes of gdpo-verl.",
    )
    evaluate.add_argument(
        "--data",
        metavar="FILE",
        action="append",
        default=[],
        help="Take the questions from this file; may be repeated. Default: data.val_files.",
    )
    for option, kind, metavar, about in (
        (
            "--samples",
            int,
            "N",
            "Sample N responses to each question. Default: as in the validation.",
        ),
        (
            "--temperature",
            float,
            "T",
            "Sample at temperature T; 0 is greedy. Default: as in the validation.",
        ),
        (
            "--limit",
            int,
            "N",
            "Ask only N questions, the same ones each time. Default: all questions.",
        ),
    ):
        evaluate.add_argument(option, metavar=metavar, type=kind, help=about)
    _add_trust(evaluate)
    evaluate.set_defaults(command=_evaluate, takes_overrides=True)


def _add_compare(commands: argparse._SubParsersAction) -> None:
    compare = commands.add_parser(
        "compare",
        help="Compare two evaluations on the same questions.",
        usage="gdpo-verl compare [-h] A B [--json FILE]\n"
        "       gdpo-verl compare A1 A2 … --to B1 B2 … [--json FILE]",
    )
    compare.add_argument(
        "evaluations",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="A directory of `evaluate`, a run directory, or a validation dump of verl's.",
    )
    compare.add_argument(
        "--to",
        metavar="DIR",
        type=Path,
        nargs="+",
        help="Compare with these evaluations. Default: the second of two.",
    )
    compare.add_argument(
        "--json",
        metavar="FILE",
        type=Path,
        help="Write all numbers to FILE. Default: no file is written.",
    )
    _add_trust(compare)
    compare.set_defaults(command=_compare)


def _add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        action="store_true",
        help="Run code from outside gdpo-verl and verl that the run brings. Default: such code is "
        "not run.",
    )


def _check_reward(options: argparse.Namespace) -> int:
    from gdpo_verl.lab import check_reward
    from gdpo_verl.lab.check_reward.report import report_text

    config = check_reward.compose(options.recipe, options.overrides, options.config_dir)
    check_reward.override_reward_and_data(config, options.function, options.data or [])
    report = check_reward.check(
        config,
        answers=options.answers,
        model=options.model,
        samples=options.samples,
        rows=options.rows,
        timeout=options.timeout,
    )
    print(printable(report_text(report)))
    _write_json(options.json, report)
    return int(bool(report["problems"]))


def _replay(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.replay import output, replay

    # Settings may stand between the paths.
    words = [*options.where, *options.overrides]
    settings = [word for word in words if _SETTING.match(word) and not Path(word).exists()]
    result = replay(
        [Path(word) for word in words if word not in settings],
        settings,
        group=options.group,
        text=options.response,
        components=options.components.split(",") if options.components else (),
        function=options.function,
        tokenizer=options.tokenizer,
        rows_file=options.rows,
        trust=options.trust,
        outcome=options.outcome,
    )
    print(printable(output.to_text(result)))
    _write_json(options.json, output.to_json(result))


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
    print(f"\n{options.out}: every response in validation/, these numbers in evaluation.json")


def _compare(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.evaluate.compare import compare, to_text

    files = options.evaluations
    other = options.to
    if not other:
        if len(files) != 2:
            raise ValueError(
                "compare: expected two evaluations, or --to before the evaluations of the other "
                f"side, found {len(files)}. Give two, or separate the two sides with --to."
            )
        files, other = files[:1], files[1:]
    comparison = compare(files, other, trust=options.trust)
    print(printable(to_text(comparison)))
    _write_json(options.json, comparison)


def _write_json(path: Path | None, record: Any) -> None:
    if path:
        text = json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n"
        # UTF-8 has no code for one half of a surrogate pair, so it is written as an escape of JSON.
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _report(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.report import write_report

    print(write_report(options.runs, options.out))


def _explain(options: argparse.Namespace) -> None:
    from gdpo_verl.lab.explain import serve

    if options.static:
        print(serve.export(options.static))
    else:
        serve.serve_page(port=options.port, browser=not options.no_browser)
