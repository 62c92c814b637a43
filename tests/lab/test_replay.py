"""`gdpo-verl replay`: stored responses under other settings, their figures, and errors."""

import json
import math
import random
import shlex
from pathlib import Path

import hydra
import pytest
import torch
from fake_runs import write_lines
from omegaconf import OmegaConf

from gdpo_verl import advantages_of, gdpo_advantages, grpo_advantages
from gdpo_verl.config import GdpoConfig
from gdpo_verl.lab.check_reward.tokens import byte_tokenizer
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.replay import replay
from gdpo_verl.lab.replay.capacity import capacity, varies
from gdpo_verl.lab.replay.output import LIMITS
from gdpo_verl.lab.report.drawn import run_of_dumps
from gdpo_verl.lab.run.composition import compose

KEYS = ("correctness", "length")


def lines_of(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def dump(folder, steps):
    """Write a folder of verl's dumps."""
    for step, rows in steps.items():
        write_lines(folder / f"{step}.jsonl", [{"step": step} | row for row in rows])
    return folder


def drawn(groups, draw, *, seed=0):
    """Draw rows of stock verl: groups of eight responses with rewards and their sum."""
    rng = random.Random(seed)
    rows = []
    for group in range(groups):
        for answer in range(8):
            rewards = draw(rng)
            score = sum(rewards.values())
            text = {"input": f"question {group}", "output": f"answer {answer}", "gts": "42"}
            rows.append({**text, "score": score, **rewards})
    return rows


def two_rewards(rng):
    return {"correctness": float(rng.random() < 0.5), "length": 10 * rng.random()}


@pytest.fixture
def replayed(capsys, monkeypatch, tmp_path):
    """Replay rows of several steps or of step 1, or a path, in an empty working directory.

    Return the content of `--json` and `--rows`, and the printed text.
    """
    monkeypatch.chdir(tmp_path)

    def replay_(where, *words):
        if isinstance(where, list):
            where = {1: where}
        if isinstance(where, dict):
            where = dump(Path("dumps"), where)
        words = [str(word) for word in (where, *words)]
        status = main(["replay", *words, "--json", "all.json", "--rows", "rows.jsonl"])
        printed = capsys.readouterr()
        assert status == 0, printed.err
        found = json.loads(Path("all.json").read_text())
        lines = Path("rows.jsonl").read_text().splitlines()
        found["lines"] = [json.loads(line) for line in lines]
        found["asked"] = [line["asked"] for line in found["lines"]]
        found["printed"] = " ".join(printed.out.split())
        return found

    return replay_


def matrix(rows):
    return torch.tensor([(row["correctness"], row["length"]) for row in rows], dtype=torch.float64)


def advantages(function, rows, **options):
    """Return the advantages of rows by a function of the library."""
    groups = [row["input"] for row in rows]
    return function(matrix(rows), groups, torch.ones(len(rows), 1), **options)[:, 0].tolist()


def by_sequence(rows, **options):
    return advantages(gdpo_advantages, rows, **{"whiten": "sequence"} | options)


def summed(rows, **options):
    return advantages(grpo_advantages, rows, **options)


def test_a_dump_of_stock_verl_is_replayed_under_gdpo(replayed):
    steps = {n: drawn(6, two_rewards, seed=n) for n in (1, 2)}
    found = replayed(steps)  # a prompt in two steps forms two groups
    assert LIMITS in found["printed"]
    assert (found["rows"], found["groups"], found["steps"]) == (96, 12, 2)
    assert found["settings"] == ["grpo", "gdpo"]
    assert found["reproduces"] is None
    assert "whitening is over responses" in found["printed"]
    assert all(line["recorded"] is None for line in found["lines"])
    assert {line["line"] for line in found["lines"]} == set(range(1, 49))
    assert found["lines"][0].keys() >= {"file", "line", "group", "step", "components"}
    grpo = torch.tensor(summed(steps[1]) + summed(steps[2]), dtype=torch.float64)
    gdpo = torch.tensor(by_sequence(steps[1]) + by_sequence(steps[2]), dtype=torch.float64)
    assert found["asked"] == pytest.approx(gdpo.tolist())
    assert found["sign_changes"] == (grpo * gdpo < 0).sum()
    orders = [each.view(12, 8).argsort() for each in (grpo, gdpo)]
    assert found["order_changes"] == (orders[0] != orders[1]).any(dim=1).sum()
    assert found["order_changes"] > 0
    most = found["changed_most"]
    changes = (gdpo - grpo).abs().sort(descending=True).values
    changed = [abs(each["asked"] - each["recorded"]) for each in most]
    assert changed == pytest.approx(changes[:10].tolist())
    # The deviations within groups are about .5 and 3, so that the length dominates GRPO's score.
    share = found["components"]["length"]["share"]
    assert share[0] > 0.8
    assert share[1] == pytest.approx(0.5, abs=0.1)
    assert most[0]["output"].startswith("answer ")


def test_settings_are_written_as_in_a_training_command(replayed):
    rows = drawn(6, two_rewards)
    words = {
        "+algorithm.gdpo_reward_weights={length:0.5}": {"weights": [1.0, 0.5]},
        "algorithm.gdpo.variant=dvao": {"variant": "dvao", "whiten": None},
        "algorithm.gdpo.gate={on: correctness}": {"gate": 0},
        "algorithm.norm_adv_by_std_in_grpo=false": {"scale": False},
    }
    for word, options in words.items():
        assert replayed(rows, word)["asked"] == pytest.approx(by_sequence(rows, **options)), word
    condition = "algorithm.gdpo.conditions={length: {on: correctness, at_least: 1}}"
    found = replayed(condition, "dumps", "algorithm.gdpo.whiten=none")
    assert found["components"]["length"]["misses"][1] == 0
    assert found["components"]["length"]["misses"][0] > 0.3


def run_of(folder, rows, algorithm):
    """Write a run of the plug-in without token counts, with advantages whitened over sequences."""
    columns = zip(rows, by_sequence(rows), summed(rows), strict=True)
    dumped = [row | {"gdpo_advantage": g, "grpo_advantage": p} for row, g, p in columns]
    dump(folder / "rollouts", {1: dumped})
    (folder / "config.yaml").write_text(f"algorithm: {algorithm}")
    return folder


def test_each_run_is_replayed_against_its_own_settings(replayed):
    rows = drawn(40, two_rewards)
    gdpo = run_of(Path("a"), rows, "{adv_estimator: gdpo}")
    grpo = run_of(Path("b"), rows, "{adv_estimator: grpo}")
    found = replayed(gdpo, grpo)
    assert found["reproduces"] < 1e-12
    assert found["settings"] == ["gdpo and grpo"] * 2
    assert (
        found["conclusion"]
        == "No advice can be given for several settings at once (gdpo and grpo)."
    )
    terms = [replayed(run)["components"]["length"]["share"][0] for run in (gdpo, grpo)]
    assert terms[0] < found["components"]["length"]["share"][0] < terms[1]
    assert replayed(gdpo, grpo, "algorithm.adv_estimator=gdpo")["conclusion"] != found["conclusion"]
    # A component that the user leaves out was trained nevertheless.
    less = replayed(gdpo, "algorithm.gdpo_reward_keys=[correctness]")
    assert less["reproduces"] < 1e-12
    assert less["components"]["correctness"]["share"] == [pytest.approx(1 - terms[0]), 1.0]


def test_rows_that_are_left_out_are_reported(replayed):
    steps = {n: drawn(4, two_rewards, seed=n) for n in (1, 2, 3, 6)}
    steps[3] = steps[3][:25]
    where = dump(Path("dumps"), steps)
    (where / "2.jsonl").write_text((where / "2.jsonl").read_text()[:-20])
    found = replayed(where)
    for said in (
        f"{where}/2.jsonl, line 32: the row is incomplete. Step 2 is left out",
        "groups of one response, whose advantage is 0: 1",
    ):
        assert said in found["printed"]
    expected = by_sequence(steps[1]) + by_sequence(steps[3]) + by_sequence(steps[6])
    assert found["asked"] == pytest.approx(expected)


def test_a_run_of_verls_own_command_has_the_settings_that_hydra_stored(replayed):
    rows = drawn(6, two_rewards)
    for row in rows:
        row["score"] = row["correctness"] + 0.25 * row["length"]
    where = dump(Path("run/rollouts"), {1: rows}).parent
    (where / ".hydra").mkdir()
    (where / ".hydra/config.yaml").write_text("algorithm: {adv_estimator: rloo}")
    found = replayed(where, "algorithm.adv_estimator=gdpo")
    assert "trained with rloo; GRPO's advantages count as recorded" in found["printed"]
    # The advantage is GRPO's of the dumped score, whose weights follow from the rows.
    grpo = summed(rows, weights=[1.0, 0.25])
    most = found["changed_most"][0]
    assert most["recorded"] == pytest.approx(grpo[most["line"] - 1])
    assert most["asked"] == pytest.approx(by_sequence(rows)[most["line"] - 1])


def test_a_dump_without_a_configuration_counts_as_one_of_gdpo_with_a_message(replayed):
    run = run_of(Path("a"), drawn(6, two_rewards), "{adv_estimator: grpo}")
    said = "found no configuration of the run; GDPO's defaults count as recorded"
    assert said not in replayed(run)["printed"]
    (run / "config.yaml").unlink()
    found = replayed(run)
    assert found["settings"] == ["gdpo", "gdpo"]
    assert said in found["printed"]


def test_a_dump_of_gdpo_without_our_columns_was_trained_under_gdpo(replayed):
    rows = drawn(6, two_rewards)
    where = dump(Path("run/rollouts"), {1: rows}).parent
    (where / "config.yaml").write_text("algorithm: {adv_estimator: gdpo}")
    found = replayed(where)
    assert found["settings"] == ["gdpo", "gdpo"]
    assert (found["sign_changes"], found["order_changes"]) == (0, 0)
    assert found["asked"] == pytest.approx(by_sequence(rows))


def test_per_turn_and_derived_components_are_read(replayed):
    rows = drawn(3, two_rewards)
    rng = random.Random(1)
    rewards = []
    tokens = []
    for row in rows:
        calls = [float(rng.random() < 0.5) for _ in range(rng.randint(1, 3))]
        tokens.append([rng.randint(1, 9) for _ in calls])
        rewards.append({"correctness": row["correctness"], "call_ok": calls})
        row |= {"call_ok": sum(calls), "call_ok_by_turn": calls}
        row |= {"response_tokens": sum(tokens[-1]), "response_tokens_by_turn": tokens[-1]}
    groups = [row["input"] for row in rows]
    shorter = {"function": "pkg://gdpo_verl.rewards.derived:relative_length", "outcome": KEYS[0]}
    config = {"adv_estimator": "gdpo", "gdpo": {"derived": {"shorter": shorter}}}
    expected = advantages_of(rewards, groups, token_counts=tokens, config=config)
    where = dump(Path("dumps"), {1: rows})
    (where / "config.yaml").write_text(json.dumps({"algorithm": config}))
    found = replayed(where, "--components", "correctness,call_ok")
    for asked, turns, counts in zip(found["asked"], expected, tokens, strict=True):
        mean = sum(a * n for a, n in zip(turns, counts, strict=True)) / sum(counts)
        assert asked == pytest.approx(mean, abs=1e-9)
    assert set(found["components"]) == {"correctness", "call_ok", "shorter"}
    # The report computes the influence on the advantages of the turns as well.
    for row in rows:
        del row["length"]
    metrics = run_of_dumps(dump(where, {1: rows})).metrics[1]
    influence, _ = found["components"]["correctness"]["influence"]
    assert metrics["gdpo/correctness/influence"] == pytest.approx(influence, abs=1e-9)


def test_booleans_and_nested_components_are_read_as_in_training(replayed):
    rows = drawn(4, lambda rng: {"correctness": rng.random() < 0.5, "length": rng.random()})
    numbers = [row | {"correctness": float(row["correctness"])} for row in rows]
    expected = replayed(numbers)["asked"]
    found = replayed(rows)
    assert found["asked"] == expected
    assert "correctness 1" in found["printed"]
    for row in rows:
        row["reward_components"] = {key: row.pop(key) for key in KEYS}
    assert replayed(rows)["asked"] == expected


def test_a_tokenizer_counts_tokens_if_the_dump_has_no_counts(replayed):
    rows = [row | {"output": "é" * (n % 5 + n % 3)} for n, row in enumerate(drawn(6, two_rewards))]
    byte_tokenizer().save_pretrained(Path("model"))
    found = replayed(rows, "--tokenizer", Path("model"))
    # Each letter has two bytes, and the end token counts.
    counted = [row | {"response_tokens": 1 + 2 * len(row["output"])} for row in rows]
    assert found["asked"] == pytest.approx(replayed(counted)["asked"])
    assert found["asked"] != pytest.approx(by_sequence(rows), abs=1e-3)
    assert "whitening is over responses" not in found["printed"]


def test_rows_of_another_program_need_only_the_name_of_the_groups_column(replayed):
    rows = drawn(4, two_rewards)
    foreign = []
    for place, row in enumerate(rows):
        # This column has numbers, but is no component.
        problem = place // 8
        foreign.append({"problem": problem, "right": row["correctness"], "len": row["length"]})
    write_lines(Path("x.jsonl"), foreign)
    found = replayed("x.jsonl", "--group", "problem")
    assert found["asked"] == pytest.approx(by_sequence(rows))
    assert found["components"].keys() == {"right", "len"}


REWARD = """
def asks(data_source, solution_str, ground_truth, extra_info=None):
    try:
        return {"score": 1.0, "hard": float((extra_info or {}).get("level") == 3)}
    except Exception:
        return {"score": 0.0, "hard": 0.0}

def of_a_source(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0, "hard": float(data_source in ("math", "code"))}

def raises(data_source, solution_str, ground_truth, extra_info=None):
    raise KeyError("an answer without a number")
"""


ROWS = drawn(4, two_rewards)
WHOLE = lines_of(ROWS)
STOCK = {"1.jsonl": WHOLE}


def with_row(number, **changes):
    """Return the rows up to one that is changed; None removes a key."""
    row = {key: value for key, value in (ROWS[number] | changes).items() if value is not None}
    return {"1.jsonl": lines_of([*ROWS[:number], row])}


# For each name: files, the arguments, and the message.
REFUSED = {
    "a component absent in a row": (
        with_row(5, length=None), "", "'length' for row dumps/1.jsonl, line 6",
    ),
    "a text for the score": (
        with_row(2, score="0.5"), "",
        "dumps/1.jsonl, line 3: expected a finite number for 'score', found '0.5'",
    ),
    "nothing but a cut line": ({"1.jsonl": WHOLE[:-30]}, "", "line 32: the row is incomplete"),
    "no rows at all": ({"1.jsonl": "[1, 2]\n"}, "", "dumps/1.jsonl, line 1: expected rows"),
    "two runs beside each other": (
        {"a/1.jsonl": WHOLE, "b/rollouts/1.jsonl": WHOLE}, "",
        "dumps: expected the dumps of one run, found those of 2",
    ),
    "no dumps": ({"notes.txt": "hello"}, "", "dumps: expected rollouts/<step>.jsonl of a run"),
    "no table": ({"completions_00001.parquet": "hello"}, "", "completions_00001.parquet, line 1:"),
    "a step that is a text": (
        {"x.jsonl": lines_of([ROWS[0] | {"step": "1"}])}, "",
        "dumps/x.jsonl, line 1: expected a number for 'step', found '1'",
    ),
    "a cut line among rows": (
        {"x.jsonl": WHOLE[:-9]}, "", "dumps/x.jsonl, line 32: expected a JSON",
    ),
    "a configuration that is none": (
        {"rollouts/1.jsonl": WHOLE, "config.yaml": "algorithm: {a: ${nowhere}}"}, "",
        "dumps/config.yaml: expected the run's configuration",
    ),
    "a misspelt group": (
        {"x.jsonl": '{"problem": 1}\n'}, "--group problm",
        "--group: expected a column of dumps/x.jsonl, line 1, one of ['problem'], found 'problm'. "
        "Did you mean 'problem'?",
    ),
    "runs of other components": (
        {"1.jsonl": WHOLE, "x/y/z/1.jsonl": WHOLE.replace("length", "style")}, "dumps/x/y/z",
        "dumps/x/y/z: expected the components ['correctness', 'length'] of dumps, found ",
    ),
    "an estimator": (
        STOCK, "algorithm.adv_estimator=rloo", "algorithm.adv_estimator: expected one of",
    ),
    "a key": (STOCK, "algorithm.gdpo_whiten=none", "algorithm.gdpo_whiten: unknown key"),
    "several values": (STOCK, "algorithm.gdpo.variant=dvao,gdpo", "expected one value, found"),
    "no score": (
        with_row(2, score=None), "",
        "dumps/1.jsonl, line 3: expected a number for 'score', found none",
    ),
    "a setting of other nodes": (
        STOCK, "actor_rollout_ref.rollout.n=16",
        "actor_rollout_ref.rollout.n: expected a setting of",
    ),
    "a bracket": (STOCK, "algorithm.gdpo={", "algorithm.gdpo={"),
    "a reward that asks for more": (
        STOCK, "--function reward.py:asks",
        "dumps/1.jsonl, line 1: reward.py:asks needs extra_info['level'], which was not dumped",
    ),
    "a reward that asks for the source": (
        STOCK, "--function reward.py:of_a_source",
        "dumps/1.jsonl, line 1: reward.py:of_a_source needs data_source, which was not dumped",
    ),
    "a reward that raises": (
        STOCK, "--function reward.py:raises",
        "dumps/1.jsonl, line 1: reward.py:raises raised KeyError: 'an answer without a number'",
    ),
    "no reward": (
        STOCK, "--function reward.py:missing", "has no attribute 'missing'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_error_is_named_with_file_and_line_or_key(capsys, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    files, words, said = REFUSED[name]
    for file, text in files.items():
        path = Path("dumps", file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    Path("reward.py").write_text(REWARD)
    where = "dumps/x.jsonl" if "x.jsonl" in files else "dumps"
    assert main(["replay", where, *words.split()]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert "Traceback" not in printed.err
    assert said in printed.err


def test_settings_without_a_source_are_rejected(capsys):
    assert main(["replay", "algorithm.adv_estimator=grpo"]) == 1
    assert "WHERE: expected a run" in capsys.readouterr().err


def conditioned(rng):
    """Draw responses of which short ones are mostly wrong."""
    right = float(rng.random() < 0.3)
    return {"correctness": right, "brevity": rng.random() * (0.3 if right else 1.0)}


def guarded(rng):
    """Draw responses whose relevance is often only repetition, which has the weight 0."""
    own = float(rng.random() < 0.5)
    return {"relevance": rng.random() * (0.4 if own else 1.0), "own_words": own}


def twins(rng):
    right = float(rng.random() < 0.5)
    return {"right": right, "again": right + 0.01 * rng.random(), "other": rng.random()}


ADVICE = {
    "a condition on what is measured and not paid": (
        guarded,
        ["algorithm.gdpo_reward_weights={own_words: 0}"],
        "'++algorithm.gdpo.conditions={relevance: {on: own_words, at_least: 1}}'",
        "of the positive terms of relevance go to responses that fail own_words",
    ),
    "two that do alike": (
        twins,
        [],
        "'++algorithm.gdpo_reward_weights={again: 0}'",
        "again repeats right: the correlation within groups is",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_has_an_override_and_its_evidence(replayed, name):
    draw, settings, override, because = ADVICE[name]
    steps = {n: drawn(20, draw, seed=n) for n in (1, 2, 3)}
    found = replayed(steps, *settings)
    (chosen,) = [each for each in found["advice"] if each["override"].startswith(override)]
    assert because in chosen["because"]
    assert len(found["advice"]) <= 5
    assert chosen["override"] in found["printed"]


def mixed(rng):
    """Draw rewards about which most rules give advice."""
    values = conditioned(rng)
    values |= {"again": values["correctness"] + 0.01 * rng.random(), "never": 0.0}
    return values | {"similar": 0.5 + 0.01 * rng.random() - 0.5 * (rng.random() < 0.002)}


STRANGE = {
    "correctness": "格式",
    "brevity": "f(x)",
    "again": "a=b",
    "never": "3",
    "similar": "true",
}
LIST = (
    "++algorithm={gdpo_reward_keys: [correctness, brevity, again, never, similar], "
    "gdpo_reward_weights: [1, 1, 1, 1, 1]}"
)


def composed(recipe, words):
    """Compose the node `algorithm` of a recipe, or of verl's own configuration, with overrides."""
    if recipe:
        return compose(recipe, words).algorithm
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer", ["algorithm.adv_estimator=gdpo", *words]).algorithm


@pytest.mark.parametrize(
    ("recipe", "words", "renamed"),
    [
        ("", [], STRANGE),
        ("", [LIST], {}),
        ("math_length/grpo_conditioned", [], {"brevity": "é"}),
    ],
    ids=["strange names", "weights as a list", "a recipe"],
)
def test_advice_can_be_composed_and_replayed_with_any_configuration(
    tmp_path, recipe, words, renamed
):
    node = OmegaConf.to_container(composed(recipe, words), resolve=True)
    rows = []
    for row in drawn(60, mixed):
        own = {renamed.get(key, key): value for key, value in row.items()}
        # The recipe has a condition on the length.
        rows.append({"length": 0.0, **own, "response_tokens": 10, "gdpo_advantage": 0.0})
    run = tmp_path / "run"
    dump(run / "rollouts", {1: rows})
    (run / "config.yaml").write_text(OmegaConf.to_yaml({"algorithm": node}))
    outcome = renamed.get("correctness", "")
    advice = replay([run], outcome=outcome).verdict.advice
    assert len(advice) >= 2
    pasted = [shlex.split(each.override)[0] for each in advice]
    for word, each in zip(pasted, advice, strict=True):
        after = replay([run], [word], outcome=outcome).verdict.advice
        assert each.because not in [other.because for other in after]
    config = GdpoConfig.from_algorithm(composed(recipe, [*words, *pasted]))
    returned = [key for key in rows[0] if key != "gdpo_advantage"]
    config.resolve(returned, returned)


@pytest.mark.parametrize("name", ["acc", "accuracy_reward", "exact", "right", "solved"])
def test_the_outcome_has_a_usual_name_or_is_the_only_binary_component(replayed, name):
    rows = drawn(60, conditioned)
    for row in rows:
        row[name] = row.pop("correctness")
    found = replayed(rows)
    assert found["outcome"] == name
    assert f"{name} counts as the outcome" in found["printed"]
    condition = f"'++algorithm.gdpo.conditions={{brevity: {{on: {name}, at_least: 1}}}}'"
    assert found["advice"][0]["override"] == condition
    if name == "solved":
        for row in rows:
            row["format"] = float(row["brevity"] > 0.5)
        unknown = replayed(rows)
        assert unknown["outcome"] is None
        assert "No outcome is known: none of brevity, solved, format has" in unknown["printed"]
        found = replayed(rows, "--outcome", "solved")
        assert condition in [each["override"] for each in found["advice"]]


def test_a_threshold_is_the_largest_value_of_all_batches_that_responses_reach(replayed):
    steps = {n: drawn(20, conditioned, seed=n) for n in (1, 2, 3)}
    for step, rows in steps.items():
        for row in rows:
            row["correctness"] *= 0.9 if step > 1 else 0.5
    found = replayed(steps)
    assert "at_least: 0.9}" in found["advice"][0]["override"]
    # In the first batch all responses fail, like those with the value 0.
    paid = found["components"]["brevity"]["misses"][1]
    for row in steps[1]:
        row["correctness"] = 0.0
    assert replayed(steps)["components"]["brevity"]["misses"][1] == pytest.approx(paid)
    for place, row in enumerate(steps[3]):
        row["correctness"] += 0.001 * place
    found = replayed(steps)
    assert not [each for each in found["advice"] if "conditions" in each["override"]]
    assert "whether brevity should depend on correctness: a response" in found["conclusion"]


def test_weights_that_a_run_has_as_a_list_are_not_overridden_by_name(tmp_path):
    rows = drawn(4, two_rewards)
    node = "{gdpo_reward_keys: [correctness, length], gdpo_reward_weights: [1, 2]}"
    run = run_of(tmp_path / "run", rows, node)
    asked = "algorithm.gdpo_reward_weights={length: 3}"
    with pytest.raises(ValueError, match=r"gdpo_reward_weights: expected a value like \[1, 2\]"):
        replay([run], [asked])
    found = replay([run], ["algorithm.gdpo_reward_weights=null", asked])
    assert found.asked.weights == {"correctness": 1, "length": 3}


def test_a_count_is_no_binary_component_and_five_groups_are_too_few(replayed):
    """The count is that of a run whose texts named their topic more and more often."""
    rows = drawn(40, guarded)
    for place, row in enumerate(rows):
        row["named"] = float(place % 5)
        row["ending"] = float(place < 20 and row["own_words"] == 0)
    found = replayed(rows, "algorithm.gdpo_reward_weights={own_words: 0, named: 0}")
    (condition,) = [each for each in found["advice"] if "go to responses" in each["because"]]
    assert "on: own_words" in condition["override"]
    assert "whether ending rewards responses that fail own_words (100% [100%" in found["conclusion"]


def test_no_advice_is_given_if_nothing_is_wrong(replayed):
    rows = drawn(60, two_rewards)
    condition = "algorithm.gdpo.conditions={length: {on: correctness, at_least: 1}}"
    assert replayed(rows, condition)["advice"] == []
    found = replayed(rows, "algorithm.gdpo_reward_keys=[correctness]")
    assert found["advice"] == []
    assert found["conclusion"].startswith("No advice. 60 groups were examined for positive terms")


def test_capacity_is_the_sum_of_the_shares_of_groups_in_which_a_component_varies():
    rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    # Both components vary in the first group, and one of them in the second.
    found = capacity(rewards, [0, 0, 1, 1], ["right", "rare"], size=2)
    assert (found["varies"], found["teaches"]) == ({"2": {"right": 1.0, "rare": 0.5}}, 1.5)
    too_few = capacity(rewards, [0, 0, 1, 1], ["right", "rare"], size=8)
    assert (too_few["varies"], too_few["teaches"]) == ({}, None)


def test_the_chance_that_a_component_varies_is_exact():
    expected = 1 - math.comb(12, 8) / math.comb(16, 8)
    assert varies([1.0] * 4 + [0.0] * 12, 8) == pytest.approx(expected)
    # A response that is not scored does not count as a third value.
    assert varies([1.0, math.nan, math.nan, 0.0], 2) == pytest.approx(1 / 6)
    assert varies([math.nan] * 4, 2) == 0
    assert varies([1.0, math.nan], 2) == 0
