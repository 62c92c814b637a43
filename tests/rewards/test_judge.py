"""The judge as a component: its server at its worst, its settings, in a training."""

import asyncio
import contextlib
import json
import threading
import time

import pytest
from fake_verl import compose, word_tokenizer
from omegaconf import OmegaConf
from servers import Handler, serving
from test_judge_text import FIVE, answer

from gdpo_verl.config.components import Component
from gdpo_verl.plugin.checks.reward import single_row_batch
from gdpo_verl.plugin.checks.reward_function import declared_reward, unnamed_arguments
from gdpo_verl.plugin.checks.validation import objective_of
from gdpo_verl.rewards import judge as module
from gdpo_verl.rewards.judge import Judge

ASK = {"question": "Is {response} right? 1 to 5.", "scale": FIVE}


# ---------------------------------------------------------------- its server


def reply(choice):
    return json.dumps({"choices": [choice]})


GOOD = reply(answer("4", {"4": 0.6, "5": 0.4}))


class Server(Handler):
    """A judge that behaves as its model's name says, and writes down what it was asked."""

    at_once, sent = 0, 0
    lock = threading.Lock()

    def do_POST(self):
        body = self.request_body()
        with self.lock:
            Server.asked.append(body | {"path": self.path, "key": self.headers["Authorization"]})
            Server.at_once += 1
            Server.most_at_once = max(Server.most_at_once, Server.at_once)
        model = body["model"]
        if model == "endless":
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.end_headers()
                while True:
                    self.wfile.write(b" " * 2**20)
                    Server.sent += 2**20
        if model == "measured":
            time.sleep(0.1)
        failing = len(Server.asked) <= 2 if model == "recovers" else model == "fails"
        # As some gateways do, it repeats what it was sent.
        text = f"out of memory, {self.headers}" if failing else Server.text
        status = 500 if failing else 200
        if model == "plain" and "response_format" in body:
            status, text = 400, "unknown field response_format"
        with self.lock:
            Server.at_once -= 1
        with contextlib.suppress(OSError):  # nobody waits for it any more
            if model == "drips":
                self.drip()
            self.answer(text, status)

    def drip(self):
        """Keep the connection alive and never answer, as gateways do."""
        self.send_response(200)
        self.end_headers()
        while True:
            time.sleep(0.05)
            self.wfile.write(b"\n")


@pytest.fixture
def url(monkeypatch):
    monkeypatch.setattr(module, "BACKOFF", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    Server.asked, Server.most_at_once, Server.text = [], 0, GOOD
    with serving(Server) as address:
        yield f"{address}/v1"


def ask(times=1, **settings):
    judge = Judge.read(ASK | settings)

    async def all_at_once():
        texts = {"prompt": "2 + 2?", "response": "four {prompt}", "ground_truth": "4"}
        return await asyncio.gather(*(judge.ask(**texts) for _ in range(times)))

    return asyncio.run(all_at_once())


REPLIES = {
    "nothing": (reply(answer(None)), None, "", "'3', '4', '5'], found ''"),
    "long": (reply(answer("[" * 100_000)), None, "[" * 100_000, "expected one of"),
    "half a pair": (reply(answer("\ud800\nRating: 4")), 0.75, "\\ud800\nRating: 4", ""),
    "no JSON": ("<html>busy</html>", None, None, "HTTP 200 from"),
    "no choice": ('{"choices": []}', None, None, "HTTP 200 from"),
    "null": ("null", None, None, "HTTP 200 from"),
    "nested without end": ("[" * 100_000, None, None, "HTTP 200 from"),
    "a number": ('{"choices": [{"message": {"content": 4}}]}', None, None, "HTTP 200 from"),
}


@pytest.mark.parametrize(("text", "value", "said", "error"), REPLIES.values(), ids=REPLIES)
def test_a_reply_of_any_shape_is_a_value_or_an_error(url, text, value, said, error):
    Server.text = text
    (found,) = ask(url=url, model="any", name="helpful", repeats=0)
    assert found["helpful"] == (None if value is None else pytest.approx(value))
    assert found["helpful_said"] == said
    assert error in found["helpful_error"]
    assert bool(found["helpful_error"]) == (value is None)
    assert len(found["helpful_error"]) < 400


@pytest.mark.parametrize(
    ("settings", "error", "requests"),
    [
        ({"model": "recovers"}, "", 3),  # 0.85 = 0.6 · 0.75 + 0.4 · 1
        ({"model": "fails"}, "HTTP 500 from http://127.0.0.1:", 3),
        ({"model": "plain"}, "set request.response_format of the judge to null", 1),
        ({"model": "plain", "request": {"response_format": None}}, "", 1),
        ({"model": "endless", "repeats": 0}, "HTTP 200 from http://127.0.0.1:", 1),
        ({"model": "drips", "seconds": 0.5, "repeats": 1}, "within 0.5 s: TimeoutE", 2),
    ],
    ids=str,
)
def test_a_server_at_its_worst_costs_a_value_and_no_more(url, settings, error, requests):
    (found,) = ask(url=url, **settings)
    assert found["judge"] == (None if error else pytest.approx(0.85))
    assert error in found["judge_error"]
    assert len(Server.asked) == requests
    assert Server.sent < 2**26


@pytest.mark.parametrize("model", ["fails", "plain", "m"])
@pytest.mark.parametrize("host", ["", "a.host:no", "127.0.0.1:9"])
def test_no_error_repeats_a_secret(url, monkeypatch, host, model):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    address = host or url.removeprefix("http://").removesuffix("/v1")
    Server.text = "secret-key" if model == "m" else GOOD
    secret = f"http://me:secret@pass@{address}/v1?key=secret"
    (found,) = ask(url=secret, model=model, repeats=0)
    assert found["judge"] is None
    assert address in found["judge_error"]
    assert "secret" not in found["judge_error"]
    assert "secret" not in repr(Judge.read(ASK | {"url": secret, "model": "m"}))


def test_what_is_asked(url, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "mine")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # in the cluster there is none
    question = 'Of {prompt} is {response}, as {ground_truth} and {"json": 1} {other} are? \ud800'
    extra = {"max_tokens": 512, "top_logprobs": None, "chat_template_kwargs": {"a": False}}
    scale = [0, 0.5, "all"]
    ask(url=url, model="good", question=question, request=extra, scale=scale)
    (asked,) = Server.asked
    # What a response says in braces stays as it is.
    text = r'Of 2 + 2? is four {prompt}, as 4 and {"json": 1} {other} are? \ud800'
    rating = {"type": ["number", "string"], "enum": scale}
    schema = {
        "type": "object",
        "properties": {"rating": rating},
        "required": ["rating"],
        "additionalProperties": False,
    }
    assert asked == {
        "path": "/v1/chat/completions",
        "key": "Bearer mine",
        "model": "good",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 512,
        "logprobs": True,
        "chat_template_kwargs": {"a": False},
        # The form of OpenAI, which vLLM takes, too.
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "rating", "strict": True, "schema": schema},
        },
    }


def test_a_request_may_ask_for_another_structured_output(url):
    own = {"regex": "[1-5]"}
    ask(url=url, model="good", request={"structured_outputs": own})
    (asked,) = Server.asked
    assert "response_format" not in asked
    assert asked["structured_outputs"] == own


def test_so_many_requests_are_in_flight_and_waiting_costs_no_deadline(url):
    found = ask(36, url=url, model="measured", requests=3, seconds=1)
    assert [each["judge_error"] for each in found] == [""] * 36
    assert (len(Server.asked), Server.most_at_once) == (36, 3)


# ---------------------------------------------------------------- with a rubric

RUBRIC = [
    {"name": "cites", "criterion": "It cites\na source.", "weight": 5},
    {"name": "rude", "criterion": "It is rude.", "weight": -2.0},
    {"name": "short", "criterion": "It is short."},
]
GRADES = {"question": "{prompt}\n{response}\n{criteria}", "rubric": "rubric", "scale": None}


def grade(**settings):
    judge = Judge.read(GRADES | {"model": "good", "repeats": 0} | settings)
    texts = {"prompt": "2 + 2?", "response": "four", "ground_truth": "4"}
    return asyncio.run(judge.ask(criteria=RUBRIC, **texts))


def verdicts(*values):
    graded = {}
    for each, value in zip(RUBRIC, values, strict=True):
        graded[each["name"]] = {"value": value, "weight": each.get("weight", 1)}
    return graded


def test_one_request_asks_for_a_verdict_on_each_criterion(url):
    Server.text = reply(answer('{"1": true, "2": false, "3": true}'))
    assert grade(url=url)["judge"] == verdicts(1, 0, 1)
    (asked,) = Server.asked
    text = "2 + 2?\nfour\n1. It cites a source.\n2. It is rude.\n3. It is short."
    assert asked["messages"] == [{"role": "user", "content": text}]
    schema = asked["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {key: {"type": "boolean"} for key in "123"}
    assert schema["required"] == ["1", "2", "3"]
    assert asked["max_tokens"] == 40
    assert "logprobs" not in asked


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('<think>{"1": true}</think>```json\n{"1": false, "2": true, "3": false}```', (0, 1, 0)),
        ('{"1": true, "2": tru', (1, None, None)),
        ('{"1": true, "2": true, "2": false, "4": true}', (1, None, None)),
        ("1: yes\n 2) No.\n3. certainly", (1, 0, None)),
        ("It meets all of them.", None),
        ('{"cites": true}', None),
    ],
)
def test_a_criterion_without_a_verdict_is_not_scored(url, text, values):
    Server.text = reply(answer(text))
    found = grade(url=url)
    assert found["judge"] == (None if values is None else verdicts(*values))
    assert ("expected verdicts" in found["judge_error"]) == (values is None)


@pytest.mark.parametrize("rubric", [None, [], "cites", [{"name": "a"}], [*RUBRIC, RUBRIC[0]]])
def test_a_row_without_criteria_asks_nothing_and_says_so(url, rubric):
    judge = Judge.read(GRADES | {"url": url, "model": "good"})
    found = asyncio.run(judge.ask(criteria=rubric, response="four"))
    assert (found["judge"], found["judge_said"]) == (None, None)
    assert found["judge_error"].startswith("extra_info['rubric']: expected a list of {name,")
    assert not Server.asked


# ---------------------------------------------------------------- its settings


REWARDS = """
from gdpo_verl.rewards import Component, declares

@declares(Component("short", 0, 1))
def one(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    assert kwargs.keys() <= {"reward_router_address", "reward_model_tokenizer"}, kwargs
    return {"short": float(len(solution_str) < 9)}

@declares("judge")
def two(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"judge": 1.0}

def undeclared(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return {"score": 1.0, "short": 1.0, "judge": 1.0}

@declares("short")
def own(data_source, solution_str, ground_truth, extra_info=None, judge=None):
    return {"short": float(len(judge["question"]))}
"""
KEY = "reward.custom_reward_function.reward_kwargs.judge"


SERVED = {"reward_model": {"enable": True}}
NAIVE = {"reward_manager": {"name": "naive"}}


@pytest.fixture(scope="module")
def recipe():
    composed = compose("toolbox/gdpo")
    OmegaConf.set_struct(composed, False)
    return composed


@pytest.fixture
def configured(tmp_path, recipe):
    """The recipe with one of the functions above, changed keys, and the judge's settings."""
    (tmp_path / "rewards.py").write_text(REWARDS)

    def build(function="one", *, reward=None, algorithm=None, **judge):
        settings = ASK | {"url": "http://a.host/v1", "model": "m"} | judge
        own = {
            "path": str(tmp_path / "rewards.py"),
            "name": function,
            "reward_kwargs": {"judge": settings},
        }
        changes = {"custom_reward_function": own} | (reward or {})
        return OmegaConf.merge(recipe, {"reward": changes, "algorithm": algorithm or {}})

    return build


def test_a_judge_is_declared_beside_the_functions_components(configured):
    config = configured(name="helpful", most_failed=0.25)
    declared = declared_reward(config)
    assert declared == (Component("short", 0, 1), Component("helpful", 0, 1, most_unscored=0.25))
    assert unnamed_arguments(config) == []
    named = configured("undeclared", algorithm={"gdpo_reward_keys": ["short", "judge"]})
    assert declared_reward(named) == (Component("judge", 0, 1, most_unscored=0.1),)


def test_an_argument_of_that_name_is_the_functions_own(configured):
    config = configured("own", reward=NAIVE, scale="anything")
    assert declared_reward(config) == (Component("short"),)
    assert unnamed_arguments(config) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": "Is it?"}, r"\.question: expected a text with {response}"),
        ({"scale": [3]}, r"\.scale: .*, found \[3\]"),
        ({"scale": ["No", "no"]}, r"\.scale: "),
        ({"scale": [False, True]}, r"\.scale: "),
        ({"scale": ["good", "*"]}, r"\.scale: "),
        (
            {"url": "ftp://me:secret@a.host"},
            r"\.url: expected http://HOST:PORT/v1, found 'a\.host'$",
        ),
        ({"model": None}, r"\.model: expected a name with url, none without"),
        ({"url": None, "model": None}, r"\.url: not set, and verl serves no model"),
        (
            {"url": None, "model": None, "reward": SERVED},
            r"\.url: .*enable_resource_pool to",
        ),
        ({"rubric": "rubric"}, r"\.scale: expected none where \.rubric is set, found \[1,"),
        ({"rubric": "a", "scale": None}, r"\.question: expected a text with .* and {criteria}"),
        ({"secods": 3}, r"\.secods: unknown key; .*Did you mean 'seconds'\?"),
        ({"seconds": 0}, r"\.seconds: expected a number from 0.001 to .*, found 0"),
        ({"repeats": "2"}, r"\.repeats: expected a number from 0 to 16, found '2'"),
        ({"request": ["a"]}, r"\.request: expected a mapping"),
        ({"name": "score"}, r"\.name: 'score' cannot be the name of a component"),
        ({"function": "two"}, r"\.name: expected distinct names of components"),
        ({"function": "undeclared"}, r": the reward function declares no components in addition"),
        ({"reward": NAIVE}, r": .*=naive asks no judge\. Set it to gdpo"),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(configured, changes, message):
    with pytest.raises(ValueError, match=rf"^{KEY.replace('.', '[.]')}{message}"):
        declared_reward(configured(**changes))


# ---------------------------------------------------------------- in verl's reward manager


def scored(config, extra_info=None, **options):
    """Score one row with our manager, loaded by verl."""
    from verl.trainer.ppo.reward import load_reward_manager

    tokenizer = word_tokenizer("<pad>", "<eos>", "<unk>", "right", "wrong")
    manager = load_reward_manager(config, tokenizer, **options)
    row = {
        "data_source": "mine",
        "reward_model": {"ground_truth": "42"},
        "raw_prompt": [{"role": "user", "content": "6 times 7?"}],
        "extra_info": extra_info or {},
    }
    data = single_row_batch([2], [3, 1], row)
    result = manager.loop.run_until_complete(manager.run_single(data))
    assert result["reward_score"] == result["reward_extra_info"]["score"]
    return dict(result["reward_extra_info"])


def test_the_manager_asks_and_adds_the_component(configured, url):
    question = "{prompt} {ground_truth}: {response}?"
    weights = {"gdpo_reward_weights": {"judge": 2.0}}
    settings = {"url": url, "model": "good", "question": question}
    info = scored(configured(algorithm=weights, **settings))
    assert info.pop("judge") == pytest.approx(0.85)
    assert info.pop("score") == pytest.approx(1.0 + 2 * 0.85)
    assert info == {"short": 1.0, "judge_said": "4", "judge_error": ""}
    assert Server.asked[0]["messages"][0]["content"] == "6 times 7? 42: right?"


def test_the_manager_has_the_rubric_of_the_row_graded(configured, url):
    Server.text = reply(answer('{"1": true, "2": true}'))
    config = configured(url=url, model="good", **GRADES)
    assert declared_reward(config)[1] == Component("judge", by_criterion=True, most_unscored=0.1)
    info = scored(config, {"rubric": RUBRIC})
    assert info["judge"] == (5 - 2) / 5
    assert info["score"] == 1.0 + 3 / 5


def test_the_manager_asks_the_model_that_verl_serves(configured, url):
    served = {"enable": True, "enable_resource_pool": True, "model_path": "served"}
    config = configured(reward={"reward_model": served}, url=None, model=None)
    address = url.removeprefix("http://").removesuffix("/v1")
    info = scored(config, reward_router_address=address, reward_model_tokenizer=None)
    assert info["judge"] == pytest.approx(0.85)
    assert Server.asked[0]["model"] == "served"


def test_a_failing_judge_is_not_scored_and_warned_of_once(configured, url, caplog):
    Server.text = reply(answer("As a model I like all answers."))
    info = scored(configured(url=url, model="m"))
    assert (info["judge"], info["short"], info["score"]) == (None, 1.0, 1.0)
    (message,) = caplog.messages
    assert message.startswith(f"{KEY}: a response is not scored, others are counted in gdpo/judge")
    assert message.endswith("found 'As a model I like all answers.'")


def test_a_value_that_the_function_returns_is_not_replaced(configured, url):
    keys = {"gdpo_reward_keys": ["short", "judge"]}
    with pytest.raises(ValueError, match=r"judge\.name: the reward function returns {'judge'}"):
        scored(configured("undeclared", algorithm=keys, url=url, model="good"))


# ---------------------------------------------------------------- in the training


def test_a_judge_out_of_reach_ends_the_run_before_its_first_rollout(configured):
    config, row = configured(), {"score": 1.0, "short": 1.0, "judge": None}
    silent = row | {"judge_said": None, "judge_error": "no answer from http://a.host/v1"}
    with pytest.raises(ValueError, match=rf"^{KEY}: row 0: no answer from http://a.host/v1$"):
        objective_of(config, {"0": silent})
    # To an empty answer a judge may say anything.
    astonished = row | {"judge_said": "There is none.", "judge_error": "expected one of …"}
    found = objective_of(config, {"0": astonished})
    assert found is not None
    assert found.most_unscored == {"judge": 0.1}
