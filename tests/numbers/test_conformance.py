"""The conformance vectors: who conforms, and the settings that give another project's numbers."""

import json
import math
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from gdpo_verl.advantage import VARIANTS
from gdpo_verl.conformance import assert_conforms, check, vectors

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts/dev"))
import conformance  # noqa: E402

PAGE = (ROOT / "docs/conformance.md").read_text(encoding="utf-8")
SCHEMA = json.loads((ROOT / "gdpo_verl/conformance/schema.json").read_text())


def test_the_committed_vectors_are_what_the_decimals_give(tmp_path):
    conformance.write(tmp_path / "vectors.json")
    assert (tmp_path / "vectors.json").read_bytes() == conformance.VECTORS.read_bytes()


def test_the_vectors_keep_their_schema_and_have_each_variant():
    pytest.importorskip("jsonschema").validate(vectors(), SCHEMA)
    variants = {each["settings"].get("variant", "gdpo") for each in vectors()["vectors"]}
    assert variants == VARIANTS.keys()


def test_the_decimals_of_another_profile_agree_with_numbers_by_hand():
    # z is ±1/sqrt(2) for r1 in both groups, and for r2 in the second group. The sums are divided by
    # their deviation sqrt(5/3) plus TRL's epsilon. Numbers of this package by hand are in
    # test_advantage.py.
    vector = {"rewards": [[1, 0], [0, 0], [1, 1], [0, 0]], "groups": [0, 0, 1, 1]}
    vector |= {"token_counts": [1, 1, 1, 1], "weights": [1.0, 1.0], "settings": {}}
    found = conformance.advantages(vector, vectors()["profiles"]["trl"])
    assert found == pytest.approx([0.54768, -0.54768, 1.09536, -1.09536], abs=6e-6)


@pytest.mark.parametrize("name", ["gdpo-verl", "gdpo-verl, `whiten=sequence`"])
def test_the_row_of_this_package_on_the_page_is_what_it_computes(name):
    line = " | ".join(conformance.table_row(name))
    assert f"\n| {line} |\n" in PAGE
    assert set(line.split(" | ")[2:]) == {"✔"}


FEATURES = ("derived", "by_turn", "nested_conditions", "targets", "by_criterion")


def test_this_package_conforms_with_each_variant_and_feature():
    pytest.importorskip("omegaconf")
    assert_conforms(conformance.ours, features=FEATURES)
    assert_conforms(
        partial(conformance.ours, whiten="sequence"),
        "sequences",
        features=[
            "derived",
            "nested_conditions",
            "by_criterion",
        ],
    )
    results = check(conformance.ours, features=FEATURES)
    tried = [each for each in results if each.found is not None]
    assert len(tried) == len(vectors()["vectors"])


def test_vectors_of_a_feature_are_skipped_for_an_implementation_without_it():
    asked = [each.vector for each in check(conformance.ours)]
    of_features = [vector for vector in vectors()["vectors"] if "feature" in vector]
    assert len(asked) == len(vectors()["vectors"]) - len(of_features)
    assert not any("feature" in vector for vector in asked)


@pytest.mark.parametrize(
    ("profile", "features"),
    [("tokens", ["by-turn"]), ("tokens", "by_turn"), ("sequences", ["by_turn"])],
)
def test_a_feature_without_vectors_is_rejected(profile, features):
    with pytest.raises(ValueError, match=r"features: expected a list of those of profile"):
        assert_conforms(conformance.ours, profile, features=features)


def test_turns_belong_to_their_responses():
    pytest.importorskip("omegaconf")

    def flat(*given, **settings):
        found = conformance.ours(*given, **settings)
        return [value for turns in found for value in turns] if "credit" in settings else found

    def tuples(*given, **settings):
        found = conformance.ours(*given, **settings)
        return [tuple(turns) for turns in found] if "credit" in settings else found

    assert_conforms(tuples, features=["by_turn"])
    with pytest.raises(AssertionError, match="2 vectors"):
        assert_conforms(flat, features=["by_turn"])


def test_credit_to_go_by_hand():
    """One group has one reward per turn: 0 then 1; .6 in the only turn; 0 then .5.

    The returns to go at turn 1 are 1, .6, .5: mean .7, deviation sqrt(.07) = .26458. At turn 2 they
    are 1 and .5, so that z = ±.70711. The sums 1.13389 .70711 | -.37796 | -.75593 -.70711 are
    whitened over the five turns, of one token each: mean 0, variance (1.28571 + .5 + .14286 +
    .57143 + .5) / 4 = .75.
    """
    vector = {"rewards": [[[0.0, 1.0]], [[0.6]], [[0.0, 0.5]]], "groups": [0, 0, 0]}
    vector |= {"token_counts": [[1, 1], [1], [1, 1]], "weights": [1.0], "feature": "by_turn"}
    vector |= {"settings": {"credit": "to_go"}}
    found = conformance.advantages(vector, vectors()["profiles"]["tokens"])
    expected = [[1.30931, 0.81650], [-0.43644], [-0.87287, -0.81650]]
    for own, by_hand in zip(found, expected, strict=True):
        assert own == pytest.approx(by_hand, abs=6e-6)


def test_a_vector_that_fails_is_named_with_its_digits():
    def nan(rewards, *given, **settings):
        return [math.nan] * len(rewards)

    def nothing(*given, **settings):
        raise NotImplementedError

    def broken(*given, **settings):
        raise LookupError("no such group")

    message = r"two groups \(two rewards, .*: expected 0\.054\d+ as advantage 0, found nan"
    with pytest.raises(AssertionError, match=message):
        assert_conforms(nan)
    with pytest.raises(AssertionError, match="one reward"):
        assert_conforms(lambda *given, **settings: [])
    with pytest.raises(AssertionError, match=r"one reward \(.*: it raised LookupError: no such g"):
        assert_conforms(broken)
    assert_conforms(nothing)
    with pytest.raises(ValueError, match=r"profile: expected one of \['ms-swift', .*found 'paper'"):
        assert_conforms(nothing, "paper")


# ---------------------------------------------------------------- our settings for the others

DEGENERATE = ("constant 0.1", "cancelling", "nothing scored")


@pytest.mark.parametrize(
    ("profile", "epsilon", "bound"),
    # The other implementation divides by s + e, and this package by sqrt(s² + 1e-8). The results
    # differ by less than e / s and 5e-9 / s².
    [("trl", 1e-4, lambda s: 1e-4 / s), ("ms-swift", 1e-8, lambda s: 1e-8 / s + 5e-9 / s**2)],
)
def test_the_settings_that_imitate_another_project_give_its_advantages_within_the_pages_bound(
    profile, epsilon, bound
):
    ours = partial(conformance.ours, whiten="sequence", epsilon=epsilon)
    checked = 0
    for result in check(ours, profile):
        vector = result.vector
        if result.found is None or vector["name"] in DEGENERATE:
            continue
        given = (vector[key] for key in ("rewards", "groups", "token_counts", "weights"))
        sums = torch.tensor(conformance.ours(*given, whiten="none", epsilon=epsilon)).double()
        scored = [set(row) != {None} for row in vector["rewards"]]
        s = float(sums[scored].std())
        found, expected = torch.tensor([result.found, result.expected], dtype=torch.float64)
        assert_close(found, expected, rtol=bound(s), atol=1e-9)
        checked += 1
    assert checked > 8
