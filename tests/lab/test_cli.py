"""Command lines that are rejected: a message, an exit status, and no file."""

import re
import sys

import pytest
from processes import run

from gdpo_verl.lab.cli import main
from gdpo_verl.lab.tasks.rows import tokenizer_of

REFUSED = {
    "train toolbox/gdop": r"'toolbox/gdop' does not exist.*Did you mean 'toolbox/gdpo'",
    "train Toolbox/GRPO": r"Did you mean 'toolbox/grpo'",
    "train gsm8k": r"Did you mean 'gsm8k/gdpo'",
    "train toolbox/gdpo trainer.total_step=1": r"recipe toolbox/gdpo: .*total_step",
    "train toolbox/gdpo --retries x": r"--retries: invalid int value: 'x'",
    "train toolbox/gdpo --retry 3": r"unrecognized arguments: --retry 3",
    "train toolbox/gdpo -- --no-wait": r"unrecognized arguments: -- --no-wait",
    "submit gsm8k/gdpo --run run": r"--run: expected an absolute path, found 'run'",
    "submit gsm8k/gdpo --run /run --env NOT_SET": r"--env: NOT_SET is not set",
    "submit gsm8k/gdpo --run run --dry-run": r"--run: expected an absolute path, found 'run'",
    "submit gsm8k/gdpo --run /run --env NOT_SET --dry-run": r"--env: NOT_SET is not set",
    "train toolbox/gdpo --retries -1": r"--retries: expected at least 0, found -1",
    "check-reward --config-dir .": r"--config-dir: expected --recipe as well, found none",
    "evaluate model --out out --config-dir .": r"--config-dir: expected --recipe as well",
    "submit toolbox/gdpo --run /run": r"model\.path: .*'~/models/.*verl's own default",
}


@pytest.mark.parametrize(("command", "sentence"), REFUSED.items(), ids=REFUSED)
def test_a_wrong_command_line_is_rejected_with_a_message(
    command,
    sentence,
    tmp_path,
    monkeypatch,
    capsys,
):
    monkeypatch.chdir(tmp_path)
    try:
        status = main(command.split())
    except SystemExit as end:  # raised by argparse
        status = end.code
    assert status in (1, 2)
    assert re.search(sentence, capsys.readouterr().err)
    assert not any(tmp_path.iterdir())


def test_a_missing_transformers_is_named_with_its_own_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"^--tokenizer: .* pip install transformers$"):
        tokenizer_of("model", "--tokenizer")


def test_a_reader_that_closes_the_pipe_causes_no_error():
    command = f"{sys.executable} -m gdpo_verl.lab.cli doctor | true; exit ${{PIPESTATUS[0]}}"
    ended = run("bash", "-c", command)
    assert ended.returncode == 141
    assert "pipe" not in ended.stderr
