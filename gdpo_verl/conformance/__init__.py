"""Test vectors, with which any implementation of GDPO can be compared.

    from gdpo_verl.conformance import assert_conforms
    assert_conforms(my_function)                    # GDPO whitened over tokens
    assert_conforms(my_function, profile="trl")     # TRL's epsilons, whitened over sequences

A test vector has rewards, groups, token counts, weights and settings, and the expected advantages
in float64. It also has a name, and a text that says what it tests. The vectors are in vectors.json,
and schema.json describes this file.

Implementations may differ in the epsilons, in the whitening, and in the treatment of rewards that
are not scored. A *profile* is a name for one set of these choices. A *feature* is a part of GDPO
that an implementation may lack, such as per-turn credit. Vectors of a feature are tried only if the
caller says that the function has the feature.

scripts/dev/conformance.py writes vectors.json. Its arithmetic shares no code with gdpo_verl.
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
    """The result of a function for one vector.

    Attributes:
      vector: the entry of the vector in vectors.json.
      expected: the expected advantages: one for each response, or with per-turn credit one for
        each turn of the responses.
      found: the advantages that the function returned; None if it raised an exception.
      fault: a text that says what is wrong with the returned advantages; empty if they conform.
    """

    vector: dict[str, Any]
    expected: list[float]
    found: list[float] | None
    fault: str

    @property
    def conforms(self) -> bool:
        """True if all advantages lie within the tolerance.

        It is also true if the function raised NotImplementedError.
        """
        return not self.fault


@cache
def vectors() -> dict[str, Any]:
    """Return the content of vectors.json: its profiles and its vectors."""
    text = files(__name__).joinpath("vectors.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def check(
    function: Advantages,
    profile: str = "tokens",
    tolerance: float = 0.0,
    features: Collection[str] = (),
) -> Iterator[Result]:
    """Call a function with every vector of a profile, and compare the advantages.

    The function is called as ``function(rewards, groups, token_counts, weights, **settings)``:

    - rewards: B lists of K rewards; None where a reward is not scored.
    - groups: B hashables.
    - token_counts: B numbers.
    - weights: K numbers.
    - settings: for some vectors `variant`, `ranges`, `conditions`, or settings of a variant.

    It returns B advantages. It raises NotImplementedError for a setting that it does not support.

    These are the features, with the arguments that they add:

    - "derived": the settings have a mapping `derived`. The function computes one more component
      from each complete group, and appends it as the last one. In the mapping, `function` is
      relative_length or rank (`gdpo_verl.rewards.derived`), and the other entries are its
      arguments, which refer to components by their columns.
    - "by_turn": a reward may be a list, with one number for each turn. Then the token counts are
      lists, too, and so is the result. The setting `credit` is to_go or turn.
    - "nested_conditions": a reward may have several conditions, with the limits `at_least`,
      `at_most` and `equals`. Conditions come after those that they depend on.
    - "targets": the variant sa_mrpo has the settings `targets`, with a number or None for each
      component, and `targets_floor`.
    - "by_criterion": a reward may be a mapping from criteria to numbers or to
      ``{"value": …, "weight": …}``. The setting `criteria` is decoupled or sum.

    Args:
      function: the function to test.
      profile: the name of a profile in vectors.json.
      tolerance: the largest allowed error of an advantage, if it is larger than the tolerance of
        the vector. For float32, 1e-5 is suitable.
      features: the features that the function has. Vectors of other features are left out.

    Raises:
      ValueError: there is no such profile, or the profile has no vectors of a feature.
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
            pass  # a function may lack conditions or variants, and conform in everything else
        except Exception as error:  # the other vectors are tried nevertheless
            fault = f"it raised {type(error).__name__}: {error}"
        yield Result(vector, list(chain(*wanted)), advantages, fault)


def _by_response(advantages: Sequence[Any]) -> list[list[float]]:
    """Return a list of advantages for each response; a response without turns has one advantage."""
    responses: list[list[float]] = []
    for value in advantages:
        turns = value if isinstance(value, Sequence) else [value]
        responses.append([float(turn) for turn in turns])
    return responses


def _fault(
    wanted: Sequence[Sequence[float]], returned: Sequence[Sequence[float]], tolerance: float
) -> str:
    """Describe the first wrong advantage; the text is empty if all are right."""
    counts = [len(turns) for turns in wanted]
    returned_counts = [len(turns) for turns in returned]
    if returned_counts != counts:
        return f"expected {counts} advantages for the responses, found {returned_counts}"
    pairs = zip(chain(*wanted), chain(*returned), strict=True)
    for place, (expected, value) in enumerate(pairs):
        if not abs(value - expected) <= tolerance:  # written this way, it is also true for NaN
            return f"expected {expected} as advantage {place}, found {value}"
    return ""


def assert_conforms(
    function: Advantages,
    profile: str = "tokens",
    tolerance: float = 0.0,
    features: Collection[str] = (),
) -> None:
    """Raise AssertionError if a function fails a vector of the profile.

    The error names each vector that the function fails. The arguments are those of `check`.
    """
    results = check(function, profile, tolerance, features)
    failed = [result for result in results if not result.conforms]
    lines = []
    for result in failed:
        lines.append(f"{result.vector['name']} ({result.vector['about']}): {result.fault}")
    assert not failed, f"{len(failed)} vectors of profile {profile!r}:\n" + "\n".join(lines)
