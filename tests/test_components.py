"""The declaration of a reward's components: how it is attached, read and refused."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from gdpo_verl.rewards import Component, declared_components, declares


def test_names_and_components_may_be_mixed_and_keep_their_order() -> None:
    @declares("b", Component("a", 0, 1, optional=True))
    def reward() -> None: ...

    assert declared_components(reward) == (
        Component("b", None, None, optional=False),
        Component("a", 0, 1, optional=True),
    )


def test_the_function_stays_what_it_was() -> None:
    def reward(x: int) -> int:
        return x + 1

    assert declares("a")(reward) is reward
    assert reward(1) == 2


def test_an_async_function_stays_async() -> None:
    @declares(Component("a", 0, 1))
    async def reward(x: int) -> dict[str, int]:
        return {"score": x, "a": x}

    assert inspect.iscoroutinefunction(reward)  # by this verl decides whether to await it
    assert [component.name for component in declared_components(reward)] == ["a"]
    assert asyncio.run(reward(1)) == {"score": 1, "a": 1}


def test_a_class_declares_by_its_attribute() -> None:
    class Manager:
        components = ("a", Component("b", -3, 3))

    assert declared_components(Manager) == (Component("a"), Component("b", -3, 3))


@pytest.mark.parametrize("reward", [print, None, object()], ids=["built-in", "None", "object"])
def test_what_declares_nothing_has_no_components(reward: object) -> None:
    assert declared_components(reward) == ()


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param(["a", "a"], r"expected distinct names .*found \['a', 'a'\]", id="twice"),
        *[
            pytest.param([name], rf"components: '{name}' cannot be the name", id=name)
            for name in ("score", "reward", "input", "output", "gts", "uid", "step")
        ],
        pytest.param(["my_advantage"], r"'my_advantage' cannot be", id="a column of ours"),
        pytest.param(["a", 3], r"expected names or Component objects, found \['a'", id="number"),
    ],
)
def test_a_bad_declaration_is_refused_where_it_stands(entries: list, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        declares(*entries)(lambda: None)
