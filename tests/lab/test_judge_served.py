"""A real model as judge: served by verl during a run, and by vLLM at an address."""

import json
import os
import re
import subprocess
import sys
import urllib.request
from statistics import mean

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_check_reward import check as check
from test_check_reward import work as work
from test_pretrained import smollm2 as smollm2
from waiting import wait_for

from gdpo_verl import advantages_of
from gdpo_verl.cpu.patches import unused_port

pytestmark = [pytest.mark.real, pytest.mark.slow]

QUESTION = "Rate this answer from 1 (bad) to 5 (good). Answer with the number alone. {response}"
JUDGE = "+reward.custom_reward_function.reward_kwargs.judge"
# The reply consists only of the rating, whose first token is the first token of the reply.
CHOICE = {"structured_outputs": {"choice": ["1", "2", "3", "4", "5"]}}


def override(**settings):
    node = {"question": QUESTION, "scale": [1, 2, 3, 4, 5]} | settings
    # Hydra needs keys without quotation marks
    keys_bare = re.sub(r'"(\w+)": ', r"\1: ", json.dumps(node))
    return f"{JUDGE}={keys_bare}"


def served_by_verl(model):
    """Return the overrides with which verl serves a model as its reward model."""
    settings = (
        "reward.reward_model.enable=true reward.reward_model.enable_resource_pool=true "
        f"reward.reward_model.model_path={model} reward.reward_model.rollout.max_model_len=512 "
        "ray_kwargs.ray_init.num_gpus=2"
    )
    return settings.split()


def test_a_model_that_verl_serves_judges_the_responses_of_a_run(train, smollm2, tmp_path):
    validated = ["trainer.val_before_train=true", f"trainer.validation_data_dir={tmp_path}"]
    run = train("toolbox/gdpo", override(), *served_by_verl(smollm2), *validated)
    assert sorted(run.metrics()) == [0, 1, 2]
    for step in (1, 2):
        rows, metrics = run.rollouts(step), run.metrics()[step]
        values = [row["judge"] for row in rows]
        # the ratings are expected values, not only five numbers
        assert len({*values}) > len(rows) / 2
        assert 0 < min(values) < max(values) < 1
        assert metrics["rewards/judge/mean"] == pytest.approx(mean(values), abs=1e-6)
        assert metrics["gdpo/judge/unscored"] == 0
        assert metrics["gdpo/judge/advantage_share"] > 0
    held_out = (tmp_path / "0.jsonl").read_text().splitlines()
    for row in map(json.loads, held_out):
        assert json.loads(row["judge_said"])["rating"] in (1, 2, 3, 4, 5)
        assert row["judge_error"] == ""


CRITERIA = [
    "It names a function.",
    "It gives an argument.",
    "It is short.",
    "It is polite.",
    "It apologizes.",
]
GRADED = (
    f'{JUDGE}={{rubric:rubric,question:"Which of these hold for the response? Reply in JSON.'
    r'\n{criteria}\nResponse: {response}"}'
)


def with_rubric(toolbox, out):
    """Write the rows of the task, each with the same five criteria; the last is a pitfall."""
    rows = pq.read_table(toolbox / "train.parquet").to_pylist()
    for row in rows:
        row["extra_info"]["rubric"] = [
            {"name": f"criterion {place}", "criterion": text, "weight": 1.0 if place < 5 else -1.0}
            for place, text in enumerate(CRITERIA, start=1)
        ]
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out


def test_a_model_that_verl_serves_grades_five_criteria_in_one_request(
    train, smollm2, toolbox, tmp_path
):
    data = with_rubric(toolbox, tmp_path / "rubric.parquet")
    files = [f"data.train_files={data}", f"data.val_files={data}"]
    validated = ["trainer.val_before_train=true", f"trainer.validation_data_dir={tmp_path}"]
    run = train("toolbox/gdpo", GRADED, *files, *validated, *served_by_verl(smollm2))
    for line in (tmp_path / "0.jsonl").read_text().splitlines():
        row = json.loads(line)
        # One reply of the model contains the verdicts on all five criteria.
        verdicts = json.loads(row["judge_said"])
        assert [*verdicts] == ["1", "2", "3", "4", "5"]
        values = [float(verdict) for verdict in verdicts.values()]
        graded = json.loads(row["judge_by_criterion"])
        assert graded == {
            "criterion 1": values[0],
            "criterion 2": values[1],
            "criterion 3": values[2],
            "criterion 4": values[3],
            "criterion 5": {"value": values[4], "weight": -1.0},
        }
        assert row["judge"] == pytest.approx((sum(values[:4]) - values[4]) / 4)
    for step in (1, 2):
        rows, metrics = run.rollouts(step), run.metrics()[step]
        assert metrics["gdpo/judge/unscored"] == 0
        rewards = []
        for row in rows:
            numbers = {key: row[key] for key in ("format", "correctness")}
            rewards.append(numbers | {"judge": row["judge_by_criterion"]})
        groups = [row["uid"].split("_")[0] for row in rows]
        tokens = [row["response_tokens"] for row in rows]
        expected = advantages_of(rewards, groups, tokens)
        assert [row["gdpo_advantage"] for row in rows] == pytest.approx(expected, abs=1e-6)


@pytest.fixture
def served(smollm2, tmp_path):
    """Serve the model at an address with vLLM's own command, in float32."""
    port = unused_port()
    # `vllm serve` reads the version of the distribution `vllm`; that of the CPU build has another
    # name.
    options = (
        f"-m vllm.entrypoints.openai.api_server --model {smollm2} --port {port} --dtype float32 "
        "--enforce-eager --max-model-len 1024 --served-model-name small"
    )
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    command = [sys.executable, *options.split()]
    log = tmp_path / "serve.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | variables)

    def answers():
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    try:
        wait_for(answers)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


def expected_value(model, tokenizer, question):
    """Return the expected value of the next token, a number from 1 to 5, by Transformers."""
    import torch

    turn = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(
        turn, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        logits = model(**prompt).logits[0, -1]
    digits = [tokenizer.convert_tokens_to_ids(str(digit)) for digit in range(1, 6)]
    shares = logits[digits].double().softmax(0)
    return float(shares @ torch.arange(5, dtype=torch.float64) / 4)


def test_check_reward_asks_vllm_at_an_address(check, served, smollm2):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    judge = override(url=served, model="small", request=CHOICE)
    _, output, report = check("good", "reward.reward_manager.name=gdpo_components", judge)
    assert "scored twice" not in output
    model = AutoModelForCausalLM.from_pretrained(smollm2, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert len(report["answers"]) > 20
    for each in report["answers"]:
        question = QUESTION.replace("{response}", each["answer"])
        expected = expected_value(model, tokenizer, question)
        assert each["returned"]["judge"] == pytest.approx(expected, abs=1e-3), each
