"""The metrics that we log, with their meanings and units, and suggestions for misspelt names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SCORES = "rewards/"
"""The first part of the keys of metrics that describe a reward and exist for any estimator."""
DECOMPOSITION = "gdpo/"
"""The first part of the keys of metrics that describe how rewards become advantages."""


@dataclass(frozen=True)
class Metric:
    """A metric that we log.

    Attributes:
      key: the key in the trackers. `<component>`, `<variant>` or `<code>` stands for the name of a
        component, a variant, or a code of `parse_error`.
      meaning: the formula. docs/metrics.md has the same text, and explains the symbols.
      unit: "reward" for the unit of the reward itself, "share" for a number from 0 to 1,
        "advantages" for a number of advantages, or "none".
    """

    key: str
    meaning: str
    unit: str

    @property
    def last(self) -> str:
        """The part of the key after the last slash."""
        return self.key.rpartition("/")[2]

    def of(self, name: object) -> str:
        """Return the key of this metric for one component, variant or code.

        >>> MEAN.of("format")
        'rewards/format/mean'
        """
        begin, end = re.split("<.+>", self.key)
        return f"{begin}{name}{end}"

    def name_in(self, key: str) -> str | None:
        """Return the component, variant or code in a key of this metric; None for other keys.

        >>> MEAN.name_in("rewards/format/mean"), MEAN.name_in("rewards/format/std")
        ('format', None)
        """
        begin, end = re.split("<.+>", self.key)
        if key.startswith(begin) and key.endswith(end) and len(key) > len(begin + end):
            return key[len(begin) : len(key) - len(end)]
        return None


# Metrics of each component.
MEAN = Metric("rewards/<component>/mean", "mean of r over the scored responses", "reward")
STD = Metric(
    "rewards/<component>/std",
    "unbiased standard deviation of r over the scored responses",
    "reward",
)
MIN = Metric("rewards/<component>/min", "smallest r over the scored responses", "reward")
MAX = Metric("rewards/<component>/max", "largest r over the scored responses", "reward")
SATURATION = Metric(
    "gdpo/<component>/saturation", "(mean − low) / (high − low) of a declared finite range", "share"
)
CONSTANT_GROUPS = Metric(
    "gdpo/<component>/constant_groups",
    "share of the groups with a scored r in which it does not vary",
    "share",
)
UNSCORED = Metric(
    "gdpo/<component>/unscored", "share of responses without r (`None`, NaN, absent)", "share"
)
ADVANTAGE_SHARE = Metric(
    "gdpo/<component>/advantage_share",
    "Σ abs(c) of this component / Σ abs(c) of all components",
    "share",
)
INFLUENCE = Metric(
    "gdpo/<component>/influence",
    "Cov(A, z) over the responses that have an advantage",
    "none",
)
WEIGHT = Metric(
    "gdpo/<component>/weight",
    "w at this step, if it has a [schedule](weights.md#schedules)",
    "none",
)
TURN_SPREAD = Metric(
    "gdpo/<component>/turn_spread",
    "standard deviation of r over the turns; mean over the responses with several turns",
    "reward",
)
CRITERIA_MET_BY_ALL = Metric(
    "gdpo/<component>/criteria_met_by_all",
    "share of the criteria of all groups that are above 0 and do not vary in their group",
    "share",
)
CRITERIA_MET_BY_NONE = Metric(
    "gdpo/<component>/criteria_met_by_none",
    "share of the criteria of all groups that are 0 or below and do not vary in their group",
    "share",
)
CRITERIA_VARYING = Metric(
    "gdpo/<component>/criteria_varying", "share of the criteria that vary in their group", "share"
)
ALL_CRITERIA_MET = Metric(
    "gdpo/<component>/all_criteria_met",
    "share of responses in which each scored criterion of positive weight is above 0",
    "share",
)

# Metrics of the whole batch.
SIGN_CONFLICTS = Metric(
    "gdpo/sign_conflicts", "share of responses with one c > τ and another < −τ", "share"
)
NOISE_FLOOR = Metric("gdpo/noise_floor", "variance of Σ c within a group, mean over groups", "none")
DISTINCT_GDPO = Metric(
    "gdpo/distinct_advantages/gdpo", "distinct Σ c in a group, on average", "advantages"
)
DISTINCT_GRPO = Metric(
    "gdpo/distinct_advantages/grpo",
    "distinct advantages that GRPO computes from the score in a group, on average",
    "advantages",
)
FAILED_SESSIONS = Metric(
    "gdpo/failed_sessions", "share of rollouts that ended with an exception", "share"
)
REWARD_ERRORS = Metric(
    "gdpo/reward_errors",
    "share of responses for which verl's manager `rate_limited` reports a timeout or an error",
    "share",
)
SINGLETON_GROUPS = Metric(
    "gdpo/singleton_groups", "share of groups with a single response", "share"
)
UNSCORED_ROWS = Metric(
    "gdpo/unscored_rows", "share of responses with no scored component, after conditions", "share"
)
WHITEN_SHIFT = Metric(
    "gdpo/whiten_shift",
    "−mean / deviation of Σ c in whitening: what becomes of a 0 (GDPO only)",
    "none",
)
WHITEN_GAIN = Metric(
    "gdpo/whiten_gain",
    "largest absolute weight / deviation of Σ c in whitening; 0 where only rounding is left "
    "(GDPO only)",
    "none",
)
PHANTOM_GROUPS = Metric(
    "gdpo/phantom_groups",
    "share of groups with a constant outcome in which another reward with a weight other than 0 "
    "varies, without the groups that a gate removes",
    "share",
)
GATED_GROUPS = Metric(
    "gdpo/gated_groups",
    "share of groups that `algorithm.gdpo.gate` leaves without an advantage",
    "share",
)

# Metrics that compare a variant with GDPO and GRPO.
ZERO_ROWS = Metric(
    "gdpo/variant/<variant>/zero_rows", "share of responses with advantage 0", "share"
)
AGREES_WITH_GDPO = Metric(
    "gdpo/variant/<variant>/agrees_with_gdpo",
    "correlation with GDPO's advantages; absent where either is constant",
    "none",
)
AGREES_WITH_GRPO = Metric(
    "gdpo/variant/<variant>/agrees_with_grpo",
    "correlation with GRPO's advantages; absent where either is constant",
    "none",
)

# Metrics of a reward function that returns `parse_error`.
PARSE_ERROR_SHARE = Metric(
    "gdpo/parse_error/share",
    "share of the responses with a code for which the code is not 0",
    "share",
)
PARSE_ERROR_CODE = Metric(
    "gdpo/parse_error/code_<code>",
    "share of the responses with a code that have this code; logged where it occurs",
    "share",
)

METRICS = (
    MEAN,
    STD,
    MIN,
    MAX,
    SATURATION,
    CONSTANT_GROUPS,
    UNSCORED,
    ADVANTAGE_SHARE,
    INFLUENCE,
    WEIGHT,
    TURN_SPREAD,
    CRITERIA_MET_BY_ALL,
    CRITERIA_MET_BY_NONE,
    CRITERIA_VARYING,
    ALL_CRITERIA_MET,
    SIGN_CONFLICTS,
    NOISE_FLOOR,
    DISTINCT_GDPO,
    DISTINCT_GRPO,
    FAILED_SESSIONS,
    REWARD_ERRORS,
    SINGLETON_GROUPS,
    UNSCORED_ROWS,
    WHITEN_SHIFT,
    WHITEN_GAIN,
    PHANTOM_GROUPS,
    GATED_GROUPS,
    ZERO_ROWS,
    AGREES_WITH_GDPO,
    AGREES_WITH_GRPO,
    PARSE_ERROR_SHARE,
    PARSE_ERROR_CODE,
)


def did_you_mean(word: Any, known: Iterable[Any]) -> str:
    """Return " Did you mean …?" when a known name is close to `word`, else an empty string."""
    spellings = {str(name).lower(): str(name) for name in known}
    close = difflib.get_close_matches(str(word).lower(), spellings, n=1)
    return f" Did you mean {spellings[close[0]]!r}?" if close else ""


def refuse_unknown(given: Iterable[Any], known: Sequence[str], where: str) -> None:
    """Raise ValueError for the first key of the section `where` that is not in `known`."""
    for key in given:
        if key not in known:
            raise ValueError(
                f"{where}.{key}: unknown key; known are {list(known)}.{did_you_mean(key, known)}"
            )
