"""Dialogues held side by side, in rounds.

A dialogue is a function that asks the model as often as it likes. Each runs in a thread of its own
until it asks; when all of them have asked or ended, their questions go to the model as one batch,
in the dialogues' order. So the batches, and with them the answers, do not depend on how threads
are scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import SimpleQueue

from gdpo_verl.tasks.benchmark import Answer, Ask, Dialogue, Stopped

AT_ONCE = 256
"""Dialogues that are under way together, a thread each."""

Messages = Sequence[Mapping[str, str]]
AnswerAll = Callable[[Sequence[tuple[int, Messages]]], Sequence[Answer]]


def hold(dialogues: Sequence[Dialogue], answer_all: AnswerAll) -> list[Answer]:
    """Hold every dialogue to its end.

    Args:
      dialogues: what each returns is its answer.
      answer_all: answers a round: pairs of a dialogue's place and the chat that it asks with,
        in ascending order of places.

    Returns:
      what each dialogue returned.

    Raises:
      Exception: what a dialogue or `answer_all` raised.
    """
    events: SimpleQueue[tuple[int, Messages | None]] = SimpleQueue()
    replies: list[SimpleQueue[Answer | None]] = [SimpleQueue() for _ in dialogues]

    def speak(place: int) -> Answer:
        try:
            return dialogues[place](_asking(place, events, replies[place]))
        finally:
            events.put((place, None))

    upcoming = iter(range(len(dialogues)))
    futures = {}
    running: set[int] = set()
    asked: dict[int, Messages] = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while True:
            for place in islice(upcoming, AT_ONCE - len(running) - len(asked)):
                running.add(place)
                futures[place] = pool.submit(speak, place)
            if running:
                place, messages = events.get()
                running.remove(place)
                if messages is not None:
                    asked[place] = messages
                continue
            if not asked:
                return [futures[place].result() for place in range(len(dialogues))]
            _answer_round(asked, answer_all, replies)
            running, asked = set(asked), {}


def _asking(
    place: int,
    events: SimpleQueue[tuple[int, Messages | None]],
    replies: SimpleQueue[Answer | None],
) -> Ask:
    def ask(messages: Messages) -> Answer:
        events.put((place, messages))
        answer = replies.get()
        if answer is None:
            raise Stopped("the model failed in this round")
        return answer

    return ask


def _answer_round(
    asked: Mapping[int, Messages],
    answer_all: AnswerAll,
    replies: Sequence[SimpleQueue[Answer | None]],
) -> None:
    places = sorted(asked)
    answers: Sequence[Answer | None] = [None] * len(places)
    try:
        answers = answer_all([(place, asked[place]) for place in places])
    finally:  # threads that wait forever would keep the process from ending
        for place, answer in zip(places, answers, strict=True):
            replies[place].put(answer)
