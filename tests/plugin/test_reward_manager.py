"""The reward manager, built by verl's loader, on rows like those of the agent loop."""

import copy
import json

import numpy as np
import pytest
import torch
from fake_verl import compose, word_tokenizer

REWARDS = """
import asyncio
from gdpo_verl.rewards import Component, declares

def judge(solution_str, ground_truth, extra_info):
    return {
        "score": 99.0,
        "right": float(solution_str == ground_truth),
        "tokens": float(extra_info["response_length"]),
        "text": solution_str,
        "index": extra_info["index"],
    }

judged = declares(Component("right", 0, 1), "tokens")

@judged
def plain(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return judge(solution_str, ground_truth, extra_info)

@judged
async def asynchronous(**kwargs):
    await asyncio.sleep(0)
    result = plain(**kwargs)
    del result["score"]
    return result

@judged
def nested(**kwargs):
    result = plain(**kwargs)
    components = {key: result.pop(key) for key in ("right", "tokens")}
    return {**result, "reward_components": components}

@declares("right", by_criterion=("rubric",))
def rubric(solution_str, **kwargs):
    rude = {"value": 1, "weight": -1}
    return {"right": 0.5, "rubric": {"short": "word" not in solution_str, "cites": 0, "rude": rude}}

@declares("right")
def other_keys(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    if ground_truth == "no dict":
        return None
    if ground_truth == "nothing":
        return {}
    return {"score": 0.25, "acc": 1.0} if ground_truth == "held out" else {"right": 1.5}

@declares("url", "memory", "at_once")
def sandboxed(
    data_source, solution_str, ground_truth, extra_info=None, *,
    sandbox_fusion_url=None, memory_limit_mb=1, concurrent_semaphore=None,
):
    return {
        "score": 0.0,
        "url": float(sandbox_fusion_url == "http://a.service/run"),
        "memory": memory_limit_mb,
        "at_once": concurrent_semaphore._initial_value if concurrent_semaphore else 0,
    }
"""


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers.decoders import Fuse

    words = ["<pad>", "<eos>", "<unk>", "\\boxed{", "}", "3", "4", "word"]
    return word_tokenizer(*words, decoder=Fuse())


@pytest.fixture
def manager(tmp_path, tokenizer):
    from verl.trainer.ppo.reward import load_reward_manager

    (tmp_path / "rewards.py").write_text(REWARDS)

    def build(*overrides, function=None):
        if function:
            overrides += (
                f"reward.custom_reward_function.path={tmp_path / 'rewards.py'}",
                f"reward.custom_reward_function.name={function}",
            )
        return load_reward_manager(compose("toolbox/gdpo", *overrides), tokenizer)

    return build


def session(*outputs, ground_truth):
    """Return the (prompt, response) outputs of a session, padded as by `AgentLoopWorker`."""
    from verl import DataProto

    truth = {"reward_model": {"ground_truth": ground_truth}, "extra_info": {"index": 7}}
    columns = {"data_source": "mine", "__num_turns__": 2, **truth}
    arrays = {key: np.array([value] * len(outputs), object) for key, value in columns.items()}
    arrays["response_len"] = np.array([len(response) for _, response in outputs])
    tensors = {
        "prompts": [torch.tensor(prompt) for prompt, _ in outputs],
        "responses": [torch.tensor(response) for _, response in outputs],
        "attention_mask": [torch.ones(len(a) + len(b), dtype=torch.int64) for a, b in outputs],
    }
    pad = torch.nn.utils.rnn.pad_sequence
    padded = {name: pad(rows, batch_first=True) for name, rows in tensors.items()}
    return DataProto.from_dict(tensors=padded, non_tensors=arrays)


def score(manager, data):
    return manager.loop.run_until_complete(manager.run_single(data))


ONE = [([7], [3, 5, 4, 1])]  # "\boxed{3}" and the end token are four tokens
# The last output has a longer prompt and a shorter response: 4 + 3 instead of 2 + 5 tokens.
TWO = [([7, 7], [7, 7, 7, 7, 1]), ([7, 7, 7, 7], [3, 5, 4])]


@pytest.mark.parametrize("function", ["plain", "asynchronous", "nested"])
def test_sync_and_async_rewards_with_a_score_or_none_are_scored_alike(manager, function):
    built = manager("+algorithm.gdpo_reward_weights={right: 2.0}", function=function)
    assert [component.name for component in built.declared] == ["right", "tokens"]
    # The score is 2 · 1 + 1 · 4 instead of the function's own 99.
    result = score(built, session(*ONE, ground_truth="\\boxed{3}"))
    assert result["reward_score"] == 6.0
    assert result["reward_extra_info"] == {
        "score": 6.0,
        "right": 1.0,
        "tokens": 4.0,
        "text": "\\boxed{3}",
        "index": 7,
    }


def test_a_rubric_is_stored_as_text_in_addition_to_its_number(manager):
    built = manager("+algorithm.gdpo_reward_weights={rubric: 2.0}", function="rubric")
    found = score(built, session(*TWO, ground_truth="3"))
    assert found["reward_score"] == 0.5 + 2 * (1 + 0 - 1) / 2
    info = found["reward_extra_info"]
    assert info["rubric"] == 0.0
    mapping = {"short": 1.0, "cites": 0.0, "rude": {"value": 1.0, "weight": -1.0}}
    assert json.loads(info["rubric_by_criterion"]) == mapping


def test_the_conditions_of_the_estimator_enter_the_score(manager):
    condition = "+algorithm.gdpo.conditions={tokens: {on: right, at_least: 1.0}}"
    built = manager(condition, function="plain")
    assert score(built, session(*ONE, ground_truth="\\boxed{3}"))["reward_score"] == 5.0
    assert score(built, session(*ONE, ground_truth="\\boxed{4}"))["reward_score"] == 0.0


def test_the_length_and_the_text_are_those_of_the_last_output(manager):
    data = session(*TWO, ground_truth="\\boxed{3}")
    info = score(manager(function="plain"), data)["reward_extra_info"]
    assert (info["text"], info["tokens"], info["right"]) == ("\\boxed{3}", 3.0, 1.0)
    assert data.batch["responses"].shape == (2, 5)
    assert "response_length" not in data.non_tensor_batch["extra_info"][-1]


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [
        # The prompt opens the thought.
        ("2 + 2?<think>\n", "<think>\nhm</think>4"),
        # The prompt opens and closes the thought.
        ("2 + 2?<think>\n\n</think>\n", "hm</think>4"),
        # The question contains the tag.
        ("Write <think> first. 2 + 2?", "hm</think>4"),
    ],
)
def test_a_thought_that_the_prompt_opens_is_part_of_the_response_text(manager, prompt, seen):
    from gdpo_verl.lab.check_reward.tokens import byte_tokenizer

    built = manager(function="plain")
    built.tokenizer = byte_tokenizer()
    encode = built.tokenizer.encode
    outputs = [(encode(text), encode("hm</think>4")) for text in ("?" * 99, prompt)]
    data = session(*outputs, ground_truth="")
    data.non_tensor_batch["prompt_len"] = np.array([len(given) for given, _ in outputs])
    info = score(built, data)["reward_extra_info"]
    # The opening tag belongs to the prompt, and does not count in the response's length.
    assert (info["text"], info["tokens"]) == (seen, 11.0)


def test_verls_own_manager_still_reads_the_padding_of_a_shorter_last_output(manager, tokenizer):
    # When this fails, `_trim_response` is no longer needed.
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager

    ours = manager(function="plain")
    seen = []

    def look(solution_str, **kwargs):
        seen.append(solution_str)
        return 0.0

    theirs = NaiveRewardManager(ours.config, tokenizer, look)
    score(theirs, session(*TWO, ground_truth=""))
    assert seen == ["\\boxed{3}<pad><pad>"]


SERVICE = [
    "reward.sandbox_fusion.url=http://a.service/run",
    "reward.sandbox_fusion.memory_limit_mb=512",
    "reward.sandbox_fusion.max_concurrent=3",
]
OWN = "+reward.custom_reward_function.reward_kwargs.memory_limit_mb=64"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [([], (0.0, 1, 0)), (SERVICE, (1.0, 512, 3)), ([*SERVICE, OWN], (1.0, 64, 3))],
)
def test_a_reward_that_runs_code_gets_the_sandbox_service(manager, settings, expected):
    info = score(manager(*settings, function="sandboxed"), session(*ONE, ground_truth=""))
    found = info["reward_extra_info"]
    assert (found["url"], found["memory"], found["at_once"]) == expected


def test_a_row_without_the_components_keeps_the_score_of_the_function(manager, caplog):
    # verl does not tell a manager that a row belongs to a validation, whose data may have other
    # rewards.
    built = manager(function="other_keys")
    for _ in range(2):
        result = score(built, session(*ONE, ground_truth="held out"))
        info = {"score": 0.25, "acc": 1.0}
        assert result == {"reward_score": 0.25, "reward_extra_info": info}
    assert score(built, session(*ONE, ground_truth="3"))["reward_score"] == 1.5
    (message,) = caplog.messages
    assert "the reward returned no 'right' for row of data source 'mine'" in message
    with pytest.raises(ValueError, match="the reward returned no 'right' for row of data source"):
        score(built, session(*ONE, ground_truth="nothing"))
    expected = "row of data source 'mine': expected compute_score to return a dict .*, found None"
    no_dict = session(*ONE, ground_truth="no dict")
    no_dict.non_tensor_batch["data_source"] = np.array(["mine"])  # an array of NumPy's text type
    with pytest.raises(ValueError, match=expected + r"\. .* use `gdpo-verl check-reward`"):
        score(built, no_dict)


def test_verls_reward_of_tool_calls_gets_the_experiment_name_as_from_verls_own_manager(manager):
    keys = "+algorithm.gdpo_reward_keys=[format_reward,accuracy_reward]"
    path = "reward.custom_reward_function.path=pkg://verl.utils.reward_score.rlla"
    data = session(*ONE, ground_truth="<think> a </think> <response> b </response>")
    found = []
    for name in ("gdpo", "gdpo_components"):
        built = manager(
            path, keys, "trainer.experiment_name=qwen", f"reward.reward_manager.name={name}"
        )
        found.append(score(built, copy.deepcopy(data)))
    assert found[0] == found[1]
    assert found[0]["reward_extra_info"].keys() == {"score", "format_reward", "accuracy_reward"}
