"""The commands that start a run, here or on a cluster: train, submit."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add these commands to the parser."""
    train = commands.add_parser(
        "train",
        help="Train a recipe in its run directory.",
        usage="gdpo-verl train [-h] [OPTIONS] RECIPE [HYDRA OVERRIDES]",
    )
    train.add_argument("recipe", help="The recipe that is trained, for example toolbox/gdpo.")
    train.add_argument(
        "--run", type=Path, help="Write the run to this directory. Default: runs/RECIPE."
    )
    train.add_argument(
        "--cfg", choices=["job"], help="Print the configuration and end. Default: train the recipe."
    )
    _add_run_options(train)
    train.set_defaults(command=_train, takes_overrides=True)

    submit = commands.add_parser(
        "submit",
        help="Train a recipe on a Ray cluster.",
        usage="gdpo-verl submit [-h] --run RUN [OPTIONS] RECIPE [HYDRA OVERRIDES] "
        "[-- OPTIONS OF ray job submit]",
    )
    submit.add_argument("recipe", help="The recipe that is trained, for example tool_call/gdpo.")
    submit.add_argument(
        "--run",
        type=Path,
        required=True,
        help="Write the run to this directory, which every node must be able to write. It has no "
        "default.",
    )
    submit.add_argument(
        "--working-dir",
        metavar="DIR",
        help="Send this directory to every node, where the job runs in it. Default: none is sent.",
    )
    submit.add_argument(
        "--env",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="Set this variable for every process of the job, and repeat the option for more of "
        "them; a name alone takes the value it has here, and keeps a secret off the command line. "
        "Default: none.",
    )
    submit.add_argument(
        "--upload",
        action="store_true",
        help="Send this gdpo-verl to every node with the job. Default: the nodes have it.",
    )
    _add_run_options(submit)
    submit.set_defaults(command=_submit, takes_overrides=True, takes_ray_options=True)


def _add_run_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config-dir",
        metavar="DIR",
        type=Path,
        help="Read the recipe from this directory. Default: the recipes of gdpo-verl.",
    )
    command.add_argument(
        "--retries",
        metavar="N",
        type=int,
        default=0,
        help="Start a run that failed again, up to this many times, from its last complete "
        "checkpoint. Default: 0.",
    )
    command.add_argument(
        "--hang-after",
        metavar="MINUTES",
        type=float,
        default=120.0,
        help="End a run that logs no step and no validation for this many minutes. Default: 120.",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="Check everything that needs no GPU, say what would run and what it needs, and end. "
        "Default: train the recipe.",
    )
    command.add_argument(
        "--card",
        metavar="GIB",
        type=float,
        help="Set the memory of one GPU for --dry-run. Default: that of this machine's GPUs, or "
        "else that of the hardware recipe.",
    )
    command.add_argument(
        "--accept-changed-files",
        action="store_true",
        help="Resume a run although its data, policy, reward file or gdpo-verl changed. Default: "
        "such a start is rejected.",
    )


def _check_retries(options: argparse.Namespace) -> None:
    if options.retries < 0:
        raise ValueError(f"--retries: expected at least 0, found {options.retries}")


def _train(options: argparse.Namespace) -> int:
    _check_retries(options)
    run = options.run or Path("runs") / options.recipe
    if options.cfg:
        from omegaconf import OmegaConf

        from gdpo_verl.lab.run.launch import composed

        config, _ = composed(options.recipe, run, options.overrides, options.config_dir)
        print(OmegaConf.to_yaml(config), end="")
        return 0
    if options.dry_run:
        return _dry_run(options, run, options.overrides)
    from gdpo_verl.lab.run.launch import train

    train(
        options.recipe,
        run,
        options.overrides,
        retries=options.retries,
        hang_after=60 * options.hang_after,
        config_dir=options.config_dir,
        accept_changed_files=options.accept_changed_files,
    )
    return 0


def _dry_run(
    options: argparse.Namespace, run: Path, overrides: Sequence[str], *, elsewhere: bool = False
) -> int:
    from gdpo_verl.lab.dry_run import dry_run

    result = dry_run(
        options.recipe,
        run,
        overrides,
        card=options.card,
        elsewhere=elsewhere,
        config_dir=options.config_dir,
        accept_changed_files=options.accept_changed_files,
    )
    print(result.to_text())
    return int(bool(result.problems))


def _submit(options: argparse.Namespace) -> int:
    from gdpo_verl.lab.run import submit

    _check_retries(options)
    if options.dry_run:
        submit.check_run_and_env(options.run, options.env)
        # The job runs in another directory, so it gets absolute paths.
        overrides = submit.absolute(
            options.recipe, options.overrides, options.working_dir, options.config_dir
        )
        return _dry_run(options, options.run, overrides, elsewhere=True)
    return submit.submit(
        options.recipe,
        options.run,
        options.overrides,
        program=__package__,
        env=options.env,
        upload=options.upload,
        working_dir=options.working_dir,
        retries=options.retries,
        hang_after=60 * options.hang_after,
        config_dir=options.config_dir,
        accept_changed_files=options.accept_changed_files,
        ray_options=options.ray_options,
    )
