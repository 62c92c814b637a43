"""The key with which verl names a row of a batch."""

from __future__ import annotations

from typing import NamedTuple


class RowKey(NamedTuple):
    """The key ``{uid}_{session}_{output}`` (verl/trainer/ppo/v1/agent_loop_tq.py)."""

    uid: str  # the uid of the prompt, which may contain underscores
    session: int  # the number of the rollout among those of the prompt; verl calls it a session
    output: int  # the number of the output among those of the session

    @classmethod
    def parse(cls, key: str) -> RowKey:
        """Parse a key; raise ValueError for any other text.

        >>> RowKey.parse("a_b_0_12")
        RowKey(uid='a_b', session=0, output=12)
        """
        try:
            uid, session, output = key.rsplit("_", 2)
            return cls(uid, int(session), int(output))
        except ValueError:
            expected = "{uid}_{session}_{output}"
            raise ValueError(f"row key: expected {expected}, found {key!r}") from None

    def __str__(self) -> str:
        return f"{self.uid}_{self.session}_{self.output}"


def uid_of(name: str) -> str:
    """Return the uid of the prompt in a key. A name that is not a key is returned as a uid.

    >>> uid_of("a_b_0_12"), uid_of("question_7")
    ('a_b', 'question_7')
    """
    try:
        return RowKey.parse(name).uid
    except ValueError:
        return name
