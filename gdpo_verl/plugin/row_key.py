"""verl's name of a rollout's row."""

from __future__ import annotations

from typing import NamedTuple


class RowKey(NamedTuple):
    """The key ``{uid}_{session}_{output}`` (verl/trainer/ppo/v1/agent_loop_tq.py)."""

    uid: str  # of the prompt; it may hold underscores itself
    session: int  # which rollout of the prompt
    output: int  # which output of the session

    @classmethod
    def parse(cls, key: str) -> RowKey:
        """Read a key; ValueError where it is none.

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
    """The prompt's uid in a key; a name that is not a key is a uid itself.

    >>> uid_of("a_b_0_12"), uid_of("question_7")
    ('a_b', 'question_7')
    """
    try:
        return RowKey.parse(name).uid
    except ValueError:
        return name
