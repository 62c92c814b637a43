"""Your own training: the one-line change, and the rollouts of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import marimo as mo

from gdpo_verl.explain import charts, conclusions, dumps

REFERENCES = {
    "2601.05242": "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward "
    "RL Optimization",
    "2402.03300": "GRPO, in DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open "
    "Language Models",
    "2504.13958": "The rewards of the tool calls, in ToolRL: Reward is All Tool Learning Needs",
    "2409.19256": "verl, in HybridFlow: A Flexible and Efficient RLHF Framework",
}


def training() -> str:
    links = [
        charts.link(f"{title} (arXiv:{number})", f"https://arxiv.org/abs/{number}")
        for number, title in REFERENCES.items()
    ]
    return charts.block(
        "training",
        charts.heading(2, "10. In your own training"),
        "One override of verl's own command. The reward function returns one number for each "
        "reward and declares their names.",
        charts.command(
            "python -m verl.trainer.main_ppo algorithm.adv_estimator=gdpo …   # instead of grpo"
        ),
        "The settings that this page plays with stand beside it:",
        charts.command(
            "'+algorithm.gdpo_reward_weights={correctness: 2.0}'\n"
            "'+algorithm.gdpo.conditions={brevity: {on: correctness, at_least: 1.0}}'\n"
            "'+algorithm.gdpo.gate={on: correctness}'\n"
            "+algorithm.gdpo.variant=dvao"
        ),
        charts.heading(3, "References"),
        charts.listed(links),
    )


# ---------------------------------------------------------------- rollouts of a run


def heading() -> str:
    return charts.block(
        "run-heading",
        charts.heading(2, "11. Your own run"),
        "The same bars on rollouts of a training: a run directory, or the folder that "
        "trainer.rollout_data_dir named. Completions are shown as text, whatever they hold. "
        "Nothing leaves this machine.",
    )


def path_form(value: str) -> Any:
    return mo.ui.text(
        value=value,
        label="run directory",
        placeholder="runs/quickstart/gdpo",
        full_width=True,
    )


def find(path: str) -> tuple[Mapping[str, Any], str]:
    """The dumps below a path by what the page calls them, and what is wrong with the path."""
    if not path:
        return {}, ""
    try:
        return {f"step {step}": dump for step, dump in dumps.find_dumps(Path(path)).items()}, ""
    except (ValueError, OSError) as error:
        return {}, str(error)


def step_form(found: Mapping[str, Any]) -> Any:
    if not found:
        return None
    return mo.ui.dropdown(
        list(found), value=next(iter(found)), label="step", allow_select_none=False
    )


def group_form(dump: dumps.Dump | None) -> Any:
    if dump is None or not dump.groups:
        return None
    titles = {f"{i}. {group.title}": i - 1 for i, group in enumerate(dump.groups, start=1)}
    return mo.ui.dropdown(
        titles, value=next(iter(titles)), label="prompt", allow_select_none=False, full_width=True
    )


def show(error: str, dump: dumps.Dump | None, chosen: int | None) -> str:
    if dump is None:
        return charts.block("run", error or "No run is open.")
    parts = list(dump.notes)
    if chosen is not None:
        group = dump.groups[chosen]
        third = (dump.variant, group.variant) if dump.variant else None
        parts += [
            f"Rewards in brackets: {', '.join(dump.components)}.",
            conclusions.collapse_sentence(group.rollouts),
            charts.folded("The prompt", group.prompt, preformatted=True),
            charts.bars(group.rollouts, texts=group.texts, third=third),
        ]
    return charts.block("run", *parts)
