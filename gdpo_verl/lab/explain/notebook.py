# /// script
# [tool.marimo.display]
# theme = "system"
# ///
# mypy: allow-untyped-defs
"""GRPO and GDPO side by side: the notebook behind `gdpo-verl explain`.

A section has a cell for its text and its form, and one that shows what follows from the form. The
static page leaves the widgets out.
"""

import marimo

app = marimo.App(width="medium", app_title="What GRPO takes for equal")

with app.setup:
    import marimo as mo
    import torch

    from gdpo_verl.advantage import VARIANTS
    from gdpo_verl.lab.explain import (
        calls,
        charts,
        compare,
        curves,
        examples,
        phantom,
        study,
        toy,
        units,
    )

    # Threads cost more than they bring on tensors as small as these.
    torch.set_num_threads(1)


@app.cell
def introduction():
    mo.Html(
        charts.STYLE
        + charts.block(
            "introduction",
            charts.heading(1, "What GRPO takes for equal, and GDPO does not"),
            "With several rewards, GRPO adds them and normalises the sum within the group of "
            "rollouts of one prompt. GDPO normalises each reward within the group, adds the "
            "results, and whitens the sum over the batch. Every advantage here comes from "
            "gdpo_verl.advantage, and every number in a picture or a table is what this page has "
            "just computed.",
        )
    )
    return


@app.function
def show(name, *parts, form=()):
    """One cell's output, see `charts.block`, and below it widgets where they can be moved."""
    # On the static page nobody answers a widget.
    text = mo.Html(charts.block(name, *parts))
    return mo.vstack([text, *form]) if form and mo.running_in_notebook() else text


@app.function
def row(widgets):
    """Widgets side by side, as many as there is room for."""
    return mo.hstack(list(widgets), wrap=True, justify="start")


@app.function
def compared(rewards, keys, texts, *, why=(), **options):
    """The parts on a group: its bars, why, and its ties; see `compare.decompose_group`."""
    try:
        found = compare.decompose_group(rewards, keys, **options)
    except ValueError as error:  # as of weights that are all 0: for the reader, and no crash
        return [f"No advantages: {error}"]
    variant = options.get("variant", "gdpo")
    third = None
    if variant != "gdpo":
        third = variant, dict(zip(texts, found.advantage.tolist(), strict=True))
    group = compare.compare(list(texts), found)
    return [charts.bars(group, texts=texts, third=third), *why, charts.ties(group, keys)]


@app.function
def slider(low, high, step, value, label, *, slow=False):
    """A slider that answers while it is moved, or when it is let go: something is trained then."""
    return mo.ui.slider(low, high, step, value=value, label=label, show_value=True, debounce=slow)


# ---------------------------------------------------------------- 1. twelve answers


@app.cell
def answers_form():
    answers_texts = {str(_i): _text for _i, _text in enumerate(examples.ANSWERS, 1)}
    _verdicts = {
        f"{_key} {_name}": mo.ui.checkbox(value=bool(_value), label=_key)
        for _name, _answer in answers_texts.items()
        for _key, _value in zip(examples.KEYS, examples.score(_answer), strict=True)
    }
    # One dictionary a section: the cell that shows it runs again when any part of it moves.
    answers_chosen = mo.ui.dictionary(
        {
            "verdicts": mo.ui.dictionary(_verdicts),
            "worth": mo.ui.dictionary(
                {_key: slider(0.5, 10, 0.5, 1, f"{_key} is worth") for _key in examples.KEYS}
            ),
            "weights": mo.ui.dictionary(
                {_key: slider(0, 2, 0.1, 1, f"weight of {_key}") for _key in examples.KEYS}
            ),
            "conditions": mo.ui.dictionary(
                {
                    _key: mo.ui.checkbox(label=f"{_key} counts only in correct answers")
                    for _key in examples.KEYS[1:]
                }
            ),
            "whiten": mo.ui.switch(value=True, label="whiten over this group"),
            "variant": mo.ui.dropdown(
                list(VARIANTS), value="gdpo", label="beside them", allow_select_none=False
            ),
        }
    )
    _answers = [mo.Html(charts.STYLE)]  # the page's own style does not reach into an accordion
    for _name, _text in answers_texts.items():
        _shown = charts.folded(f"Answer {_name}", _text, preformatted=True, opened=True)
        _answers += [
            show(f"answer-{_name}", _shown),
            row(answers_chosen["verdicts"][f"{_key} {_name}"] for _key in examples.KEYS),
        ]
    _others = [*answers_chosen["conditions"].elements.values()]
    _others += [answers_chosen["whiten"], answers_chosen["variant"]]
    show(
        "answers-heading",
        charts.heading(2, "1. Twelve answers, three rewards"),
        f"The prompt is “{examples.PROMPT}” Twelve rollouts are scored for correctness (the call "
        "is the one asked for), style (a thought, then a call, and nothing else) and conciseness "
        f"(at most {examples.CONCISE} characters). Overrule any verdict; change what a reward is "
        "worth, its weight, and what it depends on; and set another estimator beside the two.",
        "Rollouts with different rewards and one GRPO advantage share a letter: collapse where "
        "GDPO tells them apart, a tie in both where it does not. What a reward is worth moves "
        "GRPO's advantages, and not GDPO's: only a weight does.",
        form=[
            mo.accordion({"The twelve answers and their verdicts": mo.vstack(_answers)}),
            row(answers_chosen["worth"].elements.values()),
            row(answers_chosen["weights"].elements.values()),
            row(_others),
        ],
    )
    return answers_chosen, answers_texts


@app.cell
def answers_shown(answers_chosen, answers_texts):
    _chosen = answers_chosen.value
    _worth = _chosen["worth"]
    _rewards = torch.tensor(
        [
            [_chosen["verdicts"][f"{_key} {_name}"] * _worth[_key] for _key in examples.KEYS]
            for _name in answers_texts
        ],
        dtype=torch.float64,
    )
    # In the units of the page, as conditions are read before weights.
    _on = {"on": "correctness", "at_least": _worth["correctness"]}
    _why = [
        charts.heading(3, "Why, for one pair of each tie"),
        "GRPO adds first: equal sums get one advantage, whatever the rest of the group does. "
        "GDPO divides each reward by its own deviation in the group before it adds, so that "
        "the two sums differ, unless what one rollout wins on one reward weighs as much as "
        "what the other wins on another.",
    ]
    _parts = compared(
        _rewards,
        examples.KEYS,
        answers_texts,
        why=_why,
        weights=list(_chosen["weights"].values()),
        conditions={_key: _on for _key, _asked in _chosen["conditions"].items() if _asked},
        whiten=_chosen["whiten"],
        variant=_chosen["variant"],
        highest=list(_worth.values()),
    )
    show("answers", *_parts)
    return


# ---------------------------------------------------------------- 2. tool calls


@app.cell
def calls_form():
    calls_chosen = mo.ui.dictionary(
        {_key: slider(0, 8, 0.1, 1, f"weight of the {_key}") for _key in calls.KEYS}
    )
    show(
        "calls-heading",
        charts.heading(2, "2. The same with real tool calls"),
        f"“{calls.PROMPT}” There is one tool, future_value(principal, rate, years, per_year), and "
        "seven answers. Their format (0 or 1) and correctness (−3 to 3) come from this package's "
        "own reward for tool calls, and every call that can be read has been executed.",
        charts.table(*calls.table(), prose=True),
        "With equal weights GRPO takes answers 2 and 3 for equal: the right arguments without a "
        "thought, and a thought with a wrong rate. GDPO prefers answer 3 until correctness weighs "
        "some five times as much as format. Which of the two is the better answer, no estimator "
        "knows: say it with the weights.",
        form=[row(calls_chosen.elements.values())],
    )
    return (calls_chosen,)


@app.cell
def calls_shown(calls_chosen):
    _texts = {str(_i): _answer for _i, _answer in enumerate(calls.ANSWERS, 1)}
    _weights = list(calls_chosen.value.values())
    show("calls", *compared(calls.rewards(), calls.KEYS, _texts, weights=_weights))
    return


# ---------------------------------------------------------------- 3. to 5. groups


@app.cell
def trades():
    _size = len(examples.ANSWERS)  # the group of section 1, where one can look for such a pair
    show(
        "trades",
        charts.heading(2, "3. [1, 0, 1] and [0, 1, 1]: when they look the same"),
        "Both sums are 2, and a sum is all that GRPO sees. To GDPO it matters how many of the "
        f"{_size} rollouts earn the first reward, n₁, and the second, n₂: a reward that few earn, "
        "or few miss, varies less and weighs more. The table holds GDPO's advantage of [1, 0, 1] "
        "minus that of [0, 1, 1], before whitening.",
        charts.gaps(compare.gaps_of_a_trade(_size)),
        f"They are equal where n₁ = n₂ or n₁ + n₂ = {_size}: there both rewards vary equally.",
    )
    return


@app.cell
def ranking_form():
    ranking_chosen = mo.ui.dictionary(
        {
            f"{_name} {_key}": slider(_low, _high, _step, _value, f"{_name}: {_key} ({_unit})")
            for _name, _values in examples.RANKINGS.items()
            for (_key, _unit, _low, _high, _step), _value in zip(
                examples.RANGES, _values, strict=True
            )
        }
    )
    show(
        "ranking-heading",
        charts.heading(2, "4. Rewards with different ranges"),
        "Five rankings of the same videos, judged by relevance (NDCG, 0 to 1), rating (1 to 5 "
        "stars) and watch time (0 to 60 minutes). Nobody has chosen weights: each reward comes in "
        "its own unit, and the one whose numbers vary most weighs most in GRPO's sum. The table "
        "counts the pairs that a method orders as one reward alone would.",
        form=[
            row(ranking_chosen[f"{_name} {_key}"] for _key, *_ in examples.RANGES)
            for _name in examples.RANKINGS
        ],
    )
    return (ranking_chosen,)


@app.cell
def ranking_shown(ranking_chosen):
    _keys = [_key for _key, *_ in examples.RANGES]
    _rewards = torch.tensor(
        [
            [ranking_chosen.value[f"{_name} {_key}"] for _key in _keys]
            for _name in examples.RANKINGS
        ],
        dtype=torch.float64,
    )
    _group = compare.compare(list(examples.RANKINGS), compare.decompose_group(_rewards, _keys))
    # One reward alone as the judge, for which of the two orders more pairs as it does.
    _columns = list(zip(*[_each.rewards for _each in _group], strict=True))
    _grpo, _gdpo = [_each.grpo for _each in _group], [_each.gdpo for _each in _group]
    _alike = [
        [_method, *[compare.orders_alike(_values, _column) for _column in _columns]]
        for _method, _values in (("GRPO", _grpo), ("GDPO", _gdpo))
    ]
    _pairs = len(_group) * (len(_group) - 1) // 2
    show(
        "ranking",
        charts.bars(_group),
        charts.table([f"of {_pairs} pairs, ordered as by", *_keys], _alike),
    )
    return


@app.cell
def distinct():
    def _counts(title, columns):
        """Count the groups that each method tells apart, a column for each (rewards, rollouts)."""
        # A count's fields are a column; the table wants rows.
        counts = zip(*[compare.count_distinct(*pair) for pair in columns.values()], strict=True)
        names = ("different groups", "GRPO", "GRPO without σ", "GDPO")
        rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
        return charts.table([title, *map(str, columns)], rows)

    show(
        "distinct",
        charts.heading(2, "5. How many groups each method can tell apart"),
        "Every group of binary rewards there is, order aside, and the number of different "
        "advantages they get, before whitening. Counted by going through all of them.",
        _counts("2 rewards, rollouts:", {n: (2, n) for n in (2, 3, 4, 6, 8, 10)}),
        _counts("4 rollouts, rewards:", {k: (k, 4) for k in (1, 2, 3, 4, 5)}),
    )
    return


# ---------------------------------------------------------------- 6. and 7. a toy policy


@app.cell
def skills_form():
    skills_chosen = mo.ui.dictionary(
        {
            "seeds": slider(5, 50, 5, 20, "seeds", slow=True),
            "learning_rate": slider(0.05, 0.5, 0.05, toy.LEARNING_RATE, "learning rate", slow=True),
            "correlation": slider(-0.9, 0.9, 0.1, 0.7, "correlation", slow=True),
            "factor": slider(1, 20, 1, 10, "scale of the largest reward", slow=True),
            "hard": slider(0.01, 0.5, 0.01, 0.02, "start of the hard skill", slow=True),
            "noise": slider(0.05, 2, 0.05, 0.1, "size of the coin flip", slow=True),
        }
    )
    show(
        "toy-heading",
        charts.heading(2, "6. A toy policy, trained while you wait"),
        f"Three logits, three skills; an epoch draws one group of {toy.BATCH} rollouts and takes "
        f"one step, {toy.EPOCHS} epochs in all. The curves show the probability of the slowest "
        "skill: the mean over the seeds and a band of one standard deviation. With one group a "
        "batch, whitening does nothing but set the scale.",
        form=[row(skills_chosen.elements.values())],
    )
    return (skills_chosen,)


@app.cell
def skills_shown(skills_chosen):
    cases = study.study_all(**skills_chosen.value)
    _slowest = {
        _case.name: {_m: _t.slowest for _m, _t in _case.trainings.items()} for _case in cases
    }
    # `cases` goes on to section 7, which would train all of it again.
    show(
        "toy",
        curves.figures("slowest skill", _slowest),
        charts.folded("All numbers", charts.table(*study.case_table(cases))),
        charts.heading(3, "The gap that whitening closes"),
        "A page known for explaining GDPO trains this very policy on independent rewards and "
        "leaves the whitening out. Unwhitened advantages spread wider than GRPO's, which is a "
        "larger learning rate by another name: the last curve of each picture is GRPO with its "
        "learning rate times that factor. Where it runs with the unwhitened curve, the lead is no "
        "merit of the decoupling.",
    )
    return (cases,)


@app.cell
def when(cases):
    show(
        "when",
        charts.heading(2, "7. When to use which"),
        "The slowest skill on each task: its mean over all epochs with GRPO, with GDPO, and with "
        "GRPO at the larger learning rate of section 6. One of the first two is ahead when they "
        "differ by more than 0.01 and two standard errors.",
        charts.table(*study.verdict_table(cases)),
        charts.listed(
            [
                "Different scales: GDPO brings all rewards to one scale by itself, and it also "
                "undoes scales that were meant. Say what you mean with weights.",
                "A reward that is noise: GDPO brings it to the size of the others, whatever it is "
                "worth. Give a reward that measures nothing the weight 0.",
                "Where the faster GRPO is ahead of GDPO, a larger learning rate does more than the "
                "estimator.",
            ]
        ),
    )
    return


# ---------------------------------------------------------------- 8. units


@app.cell
def units_form():
    units_chosen = mo.ui.dictionary(
        {
            # Steps and not a range: units differ by factors.
            _name: mo.ui.slider(
                steps=list(_steps), value=_value, label=_label, show_value=True, debounce=True
            )
            for _name, _steps, _value, _label in (
                ("unit", units.UNITS, 10.0, "a success of the first counts"),
                ("weight", units.WEIGHTS, 0.333, "GRPO's weight on it"),
            )
        }
    )
    show(
        "units-heading",
        charts.heading(2, "8. Units"),
        f"Two skills that are equally hard; both start at {units.START}. A reward function may "
        "count a success of the first as 1, as 10 points or as a tenth: the skill is the same. "
        "Choose the unit, and a static weight on that reward for GRPO. Every number is a mean over "
        f"{units.SEEDS} seeds.",
        "GDPO does not see the unit. To GRPO the unit and the weight are one factor: a weight that "
        "undoes the unit makes up for it, as long as nobody changes the unit.",
        form=[row(units_chosen.elements.values())],
    )
    return (units_chosen,)


@app.cell
def units_shown(units_chosen):
    _unit, _both = units_chosen.value["unit"], (toy.GRPO, toy.GDPO)
    _methods = (*_both, units.weighted(units_chosen.value["weight"]))
    _found = {_m: units.training(_unit, _m) for _m in _methods}
    _pictures = {
        _title: {_m: _t.each(_k) for _m, _t in _found.items()}
        for _k, _title in enumerate(("First skill", "Other skill"))
    }
    show(
        "units",
        curves.figures("success", _pictures),
        charts.table(*units.table([_unit], _methods)),
        charts.folded("Every unit in numbers", charts.table(*units.table(units.UNITS, _both))),
    )
    return


# ---------------------------------------------------------------- 9. phantom gradients


@app.cell
def phantom_form():
    phantom_chosen = mo.ui.dictionary(
        {
            "right": slider(0, len(phantom.TOKENS), 1, 0, "right answers"),
            "remedy": mo.ui.dropdown(
                list(phantom.REMEDIES), value="condition", label="remedy", allow_select_none=False
            ),
        }
    )
    show(
        "phantom-heading",
        charts.heading(2, "9. Phantom gradients"),
        "Eight answers to one prompt are scored for correctness and for brevity (1 minus the "
        f"tokens over {phantom.LIMIT}). Where all are wrong, or all right, correctness says "
        "nothing, and all of the advantage is brevity's: the shortest answer is praised for its "
        "length alone.",
        "Choose how many are right, the longest first, and a remedy: Eq. 8's condition lets "
        "brevity count in correct answers alone, so that nothing is left where all are wrong; the "
        "gate leaves out groups in which correctness is the same for all.",
        form=[row(phantom_chosen.elements.values())],
    )
    return (phantom_chosen,)


@app.cell
def phantom_shown(phantom_chosen):
    _right, _remedy = phantom_chosen.value["right"], phantom_chosen.value["remedy"]
    _found = compare.decompose_group(phantom.rewards(_right), phantom.KEYS)
    # "none" is GDPO itself, which the bars have anyway.
    _third = None if _remedy == "none" else (_remedy, phantom.remedied(_right, _remedy))
    _group = compare.compare(phantom.NAMES, _found)
    show("phantom", charts.bars(_group, third=_third))
    return


@app.cell
def phantoms_form():
    phantoms_chosen = mo.ui.dictionary(
        {
            "hard": slider(0, phantom.PROMPTS, 1, 2, "hard prompts", slow=True),
            "size": slider(2, 32, 1, 8, "rollouts of a prompt", slow=True),
            "weight": slider(0.1, 2, 0.1, 1, "weight of brevity", slow=True),
        }
    )
    _hard, _easy = (f"{_idea} and {_work}" for _idea, _work in (phantom.HARD, phantom.EASY))
    show(
        "phantoms-heading",
        charts.heading(3, "A policy trained on such groups"),
        "An answer is correct when it has the right idea and writes out the work, and brief when "
        f"it leaves the work out. Of {phantom.PROMPTS} prompts, hard ones start with the "
        f"probabilities {_hard}, the others with {_easy}. {phantom.SEEDS} seeds. The more prompts "
        "are hard and the smaller the groups, the more groups fail as one and teach brevity alone.",
        form=[row(phantoms_chosen.elements.values())],
    )
    return (phantoms_chosen,)


@app.cell
def phantoms_shown(phantoms_chosen):
    _found = phantom.trainings(**phantoms_chosen.value)
    _pictures = {
        _title: {_m: _t.each(_k) for _m, _t in _found.items()}
        for _k, _title in enumerate(("Correctness", "Brevity"))
    }
    _table = charts.table(*phantom.table(_found))
    show("phantoms", curves.figures("probability", _pictures), _table)
    return


# ---------------------------------------------------------------- 10. your own training


@app.cell
def training():
    # By arXiv's number: the only addresses on the page, and none is asked before a click.
    _references = {
        "2601.05242": "GDPO: Group reward-Decoupled Normalization Policy Optimization for "
        "Multi-reward RL Optimization",
        "2402.03300": "GRPO, in DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open "
        "Language Models",
        "2504.13958": "The rewards of the tool calls, in ToolRL: Reward is All Tool Learning Needs",
        "2409.19256": "verl, in HybridFlow: A Flexible and Efficient RLHF Framework",
    }
    _links = [charts.arxiv_link(_title, _number) for _number, _title in _references.items()]
    show(
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
        charts.listed(_links),
    )
    return


if __name__ == "__main__":
    app.run()
