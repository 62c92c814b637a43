# /// script
# [tool.marimo.display]
# theme = "system"
# ///
# mypy: allow-untyped-defs
# ruff: noqa: B018
"""GRPO and GDPO side by side: the notebook behind `gdpo-verl explain`.

Cells whose names end in `_widgets` show widgets and nothing else: the static page leaves them out.
"""

import marimo

app = marimo.App(width="medium", app_title="What GRPO takes for equal")

with app.setup:
    import marimo as mo
    import torch

    from gdpo_verl.advantage import VARIANTS, grpo_scalars
    from gdpo_verl.explain import charts, compare, conclusions, dumps, examples, study, toy

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
def answers_heading():
    mo.Html(
        charts.block(
            "answers-heading",
            charts.heading(2, "1. Twelve answers, three rewards"),
            f"The prompt is “{examples.PROMPT}” Twelve rollouts are scored for correctness (the "
            "call is the one asked for), style (a thought, then a call, and nothing else) and "
            f"conciseness (at most {examples.CONCISE} characters). Overrule any verdict; change "
            "what a reward is worth, its weight, and what it depends on.",
        )
    )
    return


@app.cell
def answers_form():
    verdicts = mo.ui.dictionary(
        {
            f"{key} {i}": mo.ui.checkbox(value=bool(score), label=key)
            for i, answer in enumerate(examples.ANSWERS, start=1)
            for key, score in zip(examples.KEYS, examples.score(answer), strict=True)
        }
    )
    scales = mo.ui.dictionary(
        {
            key: mo.ui.slider(0.5, 10, 0.5, value=1, label=f"{key} is worth", show_value=True)
            for key in examples.KEYS
        }
    )
    weights = mo.ui.dictionary(
        {
            key: mo.ui.slider(0, 2, 0.1, value=1, label=f"weight of {key}", show_value=True)
            for key in examples.KEYS
        }
    )
    conditions = mo.ui.dictionary(
        {
            key: mo.ui.checkbox(label=f"{key} counts only in correct answers")
            for key in examples.KEYS[1:]
        }
    )
    whiten = mo.ui.switch(value=True, label="whiten over this group")
    variant = mo.ui.dropdown(
        list(VARIANTS), value="gdpo", label="beside them", allow_select_none=False
    )
    return conditions, scales, variant, verdicts, weights, whiten


@app.cell
def answers_widgets(conditions, scales, variant, verdicts, weights, whiten):
    _answers = [
        mo.vstack(
            [
                mo.Html(
                    charts.block(
                        f"answer-{_i}",
                        charts.folded(f"Answer {_i}", _answer, preformatted=True, opened=True),
                    )
                ),
                mo.hstack(
                    [verdicts[f"{_key} {_i}"] for _key in examples.KEYS], wrap=True, justify="start"
                ),
            ],
            gap=0,
        )
        for _i, _answer in enumerate(examples.ANSWERS, start=1)
    ]
    mo.vstack(
        [
            mo.accordion(
                # The page's own style does not reach into an accordion.
                {
                    "The twelve answers and their verdicts": mo.vstack(
                        [mo.Html(charts.STYLE), *_answers]
                    )
                }
            ),
            mo.hstack(list(scales.values()), wrap=True, justify="start"),
            mo.hstack(list(weights.values()), wrap=True, justify="start"),
            mo.hstack([*conditions.values(), whiten, variant], wrap=True, justify="start"),
        ]
    )
    return


@app.cell
def answers(conditions, scales, variant, verdicts, weights, whiten):
    _weights = [weights.value[_key] for _key in examples.KEYS]

    def _rewards(worth):
        rewards = [
            [verdicts.value[f"{key} {i}"] * worth[key] for key in examples.KEYS]
            for i in range(1, len(examples.ANSWERS) + 1)
        ]
        return torch.tensor(rewards, dtype=torch.float64)

    def _options(worth):
        on = {"on": "correctness", "at_least": worth["correctness"]}
        return {
            "weights": _weights,
            "conditions": {key: on for key, chosen in conditions.value.items() if chosen},
            "whiten": whiten.value,
        }

    def _compare(worth):
        names = [str(i) for i in range(1, len(examples.ANSWERS) + 1)]
        return compare.compare(names, _rewards(worth), examples.KEYS, **_options(worth))

    def _beside(group):
        if variant.value == "gdpo":
            return []
        worth = scales.value
        found = compare.variant_advantages(
            _rewards(worth),
            examples.KEYS,
            variant.value,
            highest=[worth[key] for key in examples.KEYS],
            **_options(worth),
        )
        rows = [
            (
                each.name,
                f"{each.grpo:+.3f}",
                f"{each.gdpo:+.3f}",
                f"{found[int(each.name) - 1]:+.3f}",
            )
            for each in group
        ]
        return [
            charts.heading(3, f"{variant.value}, beside them"),
            charts.table(("answer", "GRPO", "GDPO", variant.value), rows),
        ]

    try:
        _group = _compare(scales.value)
        _pairs = compare.tied_pairs(_group, weights=_weights)
        _parts = [
            conclusions.collapse_sentence(_group),
            conclusions.scale_sentence(_group, _compare(dict.fromkeys(examples.KEYS, 1.0))),
            charts.bars(_group, texts=[examples.ANSWERS[int(each.name) - 1] for each in _group]),
            charts.heading(3, "Why, for one pair of each tie"),
            *[conclusions.pair_sentence(_pair, examples.KEYS) for _pair in _pairs],
            *_beside(_group),
        ]
    except ValueError as _error:
        _parts = [f"No advantages: {_error}"]
    mo.Html(charts.block("answers", *_parts))
    return


@app.cell
def trades():
    _size = len(examples.ANSWERS)
    _gaps = compare.gaps_of_a_trade(_size)
    mo.Html(
        charts.block(
            "trades",
            charts.heading(2, "2. [1, 0, 1] and [0, 1, 1]: when they look the same"),
            "Both sums are 2, and a sum is all that GRPO sees. To GDPO it matters how many of the "
            f"{_size} rollouts earn the first reward, n₁, and the second, n₂: a reward that few "
            "earn, or few miss, varies less and weighs more. The table holds GDPO's advantage of "
            "[1, 0, 1] minus that of [0, 1, 1], before whitening.",
            charts.gaps(_gaps),
            conclusions.trade_sentence(_gaps, compare.gaps_of_a_trade(_size, grpo_scalars)),
        )
    )
    return


@app.cell
def ranking_heading():
    mo.Html(
        charts.block(
            "ranking-heading",
            charts.heading(2, "3. Rewards with different ranges"),
            "Five rankings of the same videos, judged by relevance (NDCG, 0 to 1), rating "
            "(1 to 5 stars) and watch time (0 to 60 minutes). Nobody has chosen weights: each "
            "reward comes in its own unit.",
        )
    )
    return


@app.cell
def ranking_form():
    rankings = mo.ui.dictionary(
        {
            f"{name} {scale.name}": mo.ui.slider(
                scale.low,
                scale.high,
                scale.step,
                value=value,
                label=f"{name}: {scale.name} ({scale.unit})",
                show_value=True,
            )
            for name, values in examples.RANKINGS.items()
            for scale, value in zip(examples.RANGES, values, strict=True)
        }
    )
    return (rankings,)


@app.cell
def ranking_widgets(rankings):
    mo.vstack(
        [
            mo.hstack(
                [rankings[f"{_name} {_scale.name}"] for _scale in examples.RANGES],
                wrap=True,
                justify="start",
            )
            for _name in examples.RANKINGS
        ]
    )
    return


@app.cell
def ranking(rankings):
    _keys = [_scale.name for _scale in examples.RANGES]
    _rewards = torch.tensor(
        [[rankings.value[f"{_name} {_key}"] for _key in _keys] for _name in examples.RANKINGS],
        dtype=torch.float64,
    )
    _group = compare.compare(list(examples.RANKINGS), _rewards, _keys)
    mo.Html(
        charts.block("ranking", conclusions.ranking_sentence(_group, _keys), charts.bars(_group))
    )
    return


@app.cell
def distinct():
    _methods = ("GRPO", "GRPO without σ", "GDPO")

    def _table(title, pairs):
        counts = [compare.count_distinct(*pair) for pair in pairs]
        rows = zip(*[(c.groups, c.grpo, c.grpo_unscaled, c.gdpo) for c in counts], strict=True)
        names = ("different groups", *_methods)
        return charts.table(title, [(name, *row) for name, row in zip(names, rows, strict=True)])

    mo.Html(
        charts.block(
            "distinct",
            charts.heading(2, "4. How many groups each method can tell apart"),
            "Every group of binary rewards there is, order aside, and the number of different "
            "advantages they get, before whitening. Counted by going through all of them.",
            _table(
                ["2 rewards, rollouts:", *compare.ROLLOUTS],
                [(2, _size) for _size in compare.ROLLOUTS],
            ),
            _table(
                ["4 rollouts, rewards:", *compare.REWARDS],
                [(_count, 4) for _count in compare.REWARDS],
            ),
        )
    )
    return


@app.cell
def count_form():
    count_rewards = mo.ui.slider(1, 5, value=3, label="rewards", show_value=True)
    count_rollouts = mo.ui.slider(2, 12, value=6, label="rollouts", show_value=True)
    return count_rewards, count_rollouts


@app.cell
def count_widgets(count_rewards, count_rollouts):
    mo.hstack([count_rewards, count_rollouts], wrap=True, justify="start")
    return


@app.cell
def count(count_rewards, count_rollouts):
    mo.Html(
        charts.block("count", conclusions.count_sentence(count_rewards.value, count_rollouts.value))
    )
    return


@app.cell
def toy_heading():
    mo.Html(
        charts.block(
            "toy-heading",
            charts.heading(2, "5. A toy policy, trained while you wait"),
            "Three logits, three skills; an epoch draws one group of "
            f"{toy.BATCH} rollouts and takes one step, {toy.EPOCHS} epochs in all. Shown is the "
            "slowest skill's probability: the mean over the seeds and a band of one standard "
            "deviation. With one group a batch, whitening does nothing but set the scale.",
        )
    )
    return


@app.cell
def toy_form():
    seeds = mo.ui.slider(5, 50, 5, value=20, label="seeds", show_value=True, debounce=True)
    learning_rate = mo.ui.slider(
        0.05,
        0.5,
        0.05,
        value=toy.LEARNING_RATE,
        label="learning rate",
        show_value=True,
        debounce=True,
    )
    correlation = mo.ui.slider(
        -0.9, 0.9, 0.1, value=0.7, label="correlation", show_value=True, debounce=True
    )
    factor = mo.ui.slider(
        1, 20, 1, value=10, label="scale of the largest reward", show_value=True, debounce=True
    )
    hard = mo.ui.slider(
        0.01,
        0.5,
        0.01,
        value=0.02,
        label="start of the hard skill",
        show_value=True,
        debounce=True,
    )
    noise = mo.ui.slider(
        0.05, 2, 0.05, value=0.1, label="size of the coin flip", show_value=True, debounce=True
    )
    return correlation, factor, hard, learning_rate, noise, seeds


@app.cell
def toy_widgets(correlation, factor, hard, learning_rate, noise, seeds):
    mo.hstack([seeds, learning_rate, correlation, factor, hard, noise], wrap=True, justify="start")
    return


@app.cell
def toy_training(correlation, factor, hard, learning_rate, noise, seeds):
    cases = study.study_all(
        correlation=correlation.value,
        factor=factor.value,
        hard=hard.value,
        noise=noise.value,
        seeds=seeds.value,
        learning_rate=learning_rate.value,
    )
    mo.Html(
        charts.block(
            "toy",
            charts.figures(cases),
            charts.folded("All numbers", charts.table(*study.case_table(cases))),
            charts.heading(3, "The gap that whitening closes"),
            "A page known for explaining GDPO trains this very policy on independent rewards and "
            "leaves the whitening out.",
            study.whitening_sentence(cases[0]),
        )
    )
    return (cases,)


@app.cell
def conclusion(cases):
    _parts = []
    for _head, _sentences in study.when_to_use(cases).items():
        _parts += [charts.heading(3, _head), *_sentences]
    mo.Html(
        charts.block(
            "when",
            charts.heading(2, "6. When to use which"),
            "What the curves above say, for this policy and these settings; the sentences follow "
            "the widgets. A difference counts when it exceeds 0.01 and two standard errors.",
            *_parts,
        )
    )
    return


@app.cell
def run_heading():
    mo.Html(
        charts.block(
            "run-heading",
            charts.heading(2, "7. Your own run"),
            "The same bars on rollouts of a training: a run directory, or the folder that "
            "trainer.rollout_data_dir named. Completions are shown as text, whatever they hold. "
            "Nothing leaves this machine.",
        )
    )
    return


@app.cell
def run_form():
    run_path = mo.ui.text(
        value=str(mo.cli_args().get("run") or ""),
        label="run directory",
        placeholder="runs/quickstart/gdpo",
        full_width=True,
    )
    return (run_path,)


@app.cell
def run_widgets(run_path):
    run_path
    return


@app.cell
def run_steps(run_path):
    run_dumps, run_error = {}, ""
    if run_path.value.strip():
        try:
            run_dumps = {
                f"step {_step}": _path
                for _step, _path in dumps.find_dumps(run_path.value.strip()).items()
            }
        except (ValueError, OSError) as _error:
            run_error = str(_error)
    run_known = dumps.known_components(run_path.value.strip()) if run_dumps else ()
    run_step = None
    if run_dumps:
        run_step = mo.ui.dropdown(
            list(run_dumps), value=next(iter(run_dumps)), label="step", allow_select_none=False
        )
    return run_dumps, run_error, run_known, run_step


@app.cell
def run_groups(run_dumps, run_known, run_step):
    run_dump = run_group = None
    if run_step is not None:
        run_dump = dumps.read_dump(run_dumps[run_step.value], run_known)
        _titles = {
            f"{_i}. {_group.title}": _i - 1 for _i, _group in enumerate(run_dump.groups, start=1)
        }
        if _titles:
            run_group = mo.ui.dropdown(
                _titles,
                value=next(iter(_titles)),
                label="prompt",
                allow_select_none=False,
                full_width=True,
            )
    return run_dump, run_group


@app.cell
def run_choice_widgets(run_group, run_step):
    mo.vstack([_each for _each in (run_step, run_group) if _each is not None])
    return


@app.cell
def run(run_dump, run_error, run_group):
    _parts = [run_error] if run_error else []
    if run_dump is None:
        _parts += [] if run_error else ["No run is open."]
    else:
        _parts += run_dump.notes
    if run_group is not None:
        _group = run_dump.groups[run_group.value]
        _parts += [
            f"Rewards in brackets: {', '.join(run_dump.components)}.",
            conclusions.collapse_sentence(_group.rollouts),
            charts.folded("The prompt", _group.prompt, preformatted=True),
            charts.bars(_group.rollouts, texts=_group.texts),
        ]
    mo.Html(charts.block("run", *_parts))
    return


if __name__ == "__main__":
    app.run()
