"""The responses and rankings of the page, and the functions that score them.

The responses form one group: twelve responses to one prompt. Each is scored by three pure
functions, two of which belong to the tool-calling task.
"""

from __future__ import annotations

from gdpo_verl.rewards.tool_call import HIGHEST, correctness_reward, format_reward

KEYS = ("correctness", "style", "conciseness")
# The longest response that counts as concise, in characters.
CONCISE = 130

PROMPT = "What is the weather in Paris for the next 3 days?"


def _answer(thought: str, call: str) -> str:
    return f"<think>{thought}</think>\n<tool_call>\n{call}\n</tool_call>"


_CALL = '{"name": "weather", "parameters": {"city": "Paris", "days": 3}}'
GROUND_TRUTH = _answer("Use weather.", _CALL)

ANSWERS = (
    GROUND_TRUTH,
    _answer(
        "The user asks for a forecast. The weather tool takes a city and a number of days, so I "
        "pass Paris and 3.",
        _CALL,
    ),
    f"<tool_call>\n{_CALL}\n</tool_call>",
    _answer("Use weather.", '{"name": "weather", "parameters": {"city": "Paris", "days": 5}}'),
    _answer("Use weather.", '{"name": "weather", "parameters": {"city": "London", "days": 3}}'),
    _answer(
        "Let me think. Three days is a short trip, and Paris is the capital of France.",
        '{"name": "weather", "parameters": {"city": "France", "days": 3}}',
    ),
    _answer(
        "Days are counted from today, so the next 3 days make 4 with today. I pass that number.",
        '{"name": "weather", "parameters": {"city": "Paris", "days": 4}}',
    ),
    _answer("Search.", '{"name": "search", "parameters": {"query": "Paris"}}'),
    _answer(
        "I could look up a map first, to see where Paris is, and only then the weather there.",
        '{"name": "map", "parameters": {"place": "Paris"}}',
    ),
    _answer(
        "There are several tools. Only one of them knows forecasts: weather, with city and days.",
        _CALL,
    ),
    '<tool_call>\n{"name": "weather", "parameters": {"city": "Paris"\n</tool_call>',
    "It will probably be mild in Paris over the next three days, with some clouds in the morning "
    "and a little sun later on. Shall I look it up for you?",
)


def score(answer: str) -> list[float]:
    """Return the three rewards of a response, in the order of `KEYS`; each is 0 or 1.

    >>> score(GROUND_TRUTH)
    [1.0, 1.0, 1.0]
    """
    return [
        float(correctness_reward(answer, GROUND_TRUTH) == HIGHEST),  # the expected call
        format_reward(answer, GROUND_TRUTH),  # a thought, then a call, and nothing else
        float(len(answer) <= CONCISE),
    ]


# The rewards of the ranking example: name, unit, lowest and highest value, step of the slider.
RANGES = (
    ("relevance", "NDCG", 0, 1, 0.05),
    ("rating", "stars", 1, 5, 0.1),
    ("watch time", "minutes", 0, 60, 1),
)
# Five rankings of the same videos: relevance, rating and watch time.
RANKINGS = {
    "A": (0.95, 3.1, 12.0),
    "B": (0.40, 2.4, 48.0),
    "C": (0.80, 4.6, 21.0),
    "D": (0.15, 3.8, 39.0),
    "E": (0.65, 4.9, 5.0),
}
