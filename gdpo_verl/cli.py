"""The command `gdpo-verl`."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from gdpo_verl import __version__
from gdpo_verl.run import jobs
from gdpo_verl.tasks.catalog import BENCHMARKS, DATASETS


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
    policy.add_argument("--task", choices=["toolbox", "reasoning-gym", "bfcl"], default="toolbox")
    policy.add_argument("--out", type=Path, help="default: models/TASK")
    policy.add_argument("--seed", type=int, default=0)
    policy.set_defaults(command=_make_policy)

    train = commands.add_parser(
        "train",
        help="train a recipe in a directory of its own",
        usage="gdpo-verl train [-h] [OPTIONS] RECIPE [HYDRA OVERRIDES]",
    )
    train.add_argument("recipe", help="for example toolbox/gdpo")
    train.add_argument("--run", type=Path, help="default: runs/RECIPE")
    train.add_argument("--cfg", choices=["job"], help="print the configuration and end")
    _add_retries(train)
    train.add_argument(
        "--hang-after",
        metavar="MINUTES",
        type=float,
        default=120.0,
        help="without a logged step or validation, a training is ended; default: 120",
    )
    _add_dry_run(train)
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
    jobs.add_server_options(submit)
    jobs.add_entrypoint_options(submit)
    submit.add_argument(
        "--working-dir", metavar="DIR", help="to send to every node; the job's processes run in it"
    )
    submit.add_argument(
        "--no-wait", action="store_true", help="print the job's id and end; see attach"
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
    _add_retries(submit)
    _add_dry_run(submit)
    submit.set_defaults(command=_submit)

    attach = commands.add_parser("attach", help="show a submitted job's log until the job ends")
    attach.add_argument("job", help="as submit prints it")
    jobs.add_server_options(attach)
    attach.set_defaults(command=_attach)

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
        "--step-seconds",
        metavar="S",
        type=float,
        default=60.0,
        help="of a training step, of which an answer may take 5 %%; default: 60",
    )
    check.add_argument(
        "--json", metavar="FILE", type=Path, help="write the report with each answer"
    )
    check.set_defaults(command=_check_reward)

    evaluate = commands.add_parser("evaluate", help="measure a model on held-out questions")
    evaluate.add_argument(
        "model", help="a run, one of its checkpoints, a Hugging Face folder, or a hub id[@revision]"
    )
    evaluate.add_argument(
        "benchmarks", metavar="BENCHMARK", nargs="+", help=f"of {', '.join(BENCHMARKS)}"
    )
    evaluate.add_argument("--out", metavar="FILE.json", type=Path, required=True)
    evaluate.add_argument(
        "--data",
        metavar="[BENCHMARK=]SOURCE",
        action="append",
        default=[],
        help="questions in place of the benchmark's own, for example data/bfcl/validation.parquet",
    )
    evaluate.add_argument("--limit", metavar="N", type=int, help="so many questions, spread evenly")
    for option, kind, about in (
        ("--samples", int, "answers to each question; default: 1"),
        ("--temperature", float, "default: that of the recipe's validation"),
        ("--top-p", float, "default: that of the recipe's validation"),
        ("--max-tokens", int, "of an answer; default: the recipe's"),
        ("--seed", int, "of the sampling; default: 0"),
    ):
        evaluate.add_argument(option, type=kind, help=about)
    evaluate.add_argument(
        "--chat-template", metavar="FILE", type=Path, help="in place of the model's own"
    )
    evaluate.add_argument(
        "--prompt-from",
        metavar="FILE",
        help="training rows whose prompt to ask bfcl with; default: those of the run",
    )
    evaluate.add_argument(
        "--allow-unprotected",
        action="store_true",
        help="run the model's programs even where nothing protects this machine",
    )
    evaluate.add_argument("--dtype", help="default: float32 on CPU, else vLLM's for the model")
    evaluate.add_argument("--tensor-parallel-size", metavar="GPUS", type=int, default=1)
    evaluate.add_argument("--gpu-memory-utilization", metavar="SHARE", type=float, default=0.9)
    evaluate.set_defaults(command=_evaluate)

    compare = commands.add_parser(
        "compare",
        help="two evaluations on the same questions",
        usage="gdpo-verl compare [-h] A.json B.json [--json FILE]\n"
        "       gdpo-verl compare A1.json A2.json … --to B1.json B2.json … [--json FILE]",
    )
    compare.add_argument("evaluations", metavar="FILE.json", type=Path, nargs="+")
    compare.add_argument(
        "--to", metavar="FILE.json", type=Path, nargs="+", help="the other side, if several"
    )
    compare.add_argument("--json", metavar="FILE", type=Path, help="write all the numbers")
    compare.set_defaults(command=_compare)

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


def _add_retries(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--retries",
        metavar="N",
        type=_count,
        default=0,
        help="starts after a failure, from the last whole checkpoint; default: 0",
    )


def _add_dry_run(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="check all that needs no GPU, say what would run and what it needs, and end",
    )
    command.add_argument(
        "--card",
        metavar="GIB",
        type=float,
        help="memory of one GPU for --dry-run; default: this machine's, else the recipe's",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of starts: 0, 1, 2, …")
    return int(text)


def _doctor(options: argparse.Namespace) -> int:
    from gdpo_verl.doctor import diagnose

    findings = diagnose()
    for finding in findings:
        print(f"{'FAIL' if finding.remedy else 'ok':4}  {finding.subject:20}  {finding.state}")
        if finding.remedy:
            print(f"      -> {finding.remedy}")
    return int(any(finding.remedy for finding in findings))


def _prepare(options: argparse.Namespace) -> None:
    from gdpo_verl.tasks import catalog

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

    out = options.out or Path("models") / options.task
    result = make_policy(out, task=options.task, seed=options.seed)
    for decoding in ("sampled", "greedy"):
        share = result[decoding]
        print(f"{decoding}: correct format {share['format']:.1%}, exact {share['exact']:.1%}")
    print(f"{out}: trained in {result['seconds']:.0f} s from seed {options.seed}")


def _train(options: argparse.Namespace) -> int:
    run = options.run or Path("runs") / options.recipe
    if options.cfg:
        from omegaconf import OmegaConf

        from gdpo_verl.run.launch import composed

        config, _ = composed(options.recipe, run, options.overrides)
        print(OmegaConf.to_yaml(config), end="")
        return 0
    if options.dry_run:
        return _dry_run(options, run, options.overrides)
    from gdpo_verl.run.launch import train

    train(
        options.recipe,
        run,
        options.overrides,
        retries=options.retries,
        hang_after=60 * options.hang_after,
    )
    return 0


def _dry_run(
    options: argparse.Namespace, run: Path, overrides: Sequence[str], *, elsewhere: bool = False
) -> int:
    from gdpo_verl.dry_run import dry_run

    found = dry_run(options.recipe, run, overrides, card=options.card, elsewhere=elsewhere)
    print(found.to_text())
    return int(bool(found.problems))


def _submit(options: argparse.Namespace) -> int:
    from gdpo_verl.run import submit

    if options.dry_run:
        overrides = submit.absolute(options.recipe, options.overrides, options.working_dir)
        return _dry_run(options, options.run, overrides, elsewhere=True)
    return submit.submit(
        options.recipe,
        options.run,
        options.overrides,
        server=jobs.server_of(options),
        env=options.env,
        upload=options.upload,
        working_dir=options.working_dir,
        entrypoint=jobs.entrypoint_of(options),
        retries=options.retries,
        wait=not options.no_wait,
    )


def _attach(options: argparse.Namespace) -> int:
    return jobs.attach(jobs.server_of(options), options.job)


def _check_reward(options: argparse.Namespace) -> int:
    from gdpo_verl import check_reward

    config = check_reward.compose(options.recipe, options.overrides, options.config_dir)
    check_reward.point_at(config, options.function, options.data or [])
    source = check_reward.Source(options.answers, options.column, options.model)
    checked = check_reward.check(
        config,
        source,
        rows=options.rows,
        timeout=options.timeout,
        step_seconds=options.step_seconds,
    )
    print(checked.to_text())
    if options.json:
        options.json.write_text(checked.to_json(), encoding="utf-8")
    return int(bool(checked.report.problems))


def _evaluate(options: argparse.Namespace) -> None:
    from gdpo_verl.evaluate.result import answers_path, to_text
    from gdpo_verl.evaluate.run import Request, evaluate
    from gdpo_verl.evaluate.sampling import EngineOptions

    names = ("samples", "temperature", "top_p", "max_tokens", "seed")
    chosen = {name: getattr(options, name) for name in names}
    request = Request(
        options.model,
        options.benchmarks,
        _data(options.data, options.benchmarks),
        {name: value for name, value in chosen.items() if value is not None},
        options.limit,
        options.chat_template,
        options.prompt_from,
        options.allow_unprotected,
        EngineOptions(options.dtype, options.tensor_parallel_size, options.gpu_memory_utilization),
    )
    print(to_text(evaluate(request, options.out)))
    print(f"\n{options.out}, and every answer in {answers_path(options.out)}")


def _data(given: Sequence[str], benchmarks: Sequence[str]) -> dict[str, str]:
    """``--data``: for a benchmark by its name, or, where there is one alone, for that."""
    found = {}
    for each in given:
        name, equals, source = each.partition("=")
        if not equals or name not in BENCHMARKS:
            if len(benchmarks) > 1:
                raise ValueError(
                    f"--data: with several benchmarks expected BENCHMARK=SOURCE, found {each!r}"
                )
            name, source = benchmarks[0], each
        if name in found:
            raise ValueError(f"--data: expected one source for {name}, found two")
        found[name] = source
    return found


def _compare(options: argparse.Namespace) -> None:
    from gdpo_verl.evaluate.compare import compare

    files, other = options.evaluations, options.to
    if not other:
        if len(files) != 2:
            raise ValueError(
                f"compare: expected two files, or --to before those of the other side, found "
                f"{len(files)} files"
            )
        files, other = files[:1], files[1:]
    found = compare(files, other)
    print(found.to_text())
    if options.json:
        options.json.write_text(found.to_json(), encoding="utf-8")


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
