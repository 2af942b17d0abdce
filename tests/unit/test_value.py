"""Values are frozen, compared by content, and strict about their fields."""

from __future__ import annotations

import pickle

import pytest

from staddle._value import Value


class Point(Value):
    x: int
    y: int = 2
    _private: int = 9


class Point3(Point):
    z: int = 3


class Positive(Value):
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("not positive")
        self._set("number", int(self.number))


def test_fields_come_by_position_by_name_and_by_default() -> None:
    assert (Point(1).x, Point(1).y) == (1, 2)
    assert Point(1, 5) == Point(x=1, y=5) == Point(1, y=5)


def test_a_subclass_adds_its_fields_after_those_it_has() -> None:
    assert Point3(1, 2, 4).z == 4
    assert Point3(1) == Point3(1, 2, 3)


def test_an_annotation_with_an_underscore_is_no_field() -> None:
    with pytest.raises(TypeError, match="unknown field '_private'"):
        Point(1, _private=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "needs x"),
        ((1, 2, 3), {}, "takes 2 values"),
        ((1,), {"x": 2}, "twice"),
        ((1,), {"q": 2}, "unknown"),
    ],
)
def test_wrong_fields_are_errors(args: tuple[int, ...], kwargs: dict[str, int], problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        Point(*args, **kwargs)


def test_it_cannot_be_changed() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match="frozen"):
        point.x = 5  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        del point.x
    with pytest.raises(AttributeError, match="frozen"):
        point.other = 5  # type: ignore[attr-defined]
    assert point == Point(1)


def test_replace_gives_a_new_value_and_validates_again() -> None:
    point = Point(1)
    assert point.replace(y=7) == Point(1, 7)
    assert point == Point(1)
    with pytest.raises(TypeError):
        point.replace(q=1)
    with pytest.raises(ValueError, match="not positive"):
        Positive(1).replace(number=-1)


def test_validation_runs_at_construction_and_may_normalise() -> None:
    with pytest.raises(ValueError, match="not positive"):
        Positive(0)
    assert type(Positive(True).number) is int


def test_equality_and_hash_are_by_content_and_type() -> None:
    assert Point(1) == Point(1)
    assert hash(Point(1)) == hash(Point(1))
    assert len({Point(1), Point(1), Point(2)}) == 2
    assert Point(1) != Point3(1)
    assert Point(1) != (1, 2)


def test_repr_can_be_read() -> None:
    assert repr(Point(1)) == "Point(x=1, y=2)"


def test_as_dict_is_plain_data_all_the_way_down() -> None:
    class Box(Value):
        items: object

    box = Box(({"a": Point(1)}, [Point(2)], frozenset({3})))
    assert box.as_dict() == {"items": [{"a": {"x": 1, "y": 2}}, [{"x": 2, "y": 2}], [3]]}


def test_a_hash_is_not_taken_along_to_another_process() -> None:
    before = Point(1, 2)
    assert hash(before) == hash(Point(1, 2))
    again = pickle.loads(pickle.dumps(before))  # noqa: S301 - our own
    assert again == before
    assert "_hash" not in vars(again)
