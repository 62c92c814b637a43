# /// script
# [tool.marimo.display]
# theme = "system"
# ///
# mypy: allow-untyped-defs
"""GRPO and GDPO side by side: the notebook of `gdpo-verl explain`.

A section has a cell for its text and its widgets, and a cell for the results. Texts and tables are
macros of page.html.j2, which this notebook calls `parts`. The static page has no widgets.
"""

import marimo

app = marimo.App(width="medium", app_title="What GRPO treats as equal")

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

    parts = charts.PARTS
    # On tensors as small as these, threads cost more time than they save.
    torch.set_num_threads(1)


@app.cell
def introduction():
    show("introduction", parts.style() + parts.introduction())
    return


@app.function
def show(name, content, *form):
    """Show the output of one cell (`charts.block`), and below it widgets if they can be moved."""
    # On the static page, widgets have no effect.
    text = mo.Html(charts.block(name, content))
    return mo.vstack([text, *form]) if form and mo.running_in_notebook() else text


@app.function
def row(widgets):
    """Place widgets side by side, as many as fit."""
    return mo.hstack(list(widgets), wrap=True, justify="start")


@app.function
def compared(rewards, keys, texts, *, why="", **options):
    """Show the bars, reasons and ties of a group; see `compare.decompose_group`."""
    try:
        decomposition = compare.decompose_group(rewards, keys, **options)
    except ValueError as error:  # for example if all weights are 0: the reader sees the error
        return parts.no_advantages(error)
    variant = options.get("variant", "gdpo")
    others = {}  # GDPO's own advantages are in the bars anyway
    if variant != "gdpo":
        others = dict(zip(texts, decomposition.advantage.tolist(), strict=True))
    group = compare.compare(list(texts), decomposition)
    return parts.compared(group, texts, (variant, others), charts.ties(group, keys), why=why)


@app.function
def pictures(titles, ylabel, trainings):
    """Draw the curves of each quality of a task, under its title."""
    drawn = []
    for k, title in enumerate(titles):
        lines = {method: training.each(k) for method, training in trainings.items()}
        drawn.append(curves.curves(title, ylabel, lines))
    return drawn


@app.function
def slider(low, high, step, value, label, *, slow=False):
    """Make a slider that reacts while it moves, or if `slow` when it is released."""
    return mo.ui.slider(low, high, step, value=value, label=label, show_value=True, debounce=slow)


# ---------------------------------------------------------------- 1. twelve responses


@app.cell
def answers_form():
    answers_texts = {str(_i): _text for _i, _text in enumerate(examples.ANSWERS, 1)}
    _verdicts = {
        f"{_key} {_name}": mo.ui.checkbox(value=bool(_value), label=_key)
        for _name, _answer in answers_texts.items()
        for _key, _value in zip(examples.KEYS, examples.score(_answer), strict=True)
    }
    # One dictionary per section: its cell runs again when any part of the dictionary changes.
    answers_chosen = mo.ui.dictionary(
        {
            "verdicts": mo.ui.dictionary(_verdicts),
            "worth": mo.ui.dictionary(
                {_key: slider(0.5, 10, 0.5, 1, f"scale of {_key}") for _key in examples.KEYS}
            ),
            "weights": mo.ui.dictionary(
                {_key: slider(0, 2, 0.1, 1, f"weight of {_key}") for _key in examples.KEYS}
            ),
            "conditions": mo.ui.dictionary(
                {
                    _key: mo.ui.checkbox(label=f"{_key} counts only in correct responses")
                    for _key in examples.KEYS[1:]
                }
            ),
            "whiten": mo.ui.switch(value=True, label="whiten over this group"),
            "variant": mo.ui.dropdown(
                list(VARIANTS), value="gdpo", label="third estimator", allow_select_none=False
            ),
        }
    )
    # The style of the page does not apply inside an accordion.
    _answers = [mo.Html(str(parts.style()))]
    for _name, _text in answers_texts.items():
        _shown = parts.folded(f"Response {_name}", _text, preformatted=True, opened=True)
        _answers += [
            show(f"answer-{_name}", _shown),
            row(answers_chosen["verdicts"][f"{_key} {_name}"] for _key in examples.KEYS),
        ]
    _others = [*answers_chosen["conditions"].elements.values()]
    _others += [answers_chosen["whiten"], answers_chosen["variant"]]
    show(
        "answers-heading",
        parts.answers_form(examples),
        mo.accordion({"The twelve responses and their rewards": mo.vstack(_answers)}),
        row(answers_chosen["worth"].elements.values()),
        row(answers_chosen["weights"].elements.values()),
        row(_others),
    )
    return answers_chosen, answers_texts


@app.cell
def answers_shown(answers_chosen, answers_texts):
    _chosen = answers_chosen.value
    _worth = _chosen["worth"]
    _verdicts = _chosen["verdicts"]
    _rows = []
    for _name in answers_texts:
        _rows.append([_verdicts[f"{_key} {_name}"] * _worth[_key] for _key in examples.KEYS])
    _rewards = torch.tensor(_rows, dtype=torch.float64)
    # With the scale of the page, because conditions apply before weights.
    _on = {"on": "correctness", "at_least": _worth["correctness"]}
    _shown = compared(
        _rewards,
        examples.KEYS,
        answers_texts,
        why=parts.why(),
        weights=list(_chosen["weights"].values()),
        conditions={_key: _on for _key, _checked in _chosen["conditions"].items() if _checked},
        whiten=_chosen["whiten"],
        variant=_chosen["variant"],
        highest=list(_worth.values()),
    )
    show("answers", _shown)
    return


# ---------------------------------------------------------------- 2. tool calls


@app.cell
def calls_form():
    calls_chosen = mo.ui.dictionary(
        {_key: slider(0, 8, 0.1, 1, f"weight of the {_key}") for _key in calls.KEYS}
    )
    show("calls-heading", parts.calls_form(calls), row(calls_chosen.elements.values()))
    return (calls_chosen,)


@app.cell
def calls_shown(calls_chosen):
    _texts = {str(_i): _answer for _i, _answer in enumerate(calls.ANSWERS, 1)}
    _weights = list(calls_chosen.value.values())
    show("calls", compared(calls.rewards(), calls.KEYS, _texts, weights=_weights))
    return


# ---------------------------------------------------------------- 3. and 4. groups


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
    _rows = []
    for _name in examples.RANKINGS:
        _rows.append(row(ranking_chosen[f"{_name} {_key}"] for _key, *_ in examples.RANGES))
    show("ranking-heading", parts.ranking_form(), *_rows)
    return (ranking_chosen,)


@app.cell
def ranking_shown(ranking_chosen):
    _keys = [_key for _key, *_ in examples.RANGES]
    _rows = []
    for _name in examples.RANKINGS:
        _rows.append([ranking_chosen.value[f"{_name} {_key}"] for _key in _keys])
    _rewards = torch.tensor(_rows, dtype=torch.float64)
    _group = compare.compare(list(examples.RANKINGS), compare.decompose_group(_rewards, _keys))
    show("ranking", parts.bars(_group))
    return


@app.cell
def distinct():
    def _counts(title, columns):
        """Count the groups that each method distinguishes, with a column per (rewards, size)."""
        # Each count is a column; the table needs rows.
        counts = zip(*[compare.count_distinct(*pair) for pair in columns.values()], strict=True)
        names = ("different groups", "GRPO", "GRPO without σ", "GDPO")
        rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
        return [title, *map(str, columns)], rows

    _by_rollouts = _counts("2 rewards, responses:", {n: (2, n) for n in (2, 3, 4, 6, 8, 10)})
    _by_rewards = _counts("4 responses, rewards:", {k: (k, 4) for k in (1, 2, 3, 4, 5)})
    show("distinct", parts.distinct(_by_rollouts, _by_rewards))
    return


# ---------------------------------------------------------------- 5. and 6. a toy policy


@app.cell
def skills_form():
    skills_chosen = mo.ui.dictionary(
        {
            "seeds": slider(5, 50, 5, 20, "seeds", slow=True),
            "learning_rate": slider(0.05, 0.5, 0.05, toy.LEARNING_RATE, "learning rate", slow=True),
            "correlation": slider(-0.9, 0.9, 0.1, 0.7, "correlation", slow=True),
            "factor": slider(1, 20, 1, 10, "scale of the largest reward", slow=True),
            "hard": slider(0.01, 0.5, 0.01, 0.02, "start probability of the hard skill", slow=True),
            "noise": slider(0.05, 2, 0.05, 0.1, "scale of the coin flip", slow=True),
        }
    )
    show("toy-heading", parts.skills_form(toy), row(skills_chosen.elements.values()))
    return (skills_chosen,)


@app.cell
def skills_shown(skills_chosen):
    cases = study.study_all(**skills_chosen.value)
    _pictures = []
    for _case in cases:
        _slowest = {_method: _run.slowest for _method, _run in _case.trainings.items()}
        _pictures.append(curves.curves(_case.name, "slowest skill", _slowest))
    # `cases` is passed to section 6, which would otherwise train all of it again.
    show("toy", parts.skills(_pictures, study.case_table(cases)))
    return (cases,)


@app.cell
def when(cases):
    show("when", parts.when(study.verdict_table(cases)))
    return


# ---------------------------------------------------------------- 7. scales


@app.cell
def units_form():
    units_chosen = mo.ui.dictionary(
        {
            # Steps and not a range, because scales differ by factors.
            _name: mo.ui.slider(
                steps=list(_steps), value=_value, label=_label, show_value=True, debounce=True
            )
            for _name, _steps, _value, _label in (
                ("unit", units.UNITS, 10.0, "reward for a success of the first skill"),
                ("weight", units.WEIGHTS, 0.333, "GRPO's weight on this reward"),
            )
        }
    )
    show("units-heading", parts.units_form(units), row(units_chosen.elements.values()))
    return (units_chosen,)


@app.cell
def units_shown(units_chosen):
    _unit = units_chosen.value["unit"]
    _both = (toy.GRPO, toy.GDPO)
    _methods = (*_both, units.weighted(units_chosen.value["weight"]))
    _trainings = {_method: units.training(_unit, _method) for _method in _methods}
    _pictures = pictures(("First skill", "Other skill"), "success", _trainings)
    _every = units.table(units.UNITS, _both)
    show("units", parts.units(_pictures, units.table([_unit], _methods), _every))
    return


# ---------------------------------------------------------------- 8. phantom gradients


@app.cell
def phantom_form():
    phantom_chosen = mo.ui.dictionary(
        {
            "right": slider(0, len(phantom.TOKENS), 1, 0, "correct responses"),
            "remedy": mo.ui.dropdown(
                list(phantom.REMEDIES), value="condition", label="remedy", allow_select_none=False
            ),
        }
    )
    show("phantom-heading", parts.phantom_form(phantom), row(phantom_chosen.elements.values()))
    return (phantom_chosen,)


@app.cell
def phantom_shown(phantom_chosen):
    _right = phantom_chosen.value["right"]
    _remedy = phantom_chosen.value["remedy"]
    _decomposition = compare.decompose_group(phantom.rewards(_right), phantom.KEYS)
    _others = {} if _remedy == "none" else phantom.remedied(_right, _remedy)
    _group = compare.compare(phantom.NAMES, _decomposition)
    show("phantom", parts.bars(_group, third=(_remedy, _others)))
    return


@app.cell
def phantoms_form():
    phantoms_chosen = mo.ui.dictionary(
        {
            "hard": slider(0, phantom.PROMPTS, 1, 2, "hard prompts", slow=True),
            "size": slider(2, 32, 1, 8, "responses to a prompt", slow=True),
            "weight": slider(0.1, 2, 0.1, 1, "weight of brevity", slow=True),
        }
    )
    show("phantoms-heading", parts.phantoms_form(phantom), row(phantoms_chosen.elements.values()))
    return (phantoms_chosen,)


@app.cell
def phantoms_shown(phantoms_chosen):
    _trainings = phantom.trainings(**phantoms_chosen.value)
    _pictures = pictures(("Correctness", "Brevity"), "probability", _trainings)
    show("phantoms", parts.figures(_pictures) + parts.table(*phantom.table(_trainings)))
    return


# ---------------------------------------------------------------- 9. your own run


@app.cell
def training():
    show("training", parts.training())
    return


if __name__ == "__main__":
    app.run()
