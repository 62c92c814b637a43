"""Vectors with which any implementation of GDPO can be compared.

    from gdpo_verl.conformance import assert_conforms
    assert_conforms(my_function)                    # GDPO whitened over tokens
    assert_conforms(my_function, profile="trl")     # TRL's epsilons, whitened over sequences

vectors.json holds rewards, groups, tokens, weights and settings with the advantages to expect, in
float64, and what each vector is about; schema.json describes it. A profile names the choices in
which implementations may differ: the epsilons, where the sum is whitened, and what an unscored
reward is. Vectors of a feature are tried only on a function that is said to have the feature.
scripts/dev/conformance.py writes the file with arithmetic that shares no code with gdpo_verl.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain
from typing import Any

Advantages = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class Result:
    """A vector, and what a function made of it.

    Attributes:
      vector: its entry in vectors.json.
      expected: B advantages, with credit by turn one for each turn of the B responses.
      found: the function's; None where it raised an exception.
      fault: what is wrong with the advantages found, for messages; '' if they conform.
    """

    vector: dict[str, Any]
    expected: list[float]
    found: list[float] | None
    fault: str

    @property
    def conforms(self) -> bool:
        """Each advantage lies within the tolerance, or the function raised NotImplementedError."""
        return not self.fault


@cache
def vectors() -> dict[str, Any]:
    """The content of vectors.json: its profiles and its vectors."""
    text = files(__name__).joinpath("vectors.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def check(
    function: Advantages,
    profile: str = "tokens",
    tolerance: float = 0.0,
    features: Collection[str] = (),
) -> Iterator[Result]:
    """Try every vector of a profile.

    Args:
      function: of (rewards, groups, token_counts, weights, **settings): B lists of K rewards, None
        where not scored; B hashables; B numbers; K numbers; and for some vectors `variant`,
        `ranges`, `conditions` or a variant's own settings. It returns B advantages, and raises
        NotImplementedError for what it does not have.
      profile: of vectors.json.
      tolerance: of an advantage, where it is larger than the vector's: 1e-5, say, for float32.
      features: that the function has. "derived": of the mapping `derived` in the settings it makes
        one more component, the last, of each whole group: `function` is relative_length or rank
        (`gdpo_verl.rewards.derived`) and the others its arguments, components by their column.
        "by_turn": a reward may be a list, one a turn; then the tokens are lists, too, and so is
        what it returns; `credit` is to_go or turn. "nested_conditions": a reward may have several
        conditions, which are in the order of dependence, and whose limits are `at_least`,
        `at_most` and `equals`. "targets": the variant sa_mrpo has `targets`, for each
        component a number or None, and `targets_floor`. "by_criterion": a reward may be a mapping
        of criteria to numbers or ``{"value": …, "weight": …}``; `criteria` is decoupled or sum.
        Vectors of other features are left out.

    Raises:
      ValueError: there is no such profile, or it has no vectors of a feature.
    """
    profiles = vectors()["profiles"]
    if profile not in profiles:
        raise ValueError(f"profile: expected one of {sorted(profiles)}, found {profile!r}")
    of_profile = [vector for vector in vectors()["vectors"] if profile in vector["expected"]]
    offered = {vector["feature"] for vector in of_profile if "feature" in vector}
    if isinstance(features, str) or not offered.issuperset(features):
        raise ValueError(
            f"features: expected a list of those of profile {profile!r}, {sorted(offered)}, "
            f"found {features!r}"
        )
    for vector in of_profile:
        expected = vector["expected"][profile]
        feature = vector.get("feature")
        if feature is not None and feature not in features:
            continue
        wanted = _by_response(expected)
        arguments = [vector[key] for key in ("rewards", "groups", "token_counts", "weights")]
        advantages = None
        fault = ""
        try:
            returned = _by_response(function(*arguments, **vector["settings"]))
            advantages = list(chain(*returned))
            fault = _fault(wanted, returned, max(tolerance, vector["tolerance"]))
        except NotImplementedError:
            pass  # a function without conditions or variants may conform in everything else
        except Exception as error:  # the vectors after this one are tried all the same
            fault = f"it raised {type(error).__name__}: {error}"
        yield Result(vector, list(chain(*wanted)), advantages, fault)


def _by_response(advantages: Sequence[Any]) -> list[list[float]]:
    """The advantages of each response, of one without turns alone."""
    responses: list[list[float]] = []
    for value in advantages:
        turns = value if isinstance(value, Sequence) else [value]
        responses.append([float(turn) for turn in turns])
    return responses


def _fault(
    wanted: Sequence[Sequence[float]], returned: Sequence[Sequence[float]], tolerance: float
) -> str:
    """Say what is wrong with the advantages of the responses; '' if nothing is."""
    counts = [len(turns) for turns in wanted]
    own = [len(turns) for turns in returned]
    if own != counts:
        return f"expected {counts} advantages for the responses, found {own}"
    pairs = zip(chain(*wanted), chain(*returned), strict=True)
    for place, (expected, value) in enumerate(pairs):
        if not abs(value - expected) <= tolerance:  # also for a NaN
            return f"expected {expected} as advantage {place}, found {value}"
    return ""


def assert_conforms(
    function: Advantages,
    profile: str = "tokens",
    tolerance: float = 0.0,
    features: Collection[str] = (),
) -> None:
    """Raise AssertionError, which names each vector that a function fails; see `check`."""
    results = check(function, profile, tolerance, features)
    failed = [result for result in results if not result.conforms]
    lines = []
    for result in failed:
        lines.append(f"{result.vector['name']} ({result.vector['about']}): {result.fault}")
    assert not failed, f"{len(failed)} vectors of profile {profile!r}:\n" + "\n".join(lines)
