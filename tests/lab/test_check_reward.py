"""`gdpo-verl check-reward`: verl's managers on small data, files of responses, and errors."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runs import verls_uid
from prepared import write
from processes import session
from waiting import wait_for

from gdpo_verl.lab.check_reward.answers import from_file
from gdpo_verl.lab.check_reward.tokens import byte_tokenizer
from gdpo_verl.lab.cli import main
from gdpo_verl.lab.tasks.rows import make_row

REWARDS = """
import asyncio, ctypes, os, random, re, signal, subprocess, threading, time
from gdpo_verl.rewards import Component, declares
from helpers import score_of

# As tvm_ffi does, vLLM's, so that faulthandler has it no more.
signal.signal(signal.SIGSEGV, signal.SIG_DFL)

@declares(Component("right", 0, 1), Component("short", 0, 1))
def good(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return score_of(solution_str, ground_truth)

@declares(Component("right", 0, 1), Component("short", 0, 1))
async def good_async(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    await asyncio.sleep(0.001)
    return score_of(solution_str, ground_truth)

def undeclared(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return score_of(solution_str, ground_truth)

def changed(change):
    @declares("right", "short")
    def reward(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
        return change(score_of(solution_str, ground_truth), solution_str)
    return reward

def on_empty(act):
    return changed(lambda result, answer: result if answer else act())

def one(right):
    return {"score": right, "right": right, "short": 0.0}

def tires(result, answer, seen=[]):
    seen.append(answer)
    return result if seen.count("") < 4 else os._exit(7)

def prints_and_leaves(result, answer):
    os.write(1, b"a reward that prints")
    threading.Thread(target=time.sleep, args=(1000,)).start()
    subprocess.Popen(["sleep", "1000"])
    return result

raises = on_empty(lambda: 1 / 0)
holds_the_interpreter = on_empty(lambda: re.match("(a*)*b", "a" * 100))
exits = on_empty(lambda: os._exit(0))
interrupts = on_empty(lambda: os.kill(os.getppid(), signal.SIGINT) or time.sleep(1000))
crashes = on_empty(lambda: ctypes.string_at(0))
prints = changed(prints_and_leaves)
by_chance = changed(lambda result, answer: one(random.random()))
not_twice = changed(tires)
detailed = changed(lambda result, answer: result | {"detail": {"tags": 2}})
scoreless = changed(lambda result, answer: {key: result[key] for key in ("right", "short")})
numbered = changed(lambda result, answer: result | {1: 0.5})
locked = changed(lambda result, answer: result | {"lock": threading.Lock()})
wrapped = changed(lambda result, answer: asyncio.sleep(0, result))
def nest(result, answer, **more):
    parts = {key: result[key] for key in ("right", "short")} | more
    return {"score": result["score"], "reward_components": parts}

nested = changed(nest)
nested_by_chance = changed(lambda result, answer: nest(result, answer, short=random.random()))
half_a_pair = changed(lambda result, answer: result | {"text": chr(0xD800)})

@declares(Component("format", 0, 1), Component("right", 0, 1))
def thoughtful(data_source, solution_str, ground_truth, extra_info=None, *, strict=True, **kwargs):
    form = float(solution_str.startswith("<think>") and "</think>" in solution_str)
    right = float(f"<answer>{ground_truth}</answer>" in solution_str)
    return {"score": form + right, "format": form, "right": right}

@declares("right", "short")
def by_source(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if data_source == "raises":
        raise LookupError("no judge")
    result = score_of(solution_str, ground_truth)
    return result["right"] if data_source == "number" else result

@declares("right", by_turn=("steps",))
def one_step(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    right = float(solution_str == ground_truth)
    return {"score": right + 1, "right": right, "steps": [1]}

@declares("tokens", "mentions")
def measures(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    tokens = extra_info["response_length"]
    return {"tokens": tokens, "mentions": float(ground_truth in solution_str)}
"""
HELPERS = """
def score_of(answer, truth):
    right, short = float(answer == truth), float(len(answer) < 4)
    return {"score": right + short, "right": right, "short": short}
"""
MANAGER = """
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

class Doubling(NaiveRewardManager):
    components = ("right", "twice")

    async def run_single(self, data):
        result = await super().run_single(data)
        right = result["reward_score"]
        info = {"right": right, "twice": 2 * right}
        return {"reward_score": 3 * right, "reward_extra_info": info}
"""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Work in a folder with rewards.py, helpers.py, managers.py and data.parquet (three rows)."""
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text(REWARDS)
    Path("helpers.py").write_text(HELPERS)
    Path("managers.py").write_text(MANAGER)
    write_data("data.parquet")


def write_data(
    path,
    *,
    drop=None,
    truths=("22", "44", "66"),
    sources=("sums", "sums", "sums"),
):
    rows = []
    for number, truth, source in zip((11, 22, 33), truths, sources, strict=True):
        asked = [{"role": "user", "content": f"what is {number} + {number}?"}]
        row = make_row(source, asked, truth, ability="math", extra_info={"index": number})
        row.pop(drop, None)
        rows.append(row)
    write(path, rows)


def write_answers(*texts, row=0):
    """Write responses to one row into answers.jsonl."""
    lines = [json.dumps({"index": row, "answer": text}) for text in texts]
    Path("answers.jsonl").write_text("\n".join(lines))


@pytest.fixture
def check(work, capfd):
    """Run the command; return its status, its output and its JSON."""

    def run(function, *options):
        named = ["--function", f"rewards.py:{function}"] if function else []
        data = [] if "--data" in options else ["--data", "data.parquet"]
        # If an option is given twice, the last one counts.
        options = ("--timeout", "600", "--json", "report.json", *options)
        status = main(["check-reward", *named, *data, *options])
        report = Path("report.json")
        printed = capfd.readouterr()  # also the output of the worker
        shown = printed.out + "\n".join(
            line
            for line in printed.err.splitlines()
            if line.startswith(("gdpo-verl: ", "calls of the reward"))
        )
        return status, shown, json.loads(report.read_text()) if report.exists() else {}

    return run


def scores(report):
    kinds = {}
    for answer in report["answers"]:
        kinds.setdefault(answer["kind"], []).append(answer["score"])
    return kinds


@pytest.mark.parametrize("function", ["prints", "good_async"])
def test_made_up_answers_through_verls_naive_manager(check, function):
    status, shown, report = check(function)
    # There are three rows with the truths 22, 44 and 66. The score is "right" + "short". The empty
    # response and half a truth are short. The 200 random characters and a truth within tags are
    # neither right nor short.
    assert scores(report) == {
        "ground truth": [2.0] * 3,
        "as an answer": [0.0] * 3,
        "another row's": [1.0] * 3,
        "another row's, as an answer": [0.0] * 3,
        "in a box": [0.0] * 3,
        "another row's, in a box": [0.0] * 3,
        "cut in half": [1.0] * 3,
        "random text": [0.0] * 3,
        "empty": [1.0] * 3,
    }
    assert status == 0
    assert f"rewards.py:{function}" in shown
    assert shown.rstrip().endswith("ok")
    assert report["seconds"]["max"] >= report["seconds"]["median"] > 0
    assert "a reward that prints" not in shown


def test_the_plugins_manager_computes_the_configured_score_and_counts_tokens(check):
    write_answers("é66", row=2)
    options = ["--answers", "answers.jsonl", "+algorithm.gdpo_reward_weights={mentions:5}"]
    status, shown, report = check(
        "measures", *options, "reward.reward_manager.name=gdpo_components"
    )
    # Without the policy's tokenizer each byte is a token: é has two bytes, and the end token
    # counts.
    (answer,) = report["answers"]
    assert answer["returned"] == {"score": 10.0, "tokens": 5, "mentions": 1.0}
    assert (status, answer["score"]) == (0, 10.0)
    assert "bytes, because actor_rollout_ref.model.path is not on this machine" in shown
    _, shown, _ = check("measures", *options)
    assert "PROBLEM  row 2 (answers.jsonl): it raised KeyError: 'response_length'" in shown


def test_a_users_manager_is_loaded_from_a_file(check):
    status, shown, report = check(
        None,
        "reward.reward_manager.source=importlib",
        "reward.reward_manager.name=Doubling",
        "reward.reward_manager.module.path=managers.py",
        "reward.custom_reward_function.path=rewards.py",
        "reward.custom_reward_function.name=undeclared",
        "+algorithm.gdpo_reward_keys=[right,twice]",
    )
    assert status == 0
    assert "managers.py:Doubling" in shown
    # For the truth, "undeclared" returns right 2 and twice 4, with the score 6.
    assert scores(report)["ground truth"] == [6.0] * 3


MISSPELT = "reward.custom_reward_function.reward_kwargs.stric"
BROKEN = {
    "by_chance": "scored twice, in another order: 'score' 0.",
    "not_twice": "row 2 (empty): scored twice, in another order: the second time it ended its "
    "process with status 7",
    f"thoughtful +{MISSPELT}=false": f"{MISSPELT}: rewards.py:thoughtful names no such argument, "
    "only ['data_source', 'solution_str', 'ground_truth', 'extra_info', 'strict']. Did you mean",
    "scoreless": "it returned a dict without 'score'. Return the sum of the components",
    "detailed": "'detail' is {'tags': 2} (dict), with which verl's validation ends (TypeError).",
    # verl's validation cannot make a column from a dict, whichever manager reads the components.
    "nested": "PROBLEM  'reward_components' is {'right': ",
    "nested_by_chance trainer.val_before_train=false trainer.test_freq=-1": "'short' 0.",
    "locked": "it returned what cannot be sent to the trainer",
    "numbered": "it returned a dict with the key 1. Make all its keys texts",
    "wrapped": "it returned a coroutine: verl awaits only",
    "one_step": "row 0 (of 3 turns): 'steps' holds 1 numbers, and the model's turns in this "
    "response are 3. Return one number, or None, for each turn. The number of turns is extra_info",
}


@pytest.mark.parametrize("reward", BROKEN)
def test_a_broken_reward_is_named(check, reward):
    status, shown, _ = check(*reward.split())
    assert status == 1
    problems = [line for line in shown.splitlines() if line.startswith("PROBLEM")]
    assert BROKEN[reward] in "\n".join(problems)


def test_nested_components_are_read_as_in_training(check):
    status, _, report = check("nested", "trainer.val_before_train=false", "trainer.test_freq=-1")
    assert (status, report["problems"]) == (0, [])
    # The plug-in's manager passes them on as columns.
    status, _, _ = check("nested", "reward.reward_manager.name=gdpo_components")
    assert status == 0


def test_a_template_that_opens_the_thought_is_named(check):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}\n<think>\n"
    tokenizer.save_pretrained("policy")
    manager = "reward.reward_manager.name=gdpo_components"
    status, shown, report = check("thoughtful", "actor_rollout_ref.model.path=policy", manager)
    # The made-up responses have no opening tag, as the responses of the policy.
    assert report["answers"][1]["answer"] == "It follows.</think>\n<answer>22</answer>"
    assert (status, scores(report)["as an answer"]) == (0, [2.0] * 3)
    assert "note     the prompt ends in '<think>" in shown

    status, shown, report = check("thoughtful", "actor_rollout_ref.model.path=policy")
    assert (status, scores(report)["as an answer"]) == (0, [1.0] * 3)
    assert "note     reward.reward_manager.name=naive: the prompt ends in '<think>" in shown


REFUSED = {
    "--function rewards.py:missing": "reward.custom_reward_function: cannot load 'missing' from ",
    "--function env.py": "'env.py': KeyError: 'NO_SUCH_KEY' (",
    "--function exits.py": "reward: loading it ended its process with status 3",
    "--data none.parquet": "data.train_files: 'none.parquet' does not exist here (working",
    "--data no_prompt.parquet": "verl's data set reads a column 'prompt', found only",
    "--data no_source.parquet": "verl's reward managers read a column 'data_source', found only",
    "--data no_truth.parquet": "expected a ground truth in reward_model.ground_truth of every row, "
    "found none in row 1 of no_truth.parquet",
    "--rows 0": "--rows: expected a number above 0, found 0",
    "+algorithm.gdpo.whitten=token": "algorithm.gdpo.whitten: unknown key",
    "reward.reward_model.enable=true": "reward.reward_model.enable: expected false, found true",
}


@pytest.mark.parametrize("options", REFUSED)
def test_input_that_cannot_be_checked_is_rejected(check, options):
    Path("env.py").write_text("import os\nos.environ['NO_SUCH_KEY']\n")
    Path("exits.py").write_text("import os\nos._exit(3)\n")
    write_data("no_prompt.parquet", drop="prompt")
    write_data("no_source.parquet", drop="data_source")
    write_data("no_truth.parquet", truths=("22", None, "66"))
    status, shown, report = check(None if "--function" in options else "good", *options.split())
    assert (status, report) == (1, {})
    assert REFUSED[options] in shown


def test_each_data_source_of_both_files_is_tried(check):
    write_data("data.parquet", sources=("sums", "sums", "number"))
    write_data("held_out.parquet", sources=("sums", "number", "raises"))
    _, shown, _ = check("by_source", "--rows", "1")
    assert "row 2 (ground truth): expected compute_score to return a dict" in shown
    write_data("data.parquet")
    # In a validation, a reward that is only a number is sufficient.
    _, _, report = check("by_source", "data.val_files=held_out.parquet")
    (problem,) = report["problems"]
    assert problem.startswith(
        "row 2 of data.val_files (data source 'raises') (ground truth): it raised LookupError: no "
    )
    assert len(report["answers"]) == 27


DUMPED = {"input": "user\nwhat is 22 + 22?\nassistant\n", "output": "44", "gts": "44"}


def test_responses_of_a_file_find_their_rows_even_with_half_of_a_surrogate_pair(check):
    uid = verls_uid("ab")
    # If a session has two outputs, the last one is the response.
    lines = [DUMPED | {"uid": f"{uid}_0_1"}, DUMPED | {"uid": f"{uid}_1_0", "output": "a\ud800"}]
    lines.append(DUMPED | {"uid": f"{uid}_0_0", "output": "45"})
    Path("1.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"index": 0, "answer": "2"}])))
    status, shown, report = check("half_a_pair", "--answers", "1.jsonl")
    assert status == 0
    found = [(each["row"], each["group"], each["score"]) for each in report["answers"]]
    assert found == [(0, 0, 1.0), (1, uid, 2.0), (1, uid, 1.0)]
    assert report["answers"][2]["answer"] == "a\ud800"
    assert "note     row 1 (1.jsonl): the tokenizer gives back another text" in shown


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"index": 3, "answer": ""}, "line 2: expected the index of a row of data.train_files, 0 "
         "to 2, found 3"),
        ({"index": True, "answer": ""}, "data.train_files, 0 to 2, found True"),
        ({"index": 0, "text": ""}, "found the keys ['index', 'text']"),
        (DUMPED | {"gts": "45"}, "no row of data.train_files has this line's ground truth and "),
        (DUMPED | {"input": "what is 4 + 40?"}, "no row of data.train_files has this line's "),
        ("text", "line 2: expected one JSON object, found none"),
    ],
)  # fmt: skip
def test_responses_that_cannot_be_used_are_rejected(tmp_path, line, expected):
    question = [{"role": "user", "content": "what is 22 + 22?"}]
    row = {"raw_prompt": question, "reward_model": {"ground_truth": "44"}}
    file = tmp_path / "answers.jsonl"
    file.write_text(f'{{"index": 0, "answer": ""}}\n{json.dumps(line)}\n')
    with pytest.raises(ValueError, match=re.escape(expected)):
        from_file(file, [row] * 3)


@pytest.mark.real
def test_responses_are_sampled_from_a_local_model(check, toolbox, policy):
    options = ["--recipe", "toolbox/gdpo", "--data", str(toolbox / "validation.parquet")]
    # With verl's default, one, it would be unknown whether responses to a prompt differ.
    options += ["--rows", "24", "--model", str(policy), "actor_rollout_ref.rollout.n=1"]
    status, _, report = check(None, *options)
    assert status == 0
    assert [kind["count"] for kind in report["kinds"]] == [24 * 4]
    means = {component["name"]: component["mean"] for component in report["components"]}
    # 55 to 80 % of the policy's formats are correct; the share in 96 responses differs by less than
    # 0.2.
    assert 0.35 < means["format"] < 1.0
    assert report["teaching"]["capacity"]["size"] == 4
    # Responses to one prompt differ, because they are sampled at temperature 1.
    assert len({answer["answer"] for answer in report["answers"][:4]}) > 1


# ---------------------------------------------------------------- a separate process


@pytest.mark.parametrize(
    ("function", "expected", "scored"),
    [
        ("raises", "raised ZeroDivisionError: division by zero (", [2.0, None, 2.0]),
        # The first hang or crash ends the check.
        ("holds_the_interpreter", "did not end within 1 s", [2.0, None]),
        ("exits", "ended its process with status 0", [2.0, None]),
        ("crashes", "ended its process with signal 11, Segm", [2.0, None]),
    ],
)
def test_an_error_a_hang_and_a_crash_are_named_with_their_place(check, function, expected, scored):
    write_answers("22", "", "22")
    seconds = "1" if "1 s" in expected else "60"  # on a busy machine a crash takes time
    status, shown, report = check(function, "--answers", "answers.jsonl", "--timeout", seconds)
    assert status == 1
    (problem,) = [line for line in report["problems"] if "row 0 (answers.jsonl): it " in line]
    assert expected in problem
    above, _, _ = Path("rewards.py").read_text().partition(f"\n{function} = ")
    if function != "exits":  # for `exits` the place of the call is unknown
        assert problem.endswith(f"rewards.py:{above.count(chr(10)) + 2})")
    assert scores(report) == {"answers.jsonl": scored}
    assert ("note     1 responses were not scored" in shown) == (len(scored) == 2)


def test_ctrl_c_ends_the_check_and_the_progress_is_shown(check, monkeypatch):
    monkeypatch.setattr("gdpo_verl.lab.check_reward.worker.PROGRESS_SECONDS", 0.0)
    status, shown, report = check("interrupts")
    assert (status, report) == (130, {})
    assert "calls of the reward function:" in shown


def test_the_child_process_is_not_forked_after_the_command_has_used_a_gpu(check, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    status, _, report = check("good", "--rows", "1")
    assert (status, scores(report)["ground truth"]) == (0, [2.0])


def test_a_killed_command_leaves_no_process(work):
    Path("hangs.py").write_text(
        "import os, pathlib\n"
        "def compute_score(*args, **kwargs):\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    sum(range(10 ** 12))\n"
    )
    command = [sys.executable, "-m", "gdpo_verl.lab.cli", "check-reward", "--function", "hangs.py"]
    process = subprocess.Popen([*command, "--data", "data.parquet", "--timeout", "5000"])
    try:
        wait_for(lambda: Path("pid").exists() and bool(Path("pid").read_text()))
    finally:
        process.kill()
        process.wait()
    worker = int(Path("pid").read_text())
    wait_for(lambda: not session(worker))


def test_an_event_loop_that_the_command_has_used_does_not_block_the_child_process(check):
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # now a thread of the loop waits for work
    loop.run_until_complete(loop.run_in_executor(None, int))
    try:
        assert check("good", "--rows", "1", "--timeout", "60")[0] == 0
    finally:
        asyncio.set_event_loop(None)
        loop.close()
