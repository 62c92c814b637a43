"""A judge: a language model that rates each response, as a reward component from 0 to 1.

Use it for what no rule can tell, behind a gate or condition on one that a rule can.
Assumes: the judge's noise is small beside what it tells: GDPO makes both as large.

It is asked over the chat completions of an OpenAI-compatible server, as vLLM is. The component is
the expected value of its answer: with the value v(w) from 0 to 1 of each word w of the scale, and
its probability p(w) as the first token,

    r = sum_w p(w) v(w) / sum_w p(w)

(https://arxiv.org/abs/2303.16634). Without probabilities that say so it is v of the word that the
text names (`judge_text`). A judge that fails has given no reward: the component is None, *not
scored*.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from gdpo_verl.names import refuse_unknown
from gdpo_verl.rewards.judge_text import named_word, spelled

BACKOFF = 1.0  # seconds before the first repeat; twice as long before each further one
_PLACE = re.compile(r"\{(\w+)\}")
_WORD = re.compile(r"-?\w+(?:\.\w+)*")
# A short answer, always the same; vLLM and OpenAI give at most 20 alternatives of a token.
_REQUEST = {"temperature": 0, "max_tokens": 16, "logprobs": True, "top_logprobs": 20}
# What reading a reply of another shape raises.
_ODD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def _encodable(text: str) -> str:
    """The text with the halves of surrogate pairs, which no file or server takes, written out."""
    return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class Judge:
    """A judge: its settings and the client of its server."""

    question: Any = None  # with {response}, and {prompt} and {ground_truth} as needed
    scale: Any = None  # the words or numbers that it may answer, the worst first
    name: str = "judge"
    url: str | None = None  # of its server, up to /v1; None is the reward model that verl serves
    model: str | None = None  # its name there
    requests: int = 64  # in flight at a time, from all reward workers together
    seconds: float = 60.0  # the deadline of a request
    repeats: int = 2  # further tries where the server gives no answer
    most_failed: float = 0.1  # the largest share of a batch that may be without a value
    request: Mapping[str, Any] = field(default_factory=dict)  # added to its body; null removes

    @classmethod
    def read(cls, node: Any, where: str = "judge") -> Judge:
        """Read the settings, which stand at the key `where`.

        Raises:
          ValueError: names the key in full, what was found and what is expected.
        """
        known = [each.name for each in fields(cls)]
        if not isinstance(node, Mapping):
            raise ValueError(f"{where}: expected a mapping of {known}, found {node!r}")
        refuse_unknown(node, known, where)
        judge = cls(**node)
        asks = isinstance(judge.question, str) and "{response}" in judge.question
        checks: list[tuple[str, Any, str]] = [
            ("question", asks, "a text with {response}, and {prompt} or {ground_truth} as needed"),
            ("scale", judge.values, "two or more words or numbers, the worst first"),
            ("url", str(judge.url or "http").startswith("http"), "http://HOST:PORT/v1"),
            ("model", bool(judge.model) == bool(judge.url), "a name with url, none without"),
            ("request", isinstance(judge.request, Mapping), "a mapping"),
        ]
        limits = {
            "requests": (1, 4096),
            "seconds": (0.001, 86_400),
            "repeats": (0, 16),
            "most_failed": (0, 1),
        }
        for key, (low, high) in limits.items():
            number = getattr(judge, key)
            fits = type(number) in (int, float) and low <= number <= high
            checks.append((key, fits, f"a number from {low} to {high}"))
        for key, valid, wanted in checks:
            if not valid:
                raise ValueError(f"{where}.{key}: expected {wanted}, found {getattr(judge, key)!r}")
        return judge

    @cached_property
    def values(self) -> dict[str, float]:
        """The value of each word of the scale, equally spaced; {} of what is no scale.

        YAML reads a yes or no without quotes as a boolean, which is no word.
        """
        scale = self.scale if isinstance(self.scale, list) else []
        words = [spelled(str(each)) for each in scale if not isinstance(each, bool)]
        if not len({*words}) == len(scale) > 1 or not all(map(_WORD.fullmatch, words)):
            return {}
        return {word: place / (len(words) - 1) for place, word in enumerate(words)}

    async def ask(self, **texts: str) -> dict[str, Any]:
        """Have a response judged.

        Args:
          texts: `prompt`, `response` and `ground_truth`.

        Returns:
          Under the component's name its value, None where the judge failed; under `<name>_said`
          the judge's text, None where none came; under `<name>_error` why there is no value.
        """
        question = _PLACE.sub(lambda place: texts.get(place[1], place[0]), self.question)
        messages = [{"role": "user", "content": _encodable(question)}]
        body = {"model": self.model, "messages": messages, **_REQUEST, **self.request}
        body = {key: value for key, value in body.items() if value is not None}
        value = said = None
        error = ""
        for seconds in (0.0, *(BACKOFF * 2**repeat for repeat in range(int(self.repeats)))):
            await asyncio.sleep(seconds)
            try:
                async with self._slots:  # the wait for one is not of the request's seconds
                    asked = self._client.post("chat/completions", json=body)
                    reply = await asyncio.wait_for(asked, self.seconds)
            except Exception as failure:  # of any server, address or setting: it gave no value
                reason = str(failure) or type(failure).__name__
                error = f"no answer from {self.url} within {self.seconds} s: {reason}"
                continue
            error = f"HTTP {reply.status_code} from {self.url}: {reply.text[:200]!r}"
            with contextlib.suppress(*_ODD):
                choice = reply.json()["choices"][0]
                value = self.value_of(choice)
                said = _encodable(choice["message"]["content"] or "")
                unknown = f"expected one of {[*self.values]}, found {said[:200]!r}"
                error = unknown if value is None else ""
                break
        return {self.name: value, f"{self.name}_said": said, f"{self.name}_error": error}

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(int(self.requests))

    @cached_property
    def _client(self) -> Any:
        import httpx

        key = os.environ.get("OPENAI_API_KEY")
        url = str(self.url)
        return httpx.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=None),
            timeout=None,
            trust_env=url.startswith("https"),  # a proxy is for what lies outside the cluster
        )

    def value_of(self, choice: Mapping[str, Any]) -> float | None:
        """The value of a reply; None where it names no word of the scale.

        The text says which word it is (`judge_text`). Where that is the first token, too, and the
        probabilities are numbers that hold it for possible, the value is the expected one. But 1
        may be a tokenizer's first piece of 10: it counts only if 10 is a token beside it.

        Args:
          choice: the first of a chat completion's `choices`.
        """
        text = choice["message"]["content"] or ""
        values = self.values
        cut = choice.get("finish_reason") == "length"
        word = named_word(text, [*values], cut=cut)
        if word is None:
            return None
        shares: dict[str, float] = {}
        with contextlib.suppress(*_ODD, OverflowError):
            shares = self._shares(choice["logprobs"]["content"], word)
        total = sum(shares.values())
        if shares.get(word, 0) > 0 and math.isfinite(total):
            return sum(share * values[each] for each, share in shares.items()) / total
        # All that it said before it was cut off may be the beginning of another.
        whole = cut and spelled(text) == word
        longer = any(each.startswith(word) and each != word for each in values)
        return None if whole and longer else values[word]

    def _shares(self, tokens: list[Any], word: str) -> dict[str, float]:
        """The probability of each word of the scale as the first token, where that is `word`."""
        first: Any = next((token for token in tokens if token["token"].strip()), None)
        if spelled(first["token"]) != word:
            return {}
        shares: dict[str, float] = {}
        for token in first["top_logprobs"]:
            other = spelled(token["token"])
            if other in self.values:
                shares[other] = shares.get(other, 0.0) + math.exp(token["logprob"])
        missing = self.values.keys() - shares.keys()
        pieces = any(longer.startswith(piece) for piece in shares for longer in missing)
        return {} if pieces else shares
