"""The list of checks, and the page that explains what they reject."""

from pathlib import Path

import pytest
from fake_verl import recipe

from gdpo_verl.plugin import contract
from gdpo_verl.plugin.checks.checks import CHECKS, Moment, Run, check_run

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_settings_page_explains_every_check_in_the_order_of_the_list():
    section = PAGE.read_text(encoding="utf-8").split("\n## Rejected\n")[1].split("\n## ")[0]
    found = []
    for part in section.split("\n### ")[1:]:
        moment, *lines = part.splitlines()
        rows = [line.split("|")[1].strip() for line in lines if line.startswith("| ")]
        found.append((moment, list(dict.fromkeys(rows[1:]))))
    assert found == [(moment.value, list(named)) for moment, named in CHECKS.items()]
    assert list(CHECKS) == list(Moment)


def test_a_verl_that_does_not_fit_rejects_only_gdpo(monkeypatch):
    monkeypatch.setattr(contract, "first_violation", lambda: "verl lacks something")
    wrong = {"conditoins": {}}
    with pytest.raises(ValueError, match=r"^algorithm\.adv_estimator=gdpo: verl lacks something$"):
        check_run(Run(recipe(**wrong)), Moment.KEYS)
    check_run(Run(recipe("grpo", **wrong)), Moment.KEYS)


def test_checks_of_other_moments_do_not_run():
    config = recipe()
    config.actor_rollout_ref.rollout.n = 1
    check_run(Run(config), Moment.KEYS)
    with pytest.raises(ValueError, match=r"^actor_rollout_ref\.rollout\.n: "):
        check_run(Run(config), Moment.KEYS, Moment.CONFIGURATION)
