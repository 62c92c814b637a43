"""Look for an answer that breaks a rule-based reward, guided by the branches that it takes.

    pip install atheris
    python scripts/fuzz_rewards.py [--reward tool_call] [--seconds 600] [--corpus DIR]

Each case is judged strictly and by the published rules. It stops at the first answer that
raises, lacks a declared key, leaves its range, is not finite or takes more than a second, or
that earns more under strict than the calls it makes are worth, and writes it to ./crash-*;
run it again with that file's name as --case to see why.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import atheris
except ImportError:
    sys.exit("atheris, which guides the search, is not installed: pip install atheris")

with atheris.instrument_imports(include=["gdpo_verl.rewards", "json"]):
    from gdpo_verl.rewards import gsm8k, tool_call
    from gdpo_verl.rewards.components import declared_components
    from gdpo_verl.rewards.thought import assistant_text
    from gdpo_verl.rewards.tool_text import read

CALL = '{"name": "f", "parameters": {"a": 1, "b": [true, null]}}'
ANSWER = f"<think>So.</think>\n<tool_call>\n{CALL}\n</tool_call>"
TRUTHS = {
    "tool_call": [
        ANSWER,
        "<think>So.</think>\n<response>Yes.</response>",
        f"<tool_call>\n{CALL}\n"
        '{"name": "f", "parameters": {"a": 2}}\n{"name": "g", "parameters": {}}\n</tool_call>\n'
        "<response>Yes.</response>",
        "<tool_call>\nnot json\n</tool_call>",
    ],
    "gsm8k": ["6 * 7 #### 42", "1,000", "-3", "0.5", "no number"],
}
REWARDS = {"tool_call": tool_call.compute_score, "gsm8k": gsm8k.compute_score}
SEEDS = {
    "tool_call": [
        *TRUTHS["tool_call"],
        ANSWER.replace(CALL, f"[{CALL},\n{CALL}]").replace("parameters", "arguments"),
        ANSWER.replace("So.", "I write <tool_call> and </think> here."),
        ANSWER.replace("true", "NaN").replace("1", "1e999"),
        ANSWER + "\n<tool_call>\n" + CALL + "\n</tool_call>\n<response>Yes.</response><|im_end|>",
    ],
    "gsm8k": ["<think>a</think>\n<answer>42</answer>", "<answer>-1,000.50</answer><|im_end|>"],
}
WORDS = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<response>", "</response>"),
    *("<answer>", "</answer>", "####", "<|im_end|>", '\\"name\\"', '\\"parameters\\"'),
    *(
        '\\"arguments\\"',
        "true",
        "null",
        "NaN",
        "Infinity",
        "1e999",
        "\\x5cud800",
        "\\xed\\xa0\\x80",
    ),
]


def check(name: str, text: str) -> None:
    """Raise when the verdicts on a text are not what the reward declares."""
    reward = REWARDS[name]
    for ground_truth in TRUTHS[name]:
        for strict in (True, False):
            start = time.process_time()
            result = reward("", text, ground_truth, strict=strict)
            assert time.process_time() - start < 1, "more than a second"
            check_declared(reward, result)
        if name == "tool_call":
            check_spray(text, ground_truth)


def check_declared(reward: Callable[..., Any], result: dict[str, float]) -> None:
    declared = declared_components(reward)
    assert set(result) == {"score", "parse_error", *(c.name for c in declared)}, result
    assert all(math.isfinite(value) for value in result.values()), result
    assert all(c.low <= result[c.name] <= c.high for c in declared), result
    assert result["score"] == sum(result[c.name] for c in declared), result


def check_spray(text: str, ground_truth: str) -> None:
    """Calls that are too many cannot earn more than one right answer with as many wrong ones."""
    try:
        asked = len(tool_call.parse_ground_truth(ground_truth).calls)
    except ValueError:
        return
    made = len(read(assistant_text(text)).calls)
    earned = tool_call.correctness_reward(text, ground_truth)
    assert not (asked and made == 0) or earned == -3, "no call and no minimum"
    if asked and made > asked:
        # J(names) <= asked / made, and each call too many adds 1 or more to M.
        highest = 1.0 + sum(
            1 + len(call["parameters"]) for call in tool_call.parse_ground_truth(ground_truth).calls
        )
        most = 6 * (asked / made + highest - 1) / (highest + made - asked) - 3
        assert earned <= most + 1e-9, f"{earned} for {made} calls, {most} at most"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--reward", choices=sorted(REWARDS), default="tool_call")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", help="a folder to keep the interesting cases in")
    parser.add_argument("--case", help="a file to judge once, instead of searching")
    args = parser.parse_args()

    def one(data: bytes) -> None:
        # surrogatepass: a lone surrogate is text to Python, and to a tokenizer's decoder.
        try:
            text = data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            text = data.decode("latin-1")
        check(args.reward, text)

    if args.case:
        one(Path(args.case).read_bytes())
        return
    folder = Path(args.corpus or tempfile.mkdtemp(prefix="fuzz_rewards_"))
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[args.reward]):
        (folder / f"seed-{number}").write_text(seed, encoding="utf-8")
    words = folder.with_name(folder.name + ".dict")
    words.write_text("\n".join(f'"{word}"' for word in WORDS), encoding="utf-8")
    options = [f"-max_total_time={args.seconds}", f"-dict={words}", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *options, "-print_final_stats=1", str(folder)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
