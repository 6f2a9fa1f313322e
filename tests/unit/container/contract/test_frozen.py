"""Our frozen dataclasses behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from container.contract import frozen


def classes(dataclass: Callable[..., Any]) -> tuple[type[Any], ...]:
    """The same classes, made by a decorator."""

    @dataclass(frozen=True)
    class Point:
        x: float
        y: float = 0.0
        note: str = dataclasses.field(default="", compare=False, repr=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "x", abs(self.x))

    @dataclass(frozen=True, kw_only=True)
    class Named(Point):
        name: str
        tags: list[str] = dataclasses.field(default_factory=list, compare=False)
        kind: str = dataclasses.field(default="named", init=False)

    @dataclass(frozen=True)
    class Own:
        x: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

        def __hash__(self) -> int:
            return 7

        def __repr__(self) -> str:
            return "own"

    class Plain(Point):
        pass

    return Point, Named, Own, Plain


STANDARD, OURS = classes(dataclasses.dataclass), classes(frozen.dataclass)
ARGUMENTS: list[tuple[int, tuple[Any, ...], dict[str, Any]]] = [
    (0, (1.0,), {}),
    (0, (-1.0, 2.0), {"note": "a"}),
    (0, (1.0,), {"note": "b"}),
    (0, (1.0, math.nan), {}),
    (1, (1.0,), {"name": "n"}),
    (1, (1.0,), {"name": "n", "tags": ["t"]}),
    (2, (1,), {}),
    (2, (2,), {}),
    (3, (1.0,), {}),
]


def values(kinds: tuple[type[Any], ...]) -> list[Any]:
    return [kinds[kind](*args, **options) for kind, args, options in ARGUMENTS]


def test_they_are_equal_hashed_and_shown_as_the_standard_ones() -> None:
    standard, ours = values(STANDARD), values(OURS)
    for other, one in zip(standard, ours, strict=True):
        assert repr(one) == repr(other) and hash(one) == hash(other)
        assert dataclasses.asdict(one).keys() == dataclasses.asdict(other).keys()
        assert [one == another for another in ours] == [other == another for another in standard]
    assert [inspect.signature(kind) for kind in OURS] == [inspect.signature(kind) for kind in STANDARD]
    assert OURS[0].__match_args__ == STANDARD[0].__match_args__ == ("x", "y", "note")


@pytest.mark.parametrize("kinds", [STANDARD, OURS])
def test_no_field_is_changed_deleted_or_added(kinds: tuple[type[Any], ...]) -> None:
    one = kinds[1](1.0, name="n")
    for name in ("x", "name", "tags", "kind", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(one, name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(one, name)
    assert dataclasses.replace(one, name="m") == kinds[1](1.0, name="m") != one
    plain = kinds[3](1.0)  # a subclass without the decorator has attributes of its own
    plain.cached = 1
    del plain.cached
    with pytest.raises(dataclasses.FrozenInstanceError):
        plain.x = 2.0
    assert copy.deepcopy(one) == one
    for missing in ({}, {"name": "n", "more": 1}):
        with pytest.raises(TypeError):
            kinds[1](1.0, **missing)


@pytest.mark.parametrize("above", [dataclasses.dataclass, frozen.dataclass])
@pytest.mark.parametrize("below", [dataclasses.dataclass, frozen.dataclass])
def test_either_decorator_makes_subclasses_of_the_others_classes(
    above: Callable[..., Any], below: Callable[..., Any]
) -> None:
    """As a backend of another package does, whose leftovers have fields of their own."""

    @above(frozen=True, kw_only=True)
    class Leftover:
        name: str

    @below(frozen=True, kw_only=True)
    class Own(Leftover):
        pid: int

    one = Own(name="a", pid=3)
    assert one == Own(name="a", pid=3) != Own(name="a", pid=4) and hash(one) == hash(Own(name="a", pid=3))
    assert dataclasses.replace(one, pid=4).pid == 4 and repr(one).endswith("Own(name='a', pid=3)")
    for name in ("name", "pid"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, name, "b")
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclasses.dataclass(type("Open", (Leftover,), {}))


def test_a_value_of_the_package_can_be_pickled() -> None:
    from container.contract.failures import Cause, Failure

    failure = Failure(cause=Cause.PROCESS, message="no data", host="algo-1")
    assert pickle.loads(pickle.dumps(failure)) == failure
