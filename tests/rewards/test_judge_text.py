"""A judge's reply in words: a table of what judges write, and what a person takes it for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gdpo_verl.rewards.judge import Judge

FIVE = [1, 2, 3, 4, 5]
TEN = list(range(1, 11))
GOOD = ["bad", "good"]
PASS = ["fail", "pass"]
YES = ["no", "yes"]
PARTLY = ["no", "partly", "yes"]
LETTERS = ["F", "D", "C", "B", "A"]
HALVES = [0, 0.5, 1]
SIGNED = [-1, 0, 1]
BINARY = [0, 1]
ABC = ["C", "B", "A"]
QUALITY = ["poor", "fair", "good", "excellent"]
TRUE = ["false", "true"]
CORRECT = ["incorrect", "correct"]


def value_of(scale: list[Any], text: str, finish_reason: str = "stop") -> float | None:
    judge = Judge.read({"question": "{response}", "scale": scale})
    return judge.value_of({"message": {"content": text}, "finish_reason": finish_reason})


NAMED = [
    # A number, however it is dressed.
    (FIVE, "4", 4),
    (FIVE, "4.", 4),
    (FIVE, "4.0", 4),
    (FIVE, "4,0", 4),
    (FIVE, "Rating: 4.00", 4),
    (FIVE, "4/5", 4),
    (FIVE, "4 / 5", 4),
    (FIVE, "Score: 4/5", 4),
    (FIVE, "Rating: 4 out of 5", 4),
    (FIVE, "I would rate this answer 3 out of 5.", 3),
    (FIVE, "4 out of a possible 5", 4),
    (FIVE, "3 of 5, because a step is missing.", 3),
    (FIVE, "4 (out of 5)", 4),
    (FIVE, "I give it 4 out of 5 stars.", 4),
    (FIVE, "<score>4</score>", 4),
    (FIVE, "<rating> 2 </rating>\n", 2),
    (FIVE, "**4**", 4),
    (FIVE, "**Rating:** 4", 4),
    (FIVE, "Rating: [[3]]", 3),
    (FIVE, r"\boxed{2}", 2),
    (FIVE, "`5`", 5),
    (FIVE, "$4$", 4),
    (FIVE, '"4"', 4),
    (FIVE, '{"score": 4}', 4),
    (FIVE, '{"score": 4, "reason": "It misses 1 step."}', 4),
    (FIVE, '{"reason": "2 of 3 steps are right", "score": "3"}', 3),
    (FIVE, '```json\n{"rating": 5}\n```', 5),
    (FIVE, '{"score": 4, "max_score": 5}', 4),
    (FIVE, "score=4", 4),
    (FIVE, "The answer deserves a 4!", 4),
    (FIVE, "4 points", 4),
    (FIVE, "This is a 4-star answer.", 4),
    (FIVE, "4 stars for clarity", 4),
    (FIVE, "4<|im_end|>", 4),
    (FIVE, "Rating: four (4)", 4),
    (FIVE, "４", 4),
    (FIVE, "٤", 4),
    (FIVE, "४/५", 4),
    (FIVE, "评分：4", 4),
    (FIVE, "4 sur 5", 4),
    (FIVE, "Bewertung: 4 von 5", 4),
    (TEN, "10", 10),
    (TEN, "10/10", 10),
    (TEN, "Score: 7 / 10", 7),
    (HALVES, "0.5", 0.5),
    (HALVES, "1.0", 1),
    (HALVES, "Score: 0,5", 0.5),
    (SIGNED, "-1", -1),
    (SIGNED, "Score: -1.", -1),
    ([5, 4, 3, 2, 1], "2 out of 5", 2),
    # An explanation behind it.
    (FIVE, "4\n\nThe explanation is clear. It would be a 5 with units.", 4),
    (FIVE, "4 - clear, but it misses 1 step", 4),
    (FIVE, "4. It covers 2 of the 3 steps.", 4),
    (FIVE, "4 because 1 step is missing", 4),
    (FIVE, "4, almost a 5", 4),
    (FIVE, "4 (it leaves out 2 units)", 4),
    (FIVE, "I give it 4 for clarity.", 4),
    (YES, "Yes, no issues.", "yes"),
    (YES, "Yes it does.", "yes"),
    (YES, "No, the right answer is yes.", "no"),
    (GOOD, "Good, not bad at all.", "good"),
    # The last of several.
    (FIVE, "I'd give it a 3, no, 4", 4),
    (FIVE, "3... no, a 4", 4),
    (FIVE, "3. Actually, it is a 4.", 4),
    (FIVE, "First I thought 2, but it is a 4.", 4),
    (FIVE, "4? No, 3.", 3),
    (FIVE, "Not a 5 but a 4.", 4),
    (FIVE, "It's not a 5, it's a 3.", 3),
    (FIVE, "5 is perfect, this is a 3.", 3),
    (FIVE, "Clarity: 3\nAccuracy: 5\nOverall: 4", 4),
    (FIVE, "1. Clear.\n2. Right.\nRating: 4", 4),
    (FIVE, "3 or 4, so 4", 4),
    (GOOD, "Not bad, good", "good"),
    (YES, "Is it right? Yes.", "yes"),
    # The scale, quoted.
    (FIVE, "On a scale of 1 to 5, I'd give this a 4.", 4),
    (FIVE, "On a scale from 1 (badly) to 5 (very well): 2", 2),
    (FIVE, "Rating (1-5): 3", 3),
    (FIVE, "4 (on a scale of 1–5)", 4),
    (FIVE, "With 1, 2, 3, 4 or 5 to choose from: 4", 4),
    (YES, "Yes/no: yes", "yes"),
    (YES, "Yes or no? No.", "no"),
    # Words and letters.
    (LETTERS, "**B**", "B"),
    (LETTERS, "B", "B"),
    (LETTERS, "A bit vague, so B", "B"),
    (LETTERS, "A bit vague, so a B.", "B"),
    (LETTERS, "A fine answer but a long one: C", "C"),
    (LETTERS, "Grade: A", "A"),
    (LETTERS, "The grade is **B** because a step is missing.", "B"),
    (LETTERS, "I choose B.", "B"),
    (LETTERS, "(C)", "C"),
    (LETTERS, "A - clear and right", "A"),
    (PASS, "PASS", "pass"),
    (PASS, "Verdict: *pass*", "pass"),
    (PASS, "It is a fail, not a pass.", "fail"),
    (GOOD, "not for long answers, yet good", "good"),
    (GOOD, "The answer is good.", "good"),
    (PARTLY, "Partly.", "partly"),
    (YES, "✅ Yes", "yes"),
    (YES, "<think>No? Perhaps no.</think>Yes", "yes"),
    # Of all kinds.
    (FIVE, "Score: 4\nReason: The answer explains 3 of its 5 steps well.", 4),
    (FIVE, "I'd rate this a 4.", 4),
    (FIVE, "I'd rate it 4", 4),
    (FIVE, "My rating: 3 (out of 5)", 3),
    (FIVE, "Final score - 2", 2),
    (FIVE, "Final answer: **3**/5", 3),
    (FIVE, "**Score: 4/5**", 4),
    (FIVE, "4/5 - good", 4),
    (FIVE, "4 out of 5!", 4),
    (FIVE, "Overall, I would give this response a rating of 4.", 4),
    (FIVE, "Based on the criteria, the answer is a solid 4.", 4),
    (FIVE, "Based on 5 criteria, this earns a 3", 3),
    (FIVE, "rating is 5 out of 5 because it is clear", 5),
    (FIVE, "The response gets a 2, since 3 steps are missing", 2),
    (FIVE, "The answer has 3 errors, so I rate it 2", 2),
    (FIVE, "5 - very well explained", 5),
    (FIVE, "Answer: 3.", 3),
    (FIVE, "3 stars out of 5", 3),
    (FIVE, '{"rating": "4/5"}', 4),
    (FIVE, "{'score': 4}", 4),
    (FIVE, "[4]", 4),
    (FIVE, "4)", 4),
    (FIVE, "#### 4", 4),
    (FIVE, "The answer is 42, which is right: 5", 5),
    (FIVE, "The answer is 3 and it should be 4, so 1.", 1),
    (FIVE, "It says 4 but the truth is 5. Rating: 1", 1),
    (FIVE, "Somewhere around 3.", 3),
    (FIVE, "not quite a 4, so 3", 3),
    (FIVE, "I wanted to give 4 but settle for 3", 3),
    (FIVE, "3 → 4", 4),
    (FIVE, "Initially 3; on reflection 4", 4),
    (FIVE, "4 (changed from 3)", 4),
    (FIVE, "No rating below 5 would do, so: 5", 5),
    (FIVE, "Rating:4", 4),
    (FIVE, "rating : 4", 4),
    (FIVE, "Punkte: 3", 3),
    (FIVE, "Note : 4/5", 4),
    (FIVE, "Оценка: 4 из 5", 4),
    (FIVE, "評価：3", 3),
    (FIVE, "التقييم: ٣", 3),
    (FIVE, "③", 3),
    (YES, "Yes, I can say yes.", "yes"),
    (YES, "No!", "no"),
    (YES, "no", "no"),
    (YES, "NO.", "no"),
    (YES, "The answer is no.", "no"),
    (YES, "Yes - it is right", "yes"),
    (YES, "Yes\n\nThe answer says no, but", "yes"),
    (YES, "I'd say yes.", "yes"),
    (YES, "There is no doubt: yes", "yes"),
    (YES, "Yes... well, no.", "no"),
    (YES, "Yes, there is no mistake in it", "yes"),
    (YES, "It's a yes from me.", "yes"),
    (YES, "Unfortunately, no.", "no"),
    (YES, "No, it does not.", "no"),
    (YES, "no it doesn't", "no"),
    (YES, '"Yes"', "yes"),
    (YES, "Answer (yes/no): no", "no"),
    (YES, "Yes, although not perfectly.", "yes"),
    (YES, "It is not clear. Yes", "yes"),
    (GOOD, "Good.", "good"),
    (GOOD, "bad", "bad"),
    (GOOD, "It's good, though not great.", "good"),
    (GOOD, "The good outweighs the bad: good", "good"),
    (GOOD, "It is good that units are given, but the rest is bad", "bad"),
    (GOOD, "So bad", "bad"),
    (PASS, "Pass", "pass"),
    (PASS, "It is not a pass but a fail", "fail"),
    (PASS, "Result: FAIL", "fail"),
    (PASS, "Didn't pass: fail", "fail"),
    (PASS, "[[PASS]]", "pass"),
    (ABC, "A", "A"),
    (ABC, "a", "A"),
    (ABC, "b.", "B"),
    (ABC, "A.", "A"),
    (ABC, "Option B", "B"),
    (ABC, "I pick A", "A"),
    (ABC, "The grade: a B", "B"),
    (ABC, "A because it is right", "A"),
    (ABC, "Answer: (A)", "A"),
    (ABC, "A is a bit long, so C.", "C"),
    (ABC, "It's an A.", "A"),
    (ABC, "A: clear", "A"),
    (QUALITY, "fair", "fair"),
    (QUALITY, "It's fair to say that it is poor", "poor"),
    (QUALITY, "Overall: good", "good"),
    (QUALITY, "not poor, but fair", "fair"),
    (TRUE, "True", "true"),
    (TRUE, '{"correct": true}', "true"),
    (CORRECT, "Incorrect", "incorrect"),
    (CORRECT, "The answer is correct.", "correct"),
    (BINARY, "1", 1),
    (BINARY, "0", 0),
    (BINARY, "1/1", 1),
    (BINARY, "0.0", 0),
    (BINARY, "1.", 1),
    (TEN, "8/10.", 8),
    (TEN, "8 out of 10", 8),
    (TEN, "9 of 10 points", 9),
    (TEN, "10 out of 10", 10),
    (TEN, "1-10: 7", 7),
    (TEN, "Rating (1 to 10): 1", 1),
    (FIVE, "the rating is 4, not 5", 4),
    (FIVE, "Rate: 4.\nConfidence: 0.9", 4),
    (FIVE, '{"score": 4, "confidence": 0.9}', 4),
    (FIVE, "Score:\n4", 4),
    (FIVE, "The score is:\n\n3", 3),
    (FIVE, "4\n4", 4),
    (FIVE, "4 4 4", 4),
]

UNSCORED = [
    # Negated.
    (GOOD, "Not good"),
    (GOOD, "It isn't good."),
    (GOOD, "It isn’t good."),
    (GOOD, "It is not as good as it could be."),
    (GOOD, "It is **not** good."),
    (GOOD, "I would not call it 'good'."),
    (GOOD, "This is by no means good."),
    (GOOD, "Hardly good."),
    (GOOD, "Far from good."),
    (GOOD, "Neither good nor bad."),
    (GOOD, "It is anything but good."),
    (GOOD, "It is almost good."),
    (GOOD, "not good, not bad"),
    (PASS, "It does not pass"),
    (PASS, "This isn't a pass."),
    (PASS, "It fails to earn a pass."),
    (PASS, "It never deserves a pass"),
    (PASS, "It is not, in my view, a pass."),
    (YES, "I can't say yes"),
    (YES, "I cannot answer with yes."),
    (YES, "I am unable to say yes"),
    (YES, "I dont think so: can not say yes"),
    (FIVE, "This is not a 5."),
    (FIVE, "I wouldn't give it a 4"),
    (FIVE, "Less than 3."),
    (FIVE, "at least 3"),
    (FIVE, "It would be a 5 if the units were given."),
    (["schlecht", "gut"], "Nicht gut."),
    # Between two.
    (FIVE, "between 3 and 4"),
    (FIVE, "3-4"),
    (FIVE, "3 or 4"),
    (FIVE, "3 to 4."),
    (YES, "Yes and no."),
    (FIVE, "4.5"),
    (FIVE, "Rating: 3.5/5"),
    # Another scale, or a number of something else.
    (FIVE, "3/4"),
    (FIVE, "4/10"),
    (FIVE, "80%"),
    (FIVE, "24"),
    (FIVE, "It misses 2 steps."),
    (FIVE, "My tools:\n1. Name: add"),
    (FIVE, "1.1.1.1."),
    (FIVE, "2024"),
    (FIVE, "-4"),
    # The question or the scale alone.
    (FIVE, "On a scale of 1 to 5"),
    (FIVE, "Please rate from 1 (bad) to 5 (good)."),
    (YES, "Yes or no?"),
    (GOOD, "Is it good?"),
    # No word of it.
    (LETTERS, "A bit vague."),
    (LETTERS, "I think that a step is missing."),
    (LETTERS, "B+"),
    (YES, "There are no errors"),
    (YES, "No-one could tell."),
    (GOOD, "Goodness!"),
    (GOOD, "<think>good"),
    (FIVE, ""),
    # Not seen, and therefore not scored: words for numbers, what only begins a sentence.
    (FIVE, "Excellent: four"),
    (FIVE, "2 = poorly explained"),
    (LETTERS, "B is better"),
    # Of all kinds.
    (FIVE, '{"score": null}'),
    (FIVE, "N/A"),
    (FIVE, "I can't rate this."),
    (FIVE, "I cannot give a rating of 4 or 5 here."),
    (FIVE, "0"),
    (FIVE, "6"),
    (FIVE, "Five"),
    (FIVE, "100"),
    (FIVE, "3,5"),
    (FIVE, "Either a 2 or a 3"),
    (FIVE, "between a 3 and a 4"),
    (FIVE, "3~4"),
    (FIVE, "more than a 3, less than a 5"),
    (FIVE, "4 / five"),
    (YES, "I would not say no."),
    (YES, "Not yes"),
    (YES, "yes?"),
    (YES, "I have no idea."),
    (YES, "I refuse to answer yes"),
    (YES, "Nope"),
    (YES, "I won't say yes or no"),
    (GOOD, "This isn't good"),
    (GOOD, "It wasn't good."),
    (GOOD, "It's no good."),
    (GOOD, "never good"),
    (GOOD, "It can hardly be called good"),
    (GOOD, "not bad"),
    (GOOD, "The answer lacks anything good."),
    (GOOD, "The opposite of good"),
    (GOOD, "less good than bad"),
    (GOOD, "not at all good"),
    (GOOD, "It doesn't seem good to me."),
    (GOOD, "I'd hesitate to call it good"),
    (PASS, "It passes"),
    (PASS, "doesn't pass"),
    (PASS, "Does it pass? It does."),
    (PASS, "It would pass with a unit"),
    (PASS, "This cannot pass."),
    (PASS, "not pass"),
    (PASS, "I would not let this pass"),
    (ABC, "A good answer"),
    (ABC, "A-"),
    (ABC, "C'est bien"),
    (ABC, "not A"),
    (ABC, "A or B"),
    (ABC, "A+"),
    (QUALITY, "Good to excellent"),
    (TRUE, "It is not true."),
    (TRUE, "That is untrue"),
    (CORRECT, "not correct"),
    (CORRECT, "The answer is not entirely correct"),
    (CORRECT, "in-correct"),
    (BINARY, "0.5"),
    (TEN, "8.5"),
]

CUT_OFF = [
    (FIVE, "I will rate this on a scale of 1", None),
    (FIVE, "The explanation is fair. On a scale of 1 to 5", None),
    (FIVE, "The explanation would be a 4", None),
    (FIVE, "Compared with a 5, this", None),
    (TEN, "Score: 1", None),
    (TEN, "1", None),
    (FIVE, "<think>Is it a 4? Yes, 4", None),
    (YES, "The right answer is no", None),
    (FIVE, "4", 4),
    (FIVE, "4\n\nThe explanation is clear and it", 4),
    (FIVE, "Rating: 4\n\nThe explanation is not a 5, since", 4),
    (YES, "Yes, the answer explains each of the", "yes"),
]


def label(text: str) -> str:
    return repr(text)[:60]


def expected(scale: list[Any], word: Any) -> float | None:
    return None if word is None else scale.index(word) / (len(scale) - 1)


@pytest.mark.parametrize(
    ("scale", "text", "word"),
    [pytest.param(*each, id=label(each[1])) for each in NAMED],
)
def test_the_value_that_a_person_would_take(scale: list[Any], text: str, word: Any) -> None:
    assert value_of(scale, text) == expected(scale, word)


@pytest.mark.parametrize(
    ("scale", "text"),
    [pytest.param(*each, id=label(each[1])) for each in UNSCORED],
)
def test_what_names_no_value_is_not_scored(scale: list[Any], text: str) -> None:
    assert value_of(scale, text) is None


@pytest.mark.parametrize(
    ("scale", "text", "word"),
    [pytest.param(*each, id=label(each[1])) for each in CUT_OFF],
)
def test_a_reply_that_was_cut_off_counts_where_it_had_answered(
    scale: list[Any], text: str, word: Any
) -> None:
    assert value_of(scale, text, "length") == expected(scale, word)


@pytest.mark.parametrize(
    "part",
    ["1,", "1, ", "1 ", "1 (", "1 or ", "1.", "1", "4 because ", "not ", "n't ", "<", "</a", "- ",
     "so ", "max", "out of a ", "is", "a.", "\n", "\n1. ", "x ", "[", "?", "*", "\ud800", "but "],
)  # fmt: skip
def test_reading_any_text_takes_linear_time(part: str) -> None:
    def seconds(length: int) -> float:
        text = part * (length // len(part)) + "4"
        begun = time.process_time()
        value_of(FIVE, text)
        return time.process_time() - begun

    seconds(1000)  # compiles
    small = min(seconds(5_000) for _ in range(3))
    assert seconds(40_000) < 24 * small + 0.1  # 64 times as long, were it quadratic
