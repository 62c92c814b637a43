"""`gdpo-verl replay`: stored answers under other settings, their figures, and what is refused."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from gdpo_verl import advantages_of, gdpo_advantages, grpo_advantages
from gdpo_verl.advantage import decompose
from gdpo_verl.config import GdpoConfig
from gdpo_verl.diagnostics import batch_metrics
from gdpo_verl.lab.check_reward.tokens import byte_tokenizer
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.replay.capacity import capacity, expected_to_vary, varies
from gdpo_verl.lab.replay.output import LIMITS

Row = dict[str, Any]
KEYS = ("correctness", "length")


def dump(folder: Path, steps: dict[int, list[Row]]) -> Path:
    """A folder of verl's dumps."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, rows in steps.items():
        lines = [json.dumps({"step": step} | row) for row in rows]
        (folder / f"{step}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def drawn(
    groups: int,
    draw: Callable[[random.Random], dict[str, float]],
    *,
    seed: int = 0,
    weights: dict[str, float] | None = None,
    size: int = 8,
) -> list[Row]:
    """Rows of a stock run: groups of rewards, and their weighted sum as the score."""
    rng = random.Random(seed)
    rows = []
    for group in range(groups):
        for answer in range(size):
            rewards = draw(rng)
            score = sum((weights or {}).get(key, 1.0) * value for key, value in rewards.items())
            text = {"input": f"question {seed}-{group}", "output": f"answer {answer}", "gts": "42"}
            rows.append({**text, "score": score, **rewards})
    return rows


def two_rewards(rng: random.Random) -> dict[str, float]:
    return {"correctness": float(rng.random() < 0.5), "length": 10 * rng.random()}


def replayed(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: Any) -> dict[str, Any]:
    """What `--json` and `--rows` hold, with what was printed."""
    files = ["--json", str(tmp_path / "all.json"), "--rows", str(tmp_path / "rows.jsonl")]
    status = main(["replay", *map(str, words), *files])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    found = json.loads((tmp_path / "all.json").read_text())
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    return found | {"printed": printed.out, "lines": [json.loads(line) for line in lines]}


def refused(capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    """What is said where nothing can be done."""
    assert main(["replay", *map(str, words)]) == 1
    printed = capsys.readouterr()
    assert not printed.out
    assert "Traceback" not in printed.err
    return printed.err


def matrix(rows: Sequence[Row], keys: Sequence[str] = KEYS) -> torch.Tensor:
    return torch.tensor([[row[key] for key in keys] for row in rows], dtype=torch.float64)


def by_sequence(rows: Sequence[Row], **options: Any) -> list[float]:
    groups = [row["input"] for row in rows]
    mask = torch.ones(len(rows), 1)
    found = gdpo_advantages(matrix(rows), groups, mask, whiten="sequence", **options)
    return found[:, 0].tolist()


def summed(rows: Sequence[Row], **options: Any) -> list[float]:
    groups = [row["input"] for row in rows]
    return grpo_advantages(matrix(rows), groups, torch.ones(len(rows), 1), **options)[:, 0].tolist()


def test_a_stock_dump_is_asked_what_gdpo_would_have_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    steps = {n: drawn(6, two_rewards, seed=n) for n in (1, 2)}
    found = replayed(capsys, tmp_path, dump(tmp_path / "dumps", steps))
    assert LIMITS in found["printed"]
    assert (found["rows"], found["groups"], found["steps"]) == (96, 12, 2)
    assert found["settings"] == ["grpo", "gdpo"]
    assert found["reproduces"] is None
    assert "whitening is over sequences" in found["printed"]
    lines = found["lines"]
    assert [line["asked"] for line in lines] == pytest.approx(
        by_sequence(steps[1]) + by_sequence(steps[2])
    )
    assert all(line["recorded"] is None for line in lines)
    assert {line["line"] for line in lines} == set(range(1, 49))
    assert lines[0].keys() >= {"file", "line", "group", "step", "components"}
    grpo = summed(steps[1]) + summed(steps[2])
    asked = [line["asked"] for line in lines]
    assert found["sign_changes"] == sum(a * b < 0 for a, b in zip(grpo, asked, strict=True))
    orders = []
    for start in range(0, 96, 8):
        before, after = grpo[start : start + 8], asked[start : start + 8]
        orders.append(
            sorted(range(8), key=before.__getitem__) != sorted(range(8), key=after.__getitem__)
        )
    assert found["order_changes"] == sum(orders) > 0
    changes = [abs(a - b) for a, b in zip(grpo, asked, strict=True)]
    most = found["changed_most"]
    assert len(most) == 10
    assert [abs(each["asked"] - each["recorded"]) for each in most] == pytest.approx(
        sorted(changes, reverse=True)[:10]
    )
    assert most[0]["output"].startswith("answer ")
    assert most[0]["components"].keys() == set(KEYS)


def test_figures_are_the_metrics_of_a_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(8, two_rewards)
    found = replayed(capsys, tmp_path, dump(tmp_path / "dumps", {1: rows}))
    objective = GdpoConfig(reward_keys=KEYS, whiten="sequence").resolve([])
    groups = [row["input"] for row in rows]
    settings = objective.settings_at(1)
    decomposition = decompose(matrix(rows), groups, torch.ones(len(rows)), **settings)
    for place, trains in enumerate((False, True)):
        metrics = batch_metrics(decomposition, KEYS, outcome=0, trains=trains)
        for key in KEYS:
            figures = {name: pair[place] for name, pair in found["components"][key].items()}
            assert figures["influence"] == pytest.approx(metrics[f"gdpo/{key}/influence"])
            assert figures["varies"] == 8 * (1 - metrics[f"gdpo/{key}/constant_groups"])
            if trains:
                assert figures["share"] == pytest.approx(metrics[f"gdpo/{key}/advantage_share"])
    # Deviations of about .5 and 3 within groups: GRPO's sum is the length's.
    assert found["components"]["length"]["share"][0] > 0.8
    assert found["components"]["length"]["share"][1] == pytest.approx(0.5, abs=0.1)


def test_settings_are_spelled_as_in_a_training(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(6, two_rewards)
    where = dump(tmp_path / "dumps", {1: rows})
    words = {
        "algorithm.gdpo_reward_weights={length: 0.5}": {"weights": [1.0, 0.5]},
        "+algorithm.gdpo_reward_weights={length:0.5}": {"weights": [1.0, 0.5]},
        "algorithm.gdpo.variant=dvao": {"variant": "dvao"},
        "algorithm.gdpo.gate={on: correctness}": {"gate": 0},
        "algorithm.norm_adv_by_std_in_grpo=false": {"scale": False},
    }
    for word, options in words.items():
        found = replayed(capsys, tmp_path, where, word)
        if options.get("variant") == "dvao":
            groups = [row["input"] for row in rows]
            mask = torch.ones(len(rows), 1)
            expected = gdpo_advantages(matrix(rows), groups, mask, **options)[:, 0].tolist()
        else:
            expected = by_sequence(rows, **options)
        assert [line["asked"] for line in found["lines"]] == pytest.approx(expected), word
    found = replayed(
        capsys,
        tmp_path,
        "algorithm.gdpo.conditions={length: {on: correctness, at_least: 1}}",
        where,
        "algorithm.gdpo.whiten=none",
    )
    assert found["components"]["length"]["misses"][1] == 0
    assert found["components"]["length"]["misses"][0] > 0.3


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("algorithm.adv_estimator=rloo", "algorithm.adv_estimator: expected one of"),
        ("algorithm.gdpo_whiten=none", "algorithm.gdpo_whiten: unknown key"),
        ("algorithm.gdpo_reward_weights={lenght: 1}", "Did you mean 'length'?"),
        ("actor_rollout_ref.rollout.n=16", "actor_rollout_ref.rollout.n: expected a setting of"),
        ("algorithm.gdpo={", "algorithm.gdpo={"),
    ],
)
def test_a_wrong_setting_is_refused_by_its_key(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, word: str, said: str
) -> None:
    where = dump(tmp_path / "dumps", {1: drawn(6, two_rewards)})
    assert said in refused(capsys, where, word)


def whole(rows: list[Row]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


ROWS = drawn(4, two_rewards)
BAD: dict[str, tuple[dict[str, str], str]] = {
    "a component absent in a row": (
        {"1.jsonl": whole([*ROWS[:5], {k: v for k, v in ROWS[5].items() if k != "length"}])},
        "'length' for row {}/1.jsonl, line 6",
    ),
    "a text for a number": (
        {"1.jsonl": whole([*ROWS[:5], ROWS[5] | {"length": "short"}])},
        "found 'short' for row {}/1.jsonl, line 6",
    ),
    "an infinite number": (
        {"1.jsonl": whole([*ROWS[:5], ROWS[5] | {"length": float("inf")}])},
        "found inf for row {}/1.jsonl, line 6",
    ),
    "a text for the score": (
        {"1.jsonl": whole([*ROWS[:2], ROWS[2] | {"score": "high"}])},
        "{}/1.jsonl, line 3: expected a finite number for 'score', found 'high'",
    ),
    "nothing but a cut line": ({"1.jsonl": whole(ROWS)[:-30]}, "{}/1.jsonl, line 32: no whole row"),
    "an empty file": ({"1.jsonl": ""}, "{}/1.jsonl, line 1: expected rows"),
    "no rows at all": ({"1.jsonl": "[1, 2]\n"}, "{}/1.jsonl, line 1: expected rows"),
    "no components": (
        {"1.jsonl": whole([{"input": "q", "output": "a", "score": 1.0, "uid": "u_0_0"}])},
        "{}/1.jsonl, line 1: a dump without components",
    ),
    "a row of another step": (
        {"1.jsonl": whole([ROWS[0] | {"step": 1}, ROWS[1] | {"step": 7}])},
        "{}/1.jsonl, line 2: expected a row of step 1, found one of step 7",
    ),
    "two runs beside each other": (
        {"a/1.jsonl": whole(ROWS), "b/rollouts/1.jsonl": whole(ROWS)},
        "{}: expected the dumps of one run, found those of 2",
    ),
    "two files of one step": (
        {"1.jsonl": whole(ROWS), "01.jsonl": whole(ROWS)},
        "found 01.jsonl and 1.jsonl, both of one step",
    ),
    "no dumps": ({"notes.txt": "hello"}, "{}: expected rollouts/<step>.jsonl of a run"),
    "no table": ({"completions_00001.parquet": "hello"}, "completions_00001.parquet, line 1:"),
    "a step that is a text": ({"x.jsonl": whole([ROWS[0] | {"step": "one"}])}, "line 1: expected"),
    "a cut line among rows": ({"x.jsonl": whole(ROWS)[:-9]}, "x.jsonl, line 32: expected a row"),
    "a configuration that is none": (
        {"rollouts/1.jsonl": whole(ROWS), "config.yaml": "algorithm: {a: ${nowhere}}"},
        "{}/config.yaml: expected the run's configuration",
    ),
    "no groups": ({"x.jsonl": '{"a": 1}\n'}, "x.jsonl, line 1: the rows hold neither"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_with_file_and_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    files, said = BAD[name]
    for file, text in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    where = tmp_path / "x.jsonl" if "x.jsonl" in files else tmp_path
    assert said.format(tmp_path) in refused(capsys, where)


def test_what_is_left_out_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    steps = {n: drawn(4, two_rewards, seed=n) for n in (1, 2, 3, 6)}
    where = dump(tmp_path / "dumps", steps)
    cut = (where / "2.jsonl").read_text()[:-20]
    (where / "2.jsonl").write_text(cut)
    lines = (where / "3.jsonl").read_text().splitlines()
    (where / "3.jsonl").write_text("\n".join(lines[:25]) + "\n")
    found = replayed(capsys, tmp_path, where)
    printed = " ".join(found["printed"].split())
    assert f"{where}/2.jsonl, line 32: no whole row, perhaps cut. Step 2 is left out" in printed
    assert f"{where}: of steps 1 to 6 are missing 4, 5" in printed
    assert f"{where}/3.jsonl, line 25: its group has 1 answers" in printed
    assert "1 groups have one answer, which gets 0" in printed
    assert found["rows"] == 32 + 25 + 32
    (single,) = [x for x in found["lines"] if x["line"] == 25 and x["step"] == 3]
    whole_rows = steps[3][:25]
    assert single["asked"] == pytest.approx(by_sequence(whole_rows)[24])


def test_a_run_of_verls_own_command_has_the_settings_that_hydra_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(6, two_rewards, weights={"length": 0.25})
    where = dump(tmp_path / "run/rollouts", {1: rows}).parent
    (where / ".hydra").mkdir()
    (where / ".hydra/config.yaml").write_text("algorithm: {adv_estimator: rloo}")
    found = replayed(capsys, tmp_path, where, "algorithm.adv_estimator=gdpo")
    assert "trained with rloo; recorded are then GRPO" in " ".join(found["printed"].split())
    # GRPO of the score that was dumped, whose weights the rows show.
    grpo = summed(rows, weights=[1.0, 0.25])
    most = found["changed_most"][0]
    assert most["recorded"] == pytest.approx(grpo[most["line"] - 1])
    assert most["asked"] == pytest.approx(by_sequence(rows)[most["line"] - 1])


def test_rows_that_verl_added_to_fill_a_batch_are_no_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [row | {"uid": f"u{n // 8}_{n % 8}_0"} for n, row in enumerate(drawn(4, two_rewards))]
    expected = by_sequence(rows)
    filled = [rows[0] | {"uid": f"pad{'0f' * 16}_{n}_0", "length": 50.0 * n} for n in range(3)]
    found = replayed(capsys, tmp_path, dump(tmp_path / "dumps", {1: [*filled, *rows]}))
    assert (found["rows"], found["groups"]) == (32, 4)
    assert [line["asked"] for line in found["lines"]] == pytest.approx(expected)


def test_the_last_output_of_a_session_stands_for_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [row | {"uid": f"u{n // 8}_{n % 8}_1"} for n, row in enumerate(drawn(4, two_rewards))]
    earlier = [row | {"uid": row["uid"][:-1] + "0", "length": 50.0} for row in rows[::3]]
    mixed = sorted([*earlier, *rows], key=lambda row: row["uid"])
    found = replayed(capsys, tmp_path, dump(tmp_path / "dumps", {1: mixed}))
    assert [line["asked"] for line in found["lines"]] == pytest.approx(by_sequence(rows))


def test_components_by_turn_and_derived_ones_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(3, two_rewards)
    rng = random.Random(1)
    rewards: list[Row] = []
    tokens: list[list[int]] = []
    for row in rows:
        calls = [float(rng.random() < 0.5) for _ in range(rng.randint(1, 3))]
        tokens.append([rng.randint(1, 9) for _ in calls])
        rewards.append({"correctness": row["correctness"], "call_ok": calls})
        row |= {"call_ok": sum(calls), "call_ok_by_turn": calls}
        row |= {"response_tokens": sum(tokens[-1]), "response_tokens_by_turn": tokens[-1]}
    groups = [row["input"] for row in rows]
    shorter = {"function": "pkg://gdpo_verl.rewards.derived:relative_length", "outcome": KEYS[0]}
    expected = advantages_of(
        rewards, groups, token_counts=tokens, config={"gdpo": {"derived": {"shorter": shorter}}}
    )
    settings = "{function: 'pkg://gdpo_verl.rewards.derived:relative_length', outcome: correctness}"
    found = replayed(
        capsys,
        tmp_path,
        dump(tmp_path / "dumps", {1: rows}),
        "--components",
        "correctness,call_ok",
        f"+algorithm.gdpo.derived.shorter={settings}",
    )
    for line, turns, counts in zip(found["lines"], expected, tokens, strict=True):
        mean = sum(a * n for a, n in zip(turns, counts, strict=True)) / sum(counts)
        assert line["asked"] == pytest.approx(mean, abs=1e-9)
    assert set(found["components"]) == {"correctness", "call_ok", "shorter"}


def test_a_prompt_of_two_steps_is_two_groups(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(4, two_rewards)
    found = replayed(capsys, tmp_path, dump(tmp_path / "dumps", {1: rows, 2: rows}))
    assert found["groups"] == 8


def test_a_tokenizer_counts_the_tokens_that_were_not_dumped(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [row | {"output": "é" * (n % 5 + n % 3)} for n, row in enumerate(drawn(6, two_rewards))]
    where = dump(tmp_path / "dumps", {1: rows})
    byte_tokenizer().save_pretrained(tmp_path / "model")
    found = replayed(capsys, tmp_path, where, "--tokenizer", tmp_path / "model")
    # Two bytes a letter, and the end.
    lengths = torch.tensor([1 + len(row["output"].encode()) for row in rows])
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).double()
    groups = [row["input"] for row in rows]
    expected = gdpo_advantages(matrix(rows), groups, mask)[:, 0].tolist()
    assert [line["asked"] for line in found["lines"]] == pytest.approx(expected)
    assert expected != pytest.approx(by_sequence(rows), abs=1e-3)
    assert "whitening is over sequences" not in found["printed"]
    said = refused(capsys, where, "--tokenizer", tmp_path / "nowhere")
    assert "--tokenizer: cannot load a tokenizer" in said


def test_rows_of_anybodys_need_names_of_columns_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(4, two_rewards)
    foreign = [
        {"problem": row["input"], "right": row["correctness"], "len": row["length"], "n": i}
        for i, row in enumerate(rows)
    ]
    expected = by_sequence(rows)
    (tmp_path / "x.jsonl").write_text(whole(foreign))
    pq.write_table(pa.Table.from_pylist(foreign), tmp_path / "x.parquet")
    for name in ("x.jsonl", "x.parquet"):
        words = (tmp_path / name, "--group", "problem", "--components", "right,len")
        found = replayed(capsys, tmp_path, *words)
        assert [line["asked"] for line in found["lines"]] == pytest.approx(expected)
        assert found["components"].keys() == {"right", "len"}
    said = refused(capsys, tmp_path / "x.jsonl", "--group", "problm")
    assert "--group: 'problm' is no column" in said
    assert "Did you mean 'problem'?" in said


# ------------------------------------------------ rewards that score the answers anew

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    print("a reward that prints")
    right = float(solution_str.split()[-1] == str(ground_truth))
    return {"score": right, "right": right, "length": len(solution_str)}

def asks(data_source, solution_str, ground_truth, extra_info=None):
    try:
        return {"score": 1.0, "hard": float((extra_info or {}).get("level") == 3)}
    except Exception:
        return {"score": 0.0, "hard": 0.0}

def of_a_source(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": 1.0, "hard": float(data_source in ("math", "code"))}

def hangs(data_source, solution_str, ground_truth, extra_info=None):
    import os
    os._exit(3)

def number(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0

def raises(data_source, solution_str, ground_truth, extra_info=None):
    raise KeyError("an answer without a number")
"""


def test_a_reward_scores_the_stored_answers_anew(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    rng = random.Random(0)
    rows = [
        {"input": f"q{n // 4}", "output": f"so it is {rng.choice(['42', '7', '137'])}", "gts": "42"}
        | {"score": 0.0, "uid": f"u{n // 4}_{n % 4}_0"}
        for n in range(24)
    ]
    where = dump(tmp_path / "dumps", {1: rows})
    found = replayed(capsys, tmp_path, where, "--function", f"{tmp_path}/reward.py:compute_score")
    scored = [
        {"input": row["input"], "right": float(row["output"].endswith(" 42"))}
        | {"length": float(len(row["output"]))}
        for row in rows
    ]
    groups = [row["input"] for row in rows]
    expected = gdpo_advantages(
        matrix(scored, ("right", "length")), groups, torch.ones(24, 1), whiten="sequence"
    )
    assert [line["asked"] for line in found["lines"]] == pytest.approx(expected[:, 0].tolist())
    assert found["lines"][0]["components"] == {k: scored[0][k] for k in ("right", "length")}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("asks", "needs extra_info['level'], which was not dumped"),
        ("of_a_source", "needs data_source, which was not dumped"),
        ("hangs", "ended its process"),
        ("raises", "raised KeyError: 'an answer without a number'"),
        ("missing", "cannot be done: AttributeError"),
    ],
)
def test_a_reward_that_cannot_score_is_named_with_file_and_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    where = dump(tmp_path / "dumps", {1: drawn(2, two_rewards)})
    found = refused(capsys, where, "--function", f"{tmp_path}/reward.py:{name}")
    assert said in found
    assert name == "missing" or f"{where}/1.jsonl, line 1: " in found


# ------------------------------------------------ advice


def conditioned(rng: random.Random) -> dict[str, float]:
    """A short answer is rather a wrong one."""
    right = float(rng.random() < 0.3)
    return {"correctness": right, "brevity": rng.random() * (0.3 if right else 1.0)}


def guarded(rng: random.Random) -> dict[str, float]:
    """What pleases the model of relevance is repetition, which is measured and not paid."""
    own = float(rng.random() < 0.5)
    return {"relevance": rng.random() * (0.4 if own else 1.0), "own_words": own}


def twins(rng: random.Random) -> dict[str, float]:
    right = float(rng.random() < 0.5)
    return {"right": right, "again": right + 0.01 * rng.random(), "other": rng.random()}


def dead(rng: random.Random) -> dict[str, float]:
    return {"right": float(rng.random() < 0.5), "never": 0.0}


def narrow(rng: random.Random) -> dict[str, float]:
    """Groups of answers whose similarity differs by a hundredth; one in eight is far away."""
    return {"right": float(rng.random() < 0.5), "similar": 0.5 + 0.01 * rng.random()}


def wide(rng: random.Random) -> dict[str, float]:
    return {"right": float(rng.random() < 0.5), "points": 20 * rng.random()}


def silent(rng: random.Random) -> dict[str, float]:
    return {"right": float(rng.random() < 0.006), "brief": float(rng.random() < 0.006)}


ADVICE: dict[str, tuple[Callable[[random.Random], dict[str, float]], list[str], str, str]] = {
    "a condition": (
        conditioned,
        [],
        "'algorithm.gdpo.conditions={brevity: {on: correctness, at_least: 1}}'",
        "of what brevity pays goes to answers that fail correctness",
    ),
    "a condition on what is measured and not paid": (
        guarded,
        ["algorithm.gdpo_reward_weights={own_words: 0}"],
        "'algorithm.gdpo.conditions={relevance: {on: own_words, at_least: 1}}'",
        "of what relevance pays goes to answers that fail own_words",
    ),
    "two that do alike": (
        twins,
        [],
        "'algorithm.gdpo_reward_keys=[right, other]'",
        "again does as right does: correlation within groups",
    ),
    "one that never varies": (
        dead,
        [],
        "'algorithm.gdpo_reward_keys=[right]'",
        "never varies in none of 60 groups (at most 5.0% of all",
    ),
    "weights of a sum": (
        wide,
        ["algorithm.adv_estimator=grpo"],
        "'algorithm.gdpo_reward_weights={right: ",
        "influence is not as the weights declare: right",
    ),
    "whitening's gain": (
        silent,
        [],
        "algorithm.gdpo.whiten=none",
        "whitening multiplies every advantage by",
    ),
}


@pytest.mark.parametrize("name", ADVICE)
def test_advice_has_an_override_and_its_evidence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    draw, settings, override, because = ADVICE[name]
    where = dump(tmp_path / "dumps", {n: drawn(20, draw, seed=n) for n in (1, 2, 3)})
    found = replayed(capsys, tmp_path, where, *settings)
    chosen = [each for each in found["advice"] if each["override"].startswith(override)]
    assert len(chosen) == 1, found["advice"]
    assert because in chosen[0]["because"]
    assert len(found["advice"]) <= 5
    assert chosen[0]["override"] in found["printed"]
    # Pasted, it has been followed.
    pasted = chosen[0]["override"].strip("'")
    after = replayed(capsys, tmp_path, where, *settings, pasted)
    assert chosen[0]["because"] not in [each["because"] for each in after["advice"]]
    if name == "weights of a sum":
        influence = [each["influence"][1] for each in after["components"].values()]
        assert influence[0] / sum(influence) == pytest.approx(0.5, abs=0.05)


def test_small_spread_is_named_beside_the_range(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(40, narrow)
    for row in rows[:8]:
        row["similar"] = 0.0  # the range is seen to be 0 to .51
    found = replayed(capsys, tmp_path, dump(tmp_path / "dumps", {1: rows}))
    (small,) = [each for each in found["advice"] if "deviates within groups" in each["because"]]
    assert "of its range 0 to 0.5" in small["because"]
    assert "noise floor" in small["because"]
    assert small["override"].startswith("'algorithm.gdpo_reward_weights={right: 1, similar: 0.")


def test_nothing_is_advised_where_nothing_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(60, two_rewards)
    where = dump(tmp_path / "dumps", {1: rows})
    condition = "algorithm.gdpo.conditions={length: {on: correctness, at_least: 1}}"
    weights = replayed(capsys, tmp_path, where, condition)["advice"]
    assert all("influence" in each["because"] for each in weights)
    found = replayed(capsys, tmp_path, where, "algorithm.gdpo_reward_keys=[correctness]")
    assert found["advice"] == []
    assert found["conclusion"] == "nothing would change"


def test_advice_is_not_given_from_few_groups(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = replayed(capsys, tmp_path, dump(tmp_path / "dumps", {1: drawn(12, dead)}))
    assert found["advice"] == []
    assert found["conclusion"].startswith("cannot be said from 12 groups")
    assert "cannot be said from 12 groups" in found["printed"]


# ------------------------------------------------ capacity, and what the report draws


def test_capacity_is_exact_and_says_what_may_never_start() -> None:
    right = [1.0] * 4 + [0.0] * 12
    rare = [1.0] + [0.0] * 15
    rows = [list(pair) for pair in zip(right, rare, strict=True)]
    rows += [[1.0, 0.0]] * 16
    found = capacity(rows, [0] * 16 + [1] * 16, ["right", "rare"], size=8, prompts_a_step=128)
    # Of 16 answers one is 1: a group of n has it with n/16; the other prompt never varies.
    assert [found["varies"][n]["rare"] for n in ("4", "8", "16")] == pytest.approx(
        [4 / 32, 8 / 32, 16 / 32]
    )
    expected = (1 - (math.comb(12, 8)) / math.comb(16, 8)) / 2
    assert found["varies"]["8"]["right"] == pytest.approx(expected)
    assert found["teaches"] == pytest.approx(expected + 8 / 32)
    assert found["rare"] == []
    # One of 64 prompts has one such answer: 1 - 1/2 of its groups, or 1/128 of all.
    column = [[1.0]] + [[0.0]] * (64 * 16 - 1)
    groups = [number // 16 for number in range(64 * 16)]
    (said,) = capacity(column, groups, ["format"], size=8, prompts_a_step=128)["rare"]
    assert said == (
        "format: 0.8% of groups of 8 vary, 1 of 128 a step: may never start; demonstrations first"
    )
    none = capacity([[1.0]] * 4, [0, 0, 1, 1], ["right"], size=8, prompts_a_step=2)
    assert (none["varies"], none["teaches"]) == ({}, None)


@pytest.mark.parametrize("rate", [0.0023, 0.5])
def test_a_rate_gives_the_formulas_share(rate: float) -> None:
    answers = [1.0] * round(10_000 * rate) + [0.0] * round(10_000 * (1 - rate))
    for size in (8, 16):
        formula = 1 - rate**size - (1 - rate) ** size
        assert expected_to_vary(answers, size) == pytest.approx(formula, rel=1e-3)
        assert varies(answers, size) == pytest.approx(formula, rel=1e-2)
    # Not scored is no third value, and no draw of them varies.
    assert varies([1.0, math.nan, math.nan, 0.0], 2) == pytest.approx(1 / 6)
    assert varies([math.nan] * 4, 2) == varies([1.0, math.nan], 2) == 0


def test_the_report_draws_dumps_and_scores_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    where = dump(tmp_path / "dumps", {n: drawn(4, two_rewards, seed=n) for n in (1, 2)})
    bare = [{k: row[k] for k in ("input", "output", "score")} for row in drawn(4, two_rewards)]
    alone = dump(tmp_path / "bare", {1: bare})
    for folder, reward in ((where, "length"), (alone, "score")):
        assert main(["report", str(folder), "--out", str(tmp_path / "page")]) == 0
        summary = (tmp_path / "page/summary.md").read_text()
        assert f"training {reward}, mean of all steps" in summary
        assert "computed from the dumped rows" in summary
        page = (tmp_path / "page/index.html").read_text()
        assert "answer 3" in page
    assert "hold no components; the score is drawn" in summary
    (where / "2.jsonl").write_text('{"input": 3')
    assert main(["report", str(where), "--out", str(tmp_path / "page")]) == 0
    assert "2.jsonl, line 1: no whole row" in (tmp_path / "page/summary.md").read_text()
    (where / "1.jsonl").write_text(whole([ROWS[0], ROWS[1] | {"length": "long"}]))
    capsys.readouterr()
    assert main(["report", str(where), "--out", str(tmp_path / "page")]) == 1
    assert "1.jsonl, line 2" in capsys.readouterr().err


def test_the_page_needs_no_other_file_and_escapes_what_answers_hold(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = drawn(4, two_rewards)
    for row in rows:
        row["output"] = "</pre><script>alert(1)</script>"
    where = dump(tmp_path / "dumps", {1: rows})
    assert main(["replay", str(where), "--out", str(tmp_path / "page")]) == 0
    page = (tmp_path / "page/index.html").read_text()
    assert LIMITS in page
    assert "<script>" not in page
    assert "&lt;/pre&gt;&lt;script&gt;" in page
    assert str(tmp_path / "page/index.html") in capsys.readouterr().out
