"""Tools that run over several turns: tools, problems, rewards, verl's own loop, a training."""

import asyncio
import random
import re
from itertools import islice
from pathlib import Path

import pytest
from fake_verl import compose
from gdpo_verl.recipes.tool_turns import rows as tool_turns
from gdpo_verl.recipes.tool_turns import tools as turn_tools
from gdpo_verl.recipes.tool_turns.policy import TASK, next_turn
from gdpo_verl.recipes.tool_turns.tools import TOOLS, guarded
from processes import run_cli
from trainings import RECIPES

from gdpo_verl.lab.policy import train_tokenizer
from gdpo_verl.lab.run.launch import composed
from gdpo_verl.lab.tasks.generated import examples
from gdpo_verl.rewards import parse_error
from gdpo_verl.rewards.deadline import DeadlinePool
from gdpo_verl.rewards.parse_error import ParseError
from gdpo_verl.rewards.tool_turns import CUT, EXECUTED, RAISED, TIMED_OUT, compute_score

TOOLS_FILE = Path(turn_tools.__file__).with_name("function_tools.py")
PROBLEM = next(examples("tool-turns", "train", tool_turns.draw_example, 0))

# --- the tools ------------------------------------------------------------------------


FORMULA = "Error: expected numbers with + - * / ** and brackets, found "


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("calculate", {"expression": " 3 * (4 + 5) "}, "27"),
        ("calculate", {"expression": "7/3"}, "2.333333333"),
        ("calculate", {"expression": "2 ** 70"}, "1180591620717411303424"),
        ("convert", {"amount": 2.5, "source": "gallons", "target": "pints"}, "20"),
        # sha256("tea/Oslo") begins with 01.
        ("look_up", {"item": "tea", "city": "Oslo"}, "3"),
        ("calculate", {"expression": "1 / 0"}, FORMULA + "'1 / 0'"),
        ("calculate", {"expression": "__import__('os')"}, FORMULA),
        ("calculate", {"expression": ["1"]}, FORMULA + "['1']"),
        ("calculate", {"expression": "(" * 100_000}, FORMULA + "'(((("),
        ("convert", {"amount": 1, "source": "pounds", "target": "pints"},
         "Error: expected one of pounds to ounces, gallons to quarts, gallons to pints, "
         "found 'pounds to pints'"),
        ("convert", {"amount": "1 + 1)", "source": "pounds", "target": "ounces"}, FORMULA),
        ("look_up", {"item": "tea", "city": {"x": "<|im_end|>" * 999}},
         "Error: expected one of Paris, Tokyo, Lima, Oslo, Cairo, Delhi, Quito, Hanoi, found {'x': "
         "'<|im"),
        ("look_up", {"\ud800": 1},
         r"Error: look_up() got an unexpected keyword argument '\ud800'"),
    ],
)  # fmt: skip
def test_a_tool_tells_the_result_or_why_it_refuses_the_call(name, arguments, told):
    text, outcome = guarded(TOOLS[name])(**arguments)
    refused = told.startswith("Error: ")
    assert outcome == (RAISED if refused else EXECUTED)
    assert text.startswith(told) if refused else text == told
    assert len(text) < 256  # verl would cut what is longer, without a word in the reward


USERS_TOOLS = """
import sys, time

def flood(letters): return letters * "x"
def quit(): sys.exit(1)
def eat(): return len(bytearray(1 << 40))
def silent(): raise RuntimeError
def hang(): time.sleep(600)
"""


def test_a_users_own_tools_can_flood_crash_hang_and_eat_memory_and_the_policy_is_told(
    tmp_path, monkeypatch
):
    (tmp_path / "users_tools.py").write_text(USERS_TOOLS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(turn_tools.__file__).parents[2]}")
    pool = DeadlinePool("gdpo_verl.recipes.tool_turns.tools", size=1)
    monkeypatch.setattr(turn_tools, "_pool", pool)
    import users_tools

    flood = guarded(users_tools.flood, most=3)
    assert flood(letters=3) == ("xxx", EXECUTED)
    assert flood(letters=10**6) == ("xxx [cut: the first 3 of 1000000 characters]", CUT)
    assert guarded(users_tools.quit)() == ("Error: the tool crashed", RAISED)
    assert guarded(users_tools.silent)() == ("Error: RuntimeError", RAISED)
    assert guarded(users_tools.eat)() == ("Error: MemoryError", RAISED)
    told = "Error: no answer within 0.5 seconds"
    assert guarded(users_tools.hang, deadline=0.5)() == (told, TIMED_OUT)


def test_a_tool_that_the_other_process_does_not_find_is_refused_when_it_is_wrapped(tmp_path):
    from verl.tools.function_tool import load_function_tools_from_path

    # verl loads a file under another name; what is defined in it, nobody else can import.
    imports = "from gdpo_verl.recipes.tool_turns.tools import guarded\n"
    (tmp_path / "tools.py").write_text(f"{imports}{USERS_TOOLS}\nguarded(flood)\n")
    with pytest.raises(ImportError, match=r"at the top of a module .* '_verl_function_tools_"):
        load_function_tools_from_path(str(tmp_path / "tools.py"))


# --- the problems ---------------------------------------------------------------------


def test_the_first_problems_are_pinned_and_take_two_or_three_calls():
    assert PROBLEM.question == "What do 14 gallons of honey cost in Delhi, priced by the quart?"
    # 14 gallons are 56 quarts, at 22 each.
    assert [tool_turns.told(call) for call in PROBLEM.calls] == ["56", "22", "1232"]
    assert PROBLEM.ground_truth == "1232"
    drawn = list(islice(examples("tool-turns", "train", tool_turns.draw_example, 0), 400))
    assert {len(each.calls) for each in drawn} == {2, 3}
    used = {name for each in drawn for name, _ in each.calls}
    assert used == set(TOOLS)
    assert all(each.ground_truth.isdecimal() for each in drawn)


def test_a_stopped_session_has_what_the_tools_told_and_at_times_a_refusal():
    rng = random.Random(0)
    refused = 0
    for _ in range(300):
        turn = next_turn(tool_turns.draw_example(rng), rng)
        told = [message["content"] for message in turn.messages if message["role"] == "tool"]
        refused += any(text.startswith("Error: ") for text in told)
        if not turn.calls:
            assert turn.ground_truth == f"<answer>{told[-1]}</answer>"
        roles = [message["role"] for message in turn.messages[2:]]
        assert roles == ["assistant", "tool"] * len(told)
    assert 10 < refused < 45  # a tenth of those with a call to make


# --- the rewards, beside what recipes/tool_turns/cases.jsonl has -------------------------

NAMES = ("correctness", "executed", "economy", "format")


def call(name, **arguments):
    return tool_turns.written((name, arguments))


SUM = call("calculate", expression="6 * 7")


def test_of_a_tool_that_is_not_guarded_is_warned_once(caplog, monkeypatch):
    monkeypatch.setattr(parse_error, "_warned", set())
    info = {"calls": 1, "tool_rewards": [0.0]}
    for failure in ("Error: no such city", "Unknown function 'add'."):
        compute_score("", f"{SUM}\ntool\n{failure}\nassistant\n<answer>42</answer>", "42", info)
    assert not caplog.messages
    for _ in range(2):
        compute_score("", f"{SUM}\ntool\n42\nassistant\n<answer>42</answer>", "42", info)
    (message,) = caplog.messages
    assert "function_tool(guarded(tool)), or return (text, 1.0) from it." in message


def test_a_row_without_its_number_of_calls_cannot_be_judged():
    found = compute_score("", f"{SUM}<answer>42</answer>", "42", {"tool_rewards": [1.0]})
    assert (found["score"], found["parse_error"]) == (0.0, ParseError.GROUND_TRUTH)


# --- verl's own loop ------------------------------------------------------------------


class Script:
    """Stands for vLLM: gives the turns of a script, each ended as the policy ends its own."""

    def __init__(self, tokenizer, turns):
        self.tokenizer, self.turns = tokenizer, iter(turns)

    async def generate(self, **kwargs):
        from verl.workers.rollout.replica import TokenOutput

        ids = self.tokenizer.encode(f"{next(self.turns)}{self.tokenizer.eos_token}")
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids))


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TASK, 0, vocabulary=TASK.settings.vocabulary)


def session(tokenizer, *turns, tools=TOOLS_FILE):
    """verl's tool agent with the recipe's settings, from the first turn to its output."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
    from verl.experimental.agent_loop.tool_agent_loop import ToolAgentLoop
    from verl.tools.tool_registry import load_all_tools

    # Longer than the recipe's, so that all fits that a tool tells of a fault.
    config = compose("tool_turns/gdpo", "actor_rollout_ref.rollout.response_length=600")

    async def dialogue():
        loop = ToolAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=Script(tokenizer, list(turns)),
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=DictConfigWrap(config.data),
            hf_model_type="qwen2",
            tools=ToolListWrap(load_all_tools(None, str(tools))),
        )
        return await loop.run({}, raw_prompt=PROBLEM.messages)

    return asyncio.run(dialogue())


def test_verl_masks_what_the_tools_tell_and_the_reward_sees_it(tokenizer):
    turns = [*map(tool_turns.written, PROBLEM.calls), "<answer>1232</answer>"]
    turns.insert(1, call("look_up", item="honey", city="Atlantis"))
    output = session(tokenizer, *turns)
    own, told = [], []
    for token, trained in zip(output.response_ids, output.response_mask, strict=True):
        (own if trained else told).append(token)
    # Loss falls on what the policy wrote, to the last end of a turn, and on nothing else.
    assert tokenizer.decode(own) == "".join(f"{turn}<|im_end|>" for turn in turns)
    cities = "Paris, Tokyo, Lima, Oslo, Cairo, Delhi, Quito, Hanoi"
    texts = ["56", f"Error: expected one of {cities}, found 'Atlantis'", "22", "1232"]
    assert tokenizer.decode(told) == "".join(
        f"\n<|im_start|>tool\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in texts
    )
    assert output.extra_fields["tool_rewards"] == [1.0, 0.0, 1.0, 1.0]
    assert output.num_turns == 10  # the user, five of the assistant, four of the tools

    text = tokenizer.decode(output.response_ids, skip_special_tokens=True)
    found = compute_score("", text, "1232", {"calls": 3, **output.extra_fields})
    assert [found[name] for name in NAMES] == [1.0, 0.75, 1.0, 1.0]


@pytest.mark.parametrize(
    ("turn", "outcomes", "told"),
    [
        (call("calculate", expression="9 ** 9 ** 9 ** 9"), [TIMED_OUT], "no answer within 2 sec"),
        (call("calculate", expression="7 ** 999"), [CUT], "[cut: the first 200 of 845 characters]"),
        (call("guess"), [RAISED], "Unknown function 'guess'"),
        (call("calculate", expression="<|im_end|>"), [RAISED], "found '<|im_end|>'"),
        ('<tool_call>{"name": "calculate", "arguments": [1]}</tool_call>', [RAISED], "Error"),
        ("<tool_call>\n</tool_call>", [], ""),
        (call("look_up", item="tea", city="Oslo") * 2, [EXECUTED], "3"),
    ],
)
def test_nothing_that_a_policy_writes_ends_the_loop_unheard(tokenizer, turn, outcomes, told):
    output = session(tokenizer, turn, SUM, "<answer>1</answer>")
    made = [*outcomes, EXECUTED] if outcomes else []  # the next call is made, too
    assert output.extra_fields["tool_rewards"] == made
    assert told in tokenizer.decode(output.response_ids)
    assert len(output.response_mask) == len(output.response_ids)


PLAIN_TOOL = '''
from verl.tools.function_tool import function_tool

@function_tool
def double(number: int) -> str:
    """Double a number.

    Args:
        number: any
    """
    return str(2 * number)
'''


@pytest.fixture(scope="module")
def plain_tools(tmp_path_factory):
    path = tmp_path_factory.mktemp("tools") / "plain_tools.py"
    path.write_text(PLAIN_TOOL)
    return path


@pytest.mark.parametrize(
    ("turn", "executed", "code"),
    [
        (call("double", number=21), None, 27),
        (call("double", number=None), 0.0, 0),  # it raises, and verl says so
        (call("half", number=84), 0.0, 0),
    ],
)
def test_a_tool_that_returns_a_text_alone_is_neither_right_nor_wrong(
    tokenizer, plain_tools, turn, executed, code
):
    output = session(tokenizer, turn, "<answer>42</answer>", tools=plain_tools)
    assert output.extra_fields["tool_rewards"] == [0.0]
    text = tokenizer.decode(output.response_ids, skip_special_tokens=True)
    found = compute_score("", text, "42", {"calls": 1, **output.extra_fields})
    judged = (found["executed"], found["economy"], found["parse_error"])
    assert judged == (executed, executed, code)


def test_the_tools_are_found_from_any_directory(tmp_path, monkeypatch):
    from verl.utils.import_utils import resolve_config_path

    # By verl itself in a clone; by `gdpo-verl train` wherever it is called.
    for place in (RECIPES.parent, tmp_path):
        monkeypatch.chdir(place)
        config, overrides = composed("tool_turns/gdpo", tmp_path, ["hardware=gpu1"])
        path = config.actor_rollout_ref.rollout.multi_turn.function_tool_path
        assert Path(resolve_config_path(path)).samefile(TOOLS_FILE)
        assert config.data.function_tool_path == path
        assert any("function_tool_path" in each for each in overrides) == (place == tmp_path)
    given = "actor_rollout_ref.rollout.multi_turn.function_tool_path=mine.py"
    config, _ = composed("tool_turns/gdpo", tmp_path, ["hardware=gpu1", given])
    assert config.actor_rollout_ref.rollout.multi_turn.function_tool_path == "mine.py"


# --- a training -----------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.slow
def test_two_steps_train_and_dump_whole_sessions(train, tmp_path, tokenizer):
    data, policy = tmp_path / "data", tmp_path / "policy"
    run_cli("prepare", "tool-turns", "--out", str(data))
    run_cli("make-policy", "--task", "tool-turns", "--out", str(policy))
    run = train(
        "tool_turns/gdpo",
        f"data.train_files={data / 'train.parquet'}",
        f"data.val_files={data / 'validation.parquet'}",
        f"actor_rollout_ref.model.path={policy}",
        f"trainer.validation_data_dir={tmp_path / 'validation'}",
        "trainer.val_before_train=true",
        f"actor_rollout_ref.rollout.multi_turn.function_tool_path={TOOLS_FILE}",
    )
    assert sorted(run.metrics()) == [0, 1, 2]
    assert run.metrics()[0]["val-aux/tool-turns/calls/mean@1"] > 1
    assert "Failed to initialize tools" not in run.output
    right = []
    for step in (1, 2):
        metrics, rows = run.metrics()[step], run.rollouts(step)
        assert len(rows) == 32
        assert len({row["uid"] for row in rows}) == 32  # one entry a session
        assert metrics["training/rollout_probs_diff_max"] < 1e-3  # over the policy's own tokens
        assert metrics["actor/grad_norm"] > 0
        assert metrics["rewards/correctness/std"] > 0
        # Whitened over its own tokens; with those of the tools it was 0.05 to 0.15 away from 0.
        total, tokens = 0.0, 0
        for row in rows:
            turns = re.split(r"\ntool\n.*?\nassistant\n", row["output"], flags=re.DOTALL)
            own = sum(len(tokenizer.encode(turn)) + 1 for turn in turns)  # each with its end
            total += row["gdpo_advantage"] * own
            tokens += own
        assert total / tokens == pytest.approx(0.0, abs=0.01)
        right += [row for row in rows if row["score"] == 4.0]
    # The whole session is in the dump, with what the tools told.
    assert right
    for row in right:
        ended = rf"\ntool\n\S.*\nassistant\n<answer>{row['gts']}</answer>$"
        assert re.search(ended, row["output"], flags=re.DOTALL), row


def test_the_reward_can_be_tried_before_a_training(tmp_path):
    tool_turns.prepare(tmp_path, train=1, validation=16)
    rows = str(tmp_path / "validation.parquet")
    command = "check-reward --recipe tool_turns/gdpo actor_rollout_ref.model.path=null --data"
    printed = run_cli(*command.split(), rows)
    assert "PROBLEM" not in printed
