"""Read the examples with expected rewards that recipes contain: ``recipes/NAME/cases.jsonl``."""

import json

from gdpo_verl.lab.run.composition import recipes_directory

FILES = {file.parent.name: file for file in sorted(recipes_directory().glob("*/cases.jsonl"))}
# Long limits, so that a program does not time out because the machine is busy.
SETTINGS = {"code": {"timeout": 60, "deadline": 600}}


def cases_of(recipe):
    return [json.loads(line) for line in FILES[recipe].open(encoding="utf-8")]
