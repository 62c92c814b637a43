"""The commands that prepare a run: doctor, prepare, make-policy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gdpo_verl.lab import catalog


def add_commands(commands: argparse._SubParsersAction) -> None:
    """Add these commands to the parser."""
    _add_doctor(commands)
    _add_prepare(commands)
    _add_make_policy(commands)


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    doctor = commands.add_parser(
        "doctor", help="Check whether GDPO can run here, and say what to do if it cannot."
    )
    doctor.set_defaults(command=_doctor)


def _add_prepare(commands: argparse._SubParsersAction) -> None:
    prepare = commands.add_parser("prepare", help="Write a data set in verl's columns.")
    prepare.add_argument(
        "dataset", choices=list(catalog.DATA_SETS), help="The data set that is prepared."
    )
    prepare.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help="Read the data set from this hub id, file or folder. Default: its place on the hub.",
    )
    prepare.add_argument(
        "--out", type=Path, help="Write the files to this directory. Default: data/DATASET."
    )
    prepare.add_argument(
        "--seed",
        type=int,
        default=0,
        help="Set the seed of whatever is chosen or generated at random. Default: 0.",
    )
    prepare.add_argument(
        "--validation",
        metavar="ROWS",
        type=int,
        help="Hold out this many rows where the data set has no validation split. Default: the "
        "number that the data set defines.",
    )
    prepare.add_argument(
        "--model",
        help="Count the tokens of the prompts with the tokenizer of this model. Default: the "
        "prompts are not counted.",
    )
    prepare.add_argument(
        "--max-prompt-length",
        metavar="TOKENS",
        type=int,
        help="Leave out prompts with more tokens, if --model is given. Default: the length in the "
        "recipe.",
    )
    prepare.add_argument(
        "--shots",
        metavar="N",
        type=int,
        default=0,
        help="Put this many worked examples in front of each prompt. Default: 0.",
    )
    prepare.add_argument(
        "--negative",
        choices=["text", "failure", "avoided"],
        help="Say what criteria with a negative weight describe in a data set with rubrics: a "
        "failure, or something that is avoided, whose weight becomes positive. Default: text, "
        "which reads it from each criterion and leaves out rows where it is not clear.",
    )
    prepare.set_defaults(command=_prepare)


def _add_make_policy(commands: argparse._SubParsersAction) -> None:
    policy = commands.add_parser(
        "make-policy", help="Make the policy from which a run starts: a tiny or a pretrained one."
    )
    policy.add_argument(
        "name", nargs="?", choices=["tiny", "smollm2"], default="tiny",
        help="Make a tiny policy, which is trained here for a task in minutes, or fetch "
        "SmolLM2-135M-Instruct. Default: tiny.",
    )  # fmt: skip
    policy.add_argument(
        "--task", choices=catalog.POLICY_TASKS,
        help="Train the tiny policy for this task. Default: toolbox.",
    )  # fmt: skip
    policy.add_argument(
        "--from", dest="base", metavar="MODEL",
        help="Start from the pretrained model in this directory. Default: random weights.",
    )  # fmt: skip
    policy.add_argument(
        "--out", type=Path,
        help="Write the policy to this directory. Default: models/TASK, models/smollm2, or with "
        "--from models/MODEL-TASK.",
    )  # fmt: skip
    policy.add_argument(
        "--seed", type=int,
        help="Set the seed of the weights and of the training. Default: 0.",
    )  # fmt: skip
    policy.set_defaults(command=_make_policy)


def _doctor(options: argparse.Namespace) -> int:
    from gdpo_verl.lab.doctor import diagnose

    findings = diagnose()
    for finding in findings:
        mark = "FAIL" if finding.remedy else "ok"
        print(f"{mark:4}  {finding.subject:20}  {finding.state}")
        if finding.remedy:
            print(f"      -> {finding.remedy}")
    return int(any(finding.remedy for finding in findings))


def _prepare(options: argparse.Namespace) -> None:
    out = options.out or Path("data") / options.dataset
    provenance = catalog.prepare(
        options.dataset,
        out,
        source=options.source,
        seed=options.seed,
        validation=options.validation,
        model=options.model,
        max_prompt_length=options.max_prompt_length,
        shots=options.shots,
        negative=options.negative,
    )
    for name, file in provenance["files"].items():
        print(f"{out / name}: {file['rows']} rows")
    for line in catalog.provenance_notes(provenance):
        print(line, file=sys.stderr)


def _make_policy(options: argparse.Namespace) -> None:
    if options.name == "smollm2":
        of_training = {"--from": options.base, "--task": options.task, "--seed": options.seed}
        without_effect = [name for name, value in of_training.items() if value is not None]
        if without_effect:
            raise ValueError(
                f"{', '.join(without_effect)}: smollm2 is fetched and not trained. Leave out these "
                "options, or smollm2"
            )
        from gdpo_verl.lab.policy.pretrained import make_smollm2

        out = options.out or Path("models/smollm2")
        made = make_smollm2(out)
        print(f"{out}: {made['parameters']:,} parameters from {made['source']}, {made['licence']}")
        return

    from gdpo_verl.lab.policy import make_policy

    stem = f"{Path(options.base).resolve().name}-" if options.base else ""
    task_name = options.task or catalog.POLICY_TASKS[0]
    out = options.out or Path("models") / f"{stem}{task_name}"
    task = catalog.policy_tasks()[task_name]
    seed = options.seed or 0
    result = make_policy(out, task, seed=seed, base=options.base)
    for decoding in ("sampled", "greedy"):
        share = result[decoding]
        print(f"{decoding}: correct format {share['format']:.1%}, exact {share['exact']:.1%}")
    print(f"{out}: trained in {result['seconds']:.0f} s from seed {seed}")
