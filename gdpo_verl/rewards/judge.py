"""A judge: a language model that rates each response, as a reward component from 0 to 1.

Use it for a quality that no rule can check, with a gate or a condition on a component that rules
compute.
Assumes: the judge's noise is small, because GDPO scales it up with the judge's signal.

The judge is asked through the chat completions of an OpenAI-compatible server, such as vLLM. The
request asks for structured output: a JSON object with one word of the scale. The component is the
expected value of this word:

    r = sum_w p(w) v(w) / sum_w p(w)

(https://arxiv.org/abs/2303.16634). Here v(w) is the value of the word w, from 0 to 1, and p(w) is
the probability of this word as the first token of the rating. If the reply has no probabilities,
the component is v of the word in the text (`judge_text`). If the judge fails, there is no reward,
and the component is None (*not scored*).

With a rubric the component is by criterion, and the reply has a verdict for each criterion
(`rubric`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from gdpo_verl.names import refuse_unknown
from gdpo_verl.rewards.judge_text import RATING, named_word, spelled
from gdpo_verl.rewards.rubric import (
    TOKENS_OF_VERDICT,
    criteria_fault,
    numbered_criteria,
    verdict_schema,
    verdicts_of,
)
from gdpo_verl.rewards.thought import END_THINK

BACKOFF = 1.0  # seconds before the first repeat of a request; doubled before each further repeat
_PLACE = re.compile(r"\{(\w+)\}")
# The limit of a reply, in bytes. Thousands of tokens with their alternatives take half of it.
LARGEST_REPLY = 2**24
# The reply should be short and reproducible. vLLM and OpenAI return at most 20 alternatives of a
# token.
_REQUEST = {"temperature": 0, "max_tokens": 32, "logprobs": True, "top_logprobs": 20}
_UNSTRUCTURED = (
    ". If the server takes no structured output, set request.response_format of the judge to null "
    "and let its question ask for a last line of the form 'Rating: 3'"
)
# The errors that reading a reply may raise if the reply has an unexpected structure.
_ODD = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs by escapes, because they cannot be written or sent."""
    return text.encode(errors="backslashreplace").decode()


def _some(graded: dict[str, Any]) -> dict[str, Any] | None:
    """Return the verdicts, or None if no criterion has one."""
    return graded if any(entry["value"] is not None for entry in graded.values()) else None


@dataclass(frozen=True)
class Judge:
    """A judge: its settings and the client of its server."""

    # The text of the request, with {response}, and with {prompt} and {ground_truth} as needed.
    question: Any = None
    scale: Any = None  # the words or numbers of a rating, the worst first
    # The field of extra_info that has the criteria of a row. With a rubric there is no scale.
    rubric: str | None = None
    name: str = "judge"  # the name of the component
    # The address of the server, up to /v1. None means the reward model that verl serves. The
    # address may contain a password, so it is not printed.
    url: str | None = field(default=None, repr=False)
    model: str | None = None  # the name of the model on the server
    requests: int = 64  # the number of requests at a time, from all reward workers together
    seconds: float = 60.0  # the deadline of a request
    repeats: int = 2  # the number of further requests if the server does not reply
    most_failed: float = 0.1  # the largest share of a batch that may have no value
    # Entries that are added to the body of a request. An entry with null removes a default entry.
    request: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, node: Any, where: str = "judge") -> Judge:
        """Read the settings of a judge from the section with the key `where`.

        Raises:
          ValueError: a setting is wrong. The error names the key in full, the value that was found
            and the value that is expected.
        """
        keys = [setting.name for setting in fields(cls)]
        if not isinstance(node, Mapping):
            raise ValueError(f"{where}: expected a mapping of {keys}, found {node!r}")
        refuse_unknown(node, keys, where)
        judge = cls(**node)
        places = ["{response}"] if judge.rubric is None else ["{response}", "{criteria}"]
        is_text = isinstance(judge.question, str)
        asks = is_text and all(place in judge.question for place in places)
        if judge.rubric is not None and judge.scale is not None:
            raise ValueError(
                f"{where}.scale: expected none where .rubric is set, found {judge.scale!r}. The "
                "verdict on a criterion is whether it is met."
            )
        checks: list[tuple[str, Any, str]] = [
            (
                "question",
                asks,
                f"a text with {' and '.join(places)}, and {{prompt}} or {{ground_truth}} as needed",
            ),
            (
                "scale",
                judge.rubric is not None or judge.values,
                "two or more words or numbers, the worst first",
            ),
            ("rubric", judge.rubric is None or isinstance(judge.rubric, str), "a text, or null"),
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
                setting = judge._address if key == "url" else getattr(judge, key)
                raise ValueError(f"{where}.{key}: expected {wanted}, found {setting!r}")
        return judge

    @cached_property
    def values(self) -> dict[str, float]:
        """The value of each word of the scale, equally spaced; {} if the scale is not valid.

        YAML reads `yes` or `no` without quotes as a boolean, which is not a valid word.
        """
        scale = self.scale if isinstance(self.scale, list) else []
        words = [spelled(str(word)) for word in scale if type(word) in (str, int, float)]
        distinct = set(words) - {""}
        if len(distinct) < 2 or len(distinct) < len(scale):
            return {}
        return {word: place / (len(words) - 1) for place, word in enumerate(words)}

    async def ask(self, criteria: Any = None, **texts: str) -> dict[str, Any]:
        """Ask the judge to rate a response.

        Args:
          criteria: the criteria of the row, for a judge with a rubric:
            ``[{"name", "criterion", "weight"}, …]``.
          texts: `prompt`, `response` and `ground_truth`.

        Returns:
          A dict with three keys. The name of the component has its value, or with a rubric the
          value of each criterion; it is None if the judge failed. `<name>_said` has the text of the
          judge, or None if there was no reply. `<name>_error` says why there is no value.
        """
        if self.rubric is not None:
            fault = criteria_fault(criteria)
            if fault:
                return self._result(None, None, f"extra_info[{self.rubric!r}]: {fault}")
            texts = {**texts, "criteria": numbered_criteria(criteria)}
        question = _PLACE.sub(lambda place: texts.get(place[1], place[0]), self.question)
        messages = [{"role": "user", "content": _encodable(question)}]
        content: dict[str, Any] = {"model": self.model, "messages": messages, **_REQUEST}
        if self.rubric is not None:
            content["max_tokens"] = TOKENS_OF_VERDICT * (len(criteria) + 1)
            del content["logprobs"], content["top_logprobs"]
        # `structured_outputs` is vLLM's own key for the same purpose.
        if "structured_outputs" not in self.request:
            content["response_format"] = self._response_format(criteria)
        content.update(self.request)
        body = {key: value for key, value in content.items() if value is not None}
        value: Any = None
        said = None
        error = ""
        wait = 0.0
        for _ in range(1 + int(self.repeats)):
            await asyncio.sleep(wait)
            wait = 2 * wait or BACKOFF
            try:
                # The time in which a request waits for its turn does not count as part of its
                # deadline.
                async with self._slots:
                    status, reply = await asyncio.wait_for(self._post(body), self.seconds)
            except Exception as failure:  # whatever the error is, the response is not scored
                # The text of the error is left out, because it may contain the password of the
                # address, or data from the server.
                reason = type(failure).__name__
                error = f"no reply from {self._address} within {self.seconds} s: {reason}"
                continue
            error = (
                f"HTTP {status} from {self._address} and no chat completion of at most "
                f"{LARGEST_REPLY} bytes"
            )
            if status in (400, 422):
                error += _UNSTRUCTURED
            with contextlib.suppress(*_ODD):
                choice = json.loads(reply)["choices"][0]
                if self.rubric is None:
                    value = self.value_of(choice)
                    wanted = f"one of {[*self.values]}"
                else:
                    value = _some(verdicts_of(choice["message"]["content"] or "", criteria))
                    wanted = 'verdicts such as {"1": true, "2": false}'
                said = _encodable(choice["message"]["content"] or "")
                unknown = f"expected {wanted}, found {said[:200]!r}"
                error = unknown if value is None else ""
                break
            if 400 <= status < 500 and status not in (408, 429):  # the same request fails again
                break
        return self._result(value, said, error)

    def _result(self, value: Any, said: str | None, error: str) -> dict[str, Any]:
        return {self.name: value, f"{self.name}_said": said, f"{self.name}_error": error}

    def _response_format(self, criteria: Any) -> dict[str, Any]:
        """Return the structured output that is asked for, in OpenAI's API, which vLLM supports."""
        schema = {
            "type": "object",
            "properties": {RATING: {"type": ["number", "string"], "enum": self.scale}},
            "required": [RATING],
            "additionalProperties": False,
        }
        if self.rubric is not None:
            schema = verdict_schema(len(criteria))
        named = {"name": RATING, "strict": True, "schema": schema}
        return {"type": "json_schema", "json_schema": named}

    @property
    def _address(self) -> str:
        """The address of the server without user, password and query, which may be secret."""
        return str(self.url).rpartition("@")[2].partition("?")[0]

    async def _post(self, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return the status and the content of a reply, which is read only up to the limit."""
        content = bytearray()
        async with self._client.stream("POST", "chat/completions", json=body) as reply:
            # The raw bytes are read, because a compressed reply may unpack to any size.
            async for part in reply.aiter_raw():
                content += part
                if len(content) > LARGEST_REPLY:
                    break
        return reply.status_code, bytes(content)

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(int(self.requests))

    @cached_property
    def _client(self) -> Any:
        import httpx

        key = os.environ.get("OPENAI_API_KEY")
        url = str(self.url)
        headers = {"Accept-Encoding": "identity"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        return httpx.AsyncClient(
            base_url=url,
            headers=headers,
            limits=httpx.Limits(max_connections=None),
            timeout=None,
            # A proxy in the environment is used only for https. A server within the cluster, which
            # usually has http, is reached directly.
            trust_env=url.startswith("https"),
        )

    def value_of(self, choice: Mapping[str, Any]) -> float | None:
        """Return the value of a reply; None if it has no word of the scale.

        The text of the reply decides which word it is (`judge_text`). If the first token of the
        rating is the same word, and its probability is above 0, the result is the expected value.
        A token may be only the first part of a longer word, as 1 is of 10. Its probability is
        therefore used only if all words that begin like this are tokens themselves.

        Args:
          choice: the first entry of `choices` in a chat completion.
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
            return sum(share * values[other] for other, share in shares.items()) / total
        # If the reply was cut off, its word may be the beginning of a longer word.
        longer = any(other.startswith(word) and other != word for other in values)
        return None if cut and longer else values[word]

    def _shares(self, tokens: list[Any], word: str) -> dict[str, float]:
        """Return the probability of each word of the scale in place of the token `word`.

        This is the token that is equal to `word`, after the thought and the last colon of the
        reply. The result is empty if there is no such token, or if a token may be only a part of a
        word.
        """
        alternatives: Any = []
        for token in tokens:
            text = token["token"]
            if ":" in text or END_THINK in text:
                alternatives = []
            elif not alternatives and spelled(text) == word:
                alternatives = token["top_logprobs"]
        shares: dict[str, float] = {}
        for token in alternatives:
            other = spelled(token["token"])
            if other in self.values:
                shares[other] = shares.get(other, 0.0) + math.exp(token["logprob"])
        missing = self.values.keys() - shares.keys()
        pieces = any(longer.startswith(piece) for piece in shares for longer in missing)
        return {} if pieces else shares
