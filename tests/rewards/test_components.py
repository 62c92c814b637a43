"""The declaration of a reward's components: how it is attached, read and refused."""

import pytest

from gdpo_verl.rewards import Component, declared_components, declares


def test_the_function_stays_what_it_was():
    async def reward(x):
        return x + 1

    assert declares("a")(reward) is reward


def test_a_class_declares_by_its_attribute():
    class Manager:
        components = ("a", Component("b", -3, 3))

    assert declared_components(Manager) == (Component("a"), Component("b", -3, 3))
    assert declared_components(type("One", (), {"components": "a"})) == (Component("a"),)


@pytest.mark.parametrize(
    ("entries", "options", "expected"),
    [
        (["a"], {"by_turn": "b"}, (Component("a"), Component("b", by_turn=True))),
        ([Component("a", 0, 1)], {"by_turn": ("a",)}, (Component("a", 0, 1, by_turn=True),)),
        (
            [Component("a", 0, 1)],
            {"by_criterion": ("b", "a")},
            (Component("a", 0, 1, by_criterion=True), Component("b", by_criterion=True)),
        ),
    ],
)
def test_components_may_be_declared_by_turn_or_by_criterion(entries, options, expected):
    assert declared_components(declares(*entries, **options)(lambda: None)) == expected


def test_no_component_is_by_turn_and_by_criterion():
    with pytest.raises(ValueError, match="'calls': it is declared by turn and by criterion"):
        declares(by_turn="calls", by_criterion="calls")


@pytest.mark.parametrize("reward", [print, None])
def test_what_declares_nothing_has_no_components(reward):
    assert declared_components(reward) == ()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["a", Component("a")], r"expected distinct names .*found \['a', 'a'\]"),
        (["step"], "'step' cannot be the name"),
        (["my_advantage"], "'my_advantage' cannot be"),  # a column of ours
        (["a", 3], r"expected names or Component objects, found \['a'"),
    ],
    ids=str,
)
def test_a_bad_declaration_is_refused_where_it_stands(entries, expected):
    with pytest.raises(ValueError, match=f"^components: {expected}"):
        declares(*entries)(lambda: None)


@pytest.mark.parametrize(
    ("low", "high"), [(1, 0), (0, float("inf")), (float("nan"), 1), ("0", 1), ((0, 1), None)]
)
def test_a_range_that_is_none_is_refused(low, high):
    with pytest.raises(ValueError, match=r"^component 'a': expected .* found low="):
        Component("a", low, high)
