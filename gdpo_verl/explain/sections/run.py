"""Your own training: the one-line change and the references."""

from __future__ import annotations

from gdpo_verl.explain import charts

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
