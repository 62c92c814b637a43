# /// script
# [tool.marimo.display]
# theme = "system"
# ///
# mypy: allow-untyped-defs
"""GRPO and GDPO side by side: the notebook behind `gdpo-verl explain`.

The cells say which picture follows which widgets; what they show is in `sections`. Cells whose
names end in `_widgets` show widgets and nothing else: the static page leaves them out.
"""

import marimo

app = marimo.App(width="medium", app_title="What GRPO takes for equal")

with app.setup:
    import marimo as mo
    import torch

    from gdpo_verl.explain import charts
    from gdpo_verl.explain.sections import (
        answers,
        calls,
        groups,
        layout,
        phantom,
        run,
        skills,
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
            "gdpo_verl.advantage, and every sentence with a number is made from what this page "
            "has just computed.",
        )
    )
    return


@app.cell
def answers_form():
    answers_chosen = answers.form()
    mo.Html(answers.heading())
    return (answers_chosen,)


@app.cell
def answers_widgets(answers_chosen):
    answers.widgets(answers_chosen)
    return


@app.cell
def answers_shown(answers_chosen):
    mo.Html(answers.show(answers_chosen.value))
    return


@app.cell
def calls_form():
    calls_chosen = calls.form()
    mo.Html(calls.heading())
    return (calls_chosen,)


@app.cell
def calls_widgets(calls_chosen):
    layout.row(calls_chosen.elements.values())
    return


@app.cell
def calls_shown(calls_chosen):
    mo.Html(calls.show(calls_chosen.value))
    return


@app.cell
def trades():
    mo.Html(groups.trades())
    return


@app.cell
def ranking_form():
    ranking_chosen = groups.ranking_form()
    mo.Html(groups.ranking_heading())
    return (ranking_chosen,)


@app.cell
def ranking_widgets(ranking_chosen):
    groups.ranking_widgets(ranking_chosen)
    return


@app.cell
def ranking_shown(ranking_chosen):
    mo.Html(groups.ranking(ranking_chosen.value))
    return


@app.cell
def distinct():
    mo.Html(groups.distinct())
    return


@app.cell
def count_form():
    count_chosen = groups.count_form()
    return (count_chosen,)


@app.cell
def count_widgets(count_chosen):
    layout.row(count_chosen.elements.values())
    return


@app.cell
def count_shown(count_chosen):
    mo.Html(groups.count(count_chosen.value))
    return


@app.cell
def skills_form():
    skills_chosen = skills.form()
    mo.Html(skills.heading())
    return (skills_chosen,)


@app.cell
def skills_widgets(skills_chosen):
    layout.row(skills_chosen.elements.values())
    return


@app.cell
def skills_shown(skills_chosen):
    cases = skills.train(skills_chosen.value)
    mo.Html(skills.show(cases))
    return (cases,)


@app.cell
def when(cases):
    mo.Html(skills.when(cases))
    return


@app.cell
def units_form():
    units_chosen = units.form()
    mo.Html(units.heading())
    return (units_chosen,)


@app.cell
def units_widgets(units_chosen):
    layout.row(units_chosen.elements.values())
    return


@app.cell
def units_shown(units_chosen):
    mo.Html(units.show(units_chosen.value))
    return


@app.cell
def phantom_form():
    phantom_chosen = phantom.form()
    mo.Html(phantom.heading())
    return (phantom_chosen,)


@app.cell
def phantom_widgets(phantom_chosen):
    layout.row(phantom_chosen.elements.values())
    return


@app.cell
def phantom_shown(phantom_chosen):
    mo.Html(phantom.show(phantom_chosen.value))
    return


@app.cell
def phantoms_form():
    phantoms_chosen = phantom.training_form()
    mo.Html(phantom.training_heading())
    return (phantoms_chosen,)


@app.cell
def phantoms_widgets(phantoms_chosen):
    layout.row(phantoms_chosen.elements.values())
    return


@app.cell
def phantoms_shown(phantoms_chosen):
    mo.Html(phantom.training(phantoms_chosen.value))
    return


@app.cell
def training():
    mo.Html(run.training())
    return


if __name__ == "__main__":
    app.run()
