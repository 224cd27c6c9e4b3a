"""Which texts a value may have had before its types got fields with defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field

from holdfast.codec import encode_sorted, texts_before_fields


@dataclass
class Line:
    article: str
    count: int = 1
    tags: list[str] = field(default_factory=list)


class Order(msgspec.Struct, rename="camel"):
    order_id: str
    all_lines: list[Line] = []
    gift_note: str | None = None


class Address(BaseModel):
    street: str
    country_code: str = Field("ch", alias="country")


class Point(NamedTuple):
    x: int
    y: int = 0
    z: int = 0


class Packed(msgspec.Struct, array_like=True, tag="packed"):
    x: int
    y: int = 0


@dataclass(frozen=True, order=True)
class Tag:
    word: str
    color: str = "red"


class Size(Enum):
    SMALL = 1


def before(value: object) -> list[Any]:
    return [msgspec.json.decode(each) for each in texts_before_fields(encode_sorted(value), value)]


def test_fields_that_have_their_defaults_are_left_out_one_by_one_and_together() -> None:
    assert before(Line("lamp")) == [
        {"article": "lamp", "tags": []},
        {"article": "lamp", "count": 1},
        {"article": "lamp"},
    ]


def test_the_order_of_the_other_fields_stays() -> None:
    value = Line("lamp", tags=["x"])
    assert list(texts_before_fields(encode_sorted(value), value)) == [
        '{"article":"lamp","tags":["x"]}'
    ]


def test_a_field_that_some_value_of_the_class_has_is_not_left_out() -> None:
    assert before([Line("lamp", 2, ["x"]), Line("vase", 1, ["x"])]) == []


def test_fields_are_found_at_any_depth_and_by_their_written_names() -> None:
    value = {"order": (Order("7", [Line("lamp", 3)]), Address(street="high street"))}
    address = {"street": "high street", "country": "ch"}
    order = {"orderId": "7", "allLines": [{"article": "lamp", "count": 3, "tags": []}]}
    assert {"order": [order, address]} in before(value)
    assert {
        "order": [
            {"orderId": "7", "allLines": [{"article": "lamp", "count": 3}], "giftNote": None},
            {"street": "high street"},
        ]
    } in before(value)


@dataclass
class Box:
    size: int = 1
    note: str = ""


@dataclass
class Parcel:
    box: Box = field(default_factory=Box)
    boxes: list[Box] = field(default_factory=lambda: [Box(2)])
    by_name: dict[str, Box] = field(default_factory=lambda: {"a": Box(3)})
    spare: Box | str | None = field(default_factory=Box)


class Letter(BaseModel):
    box: Box = Field(default_factory=Box)


def test_fields_are_left_out_of_values_that_are_defaults_themselves() -> None:
    without = {
        "box": {"size": 1},
        "boxes": [{"size": 2}],
        "by_name": {"a": {"size": 3}},
        "spare": {"size": 1},
    }
    assert without in before(Parcel())
    assert {"x": [without, None]} in before({"x": [Parcel(), None]})
    assert {**without, "box": {"size": 7}} in before(Parcel(Box(7)))
    assert {"box": {"size": 1}} in before(Letter())
    assert before(Parcel(Box(7, "fragile")))[0] == {
        "box": {"size": 7, "note": "fragile"},
        "by_name": {"a": {"size": 3, "note": ""}},
        "spare": {"size": 1, "note": ""},
    }


def test_a_new_field_may_have_a_default_that_another_new_field_is_not() -> None:
    later = msgspec.defstruct("Later", [("old", Box, Box()), ("new", Box, Box(2))])
    assert {"old": {"note": ""}} in before(later())
    assert {"old": {}} in before(later())


@pytest.mark.parametrize("value", ["text", 3, None, [], {}, {"count": 1}, [Line("a", 2, ["x"])]])
def test_what_has_no_such_fields_has_no_other_text(value: object) -> None:
    assert before(value) == []


def test_a_long_value_is_not_written_very_often() -> None:
    wide = msgspec.defstruct("Wide", [(f"f{place}", int, place) for place in range(50)])
    assert len(list(texts_before_fields(encode_sorted(wide()), wide()))) == 500
    many = ["x" * 1_000_000, wide()]
    assert len(list(texts_before_fields(encode_sorted(many), many))) == 3


@pytest.mark.parametrize(
    ("value", "old"),
    [
        pytest.param(Point(1), [1], id="named tuple"),
        pytest.param(Point(1, 2), [1, 2], id="last of a named tuple"),
        pytest.param([Packed(1), Packed(2)], [["packed", 1], ["packed", 2]], id="array"),
        pytest.param({7: Tag("a")}, {"7": {"word": "a"}}, id="number as key"),
        pytest.param({UUID(int=7): Tag("a")}, {str(UUID(int=7)): {"word": "a"}}, id="UUID as key"),
        pytest.param({Size.SMALL: Tag("a")}, {"1": {"word": "a"}}, id="enum as key"),
        pytest.param({Tag("b"), Tag("a")}, [{"word": "a"}, {"word": "b"}], id="set"),
        pytest.param(frozenset({Tag("b"), Tag("a")}), [{"word": "a"}, {"word": "b"}], id="frozen"),
    ],
)
def test_fields_are_found_in_all_that_holds_values(value: object, old: object) -> None:
    assert old in before(value)
    assert encode_sorted(value) not in texts_before_fields(encode_sorted(value), value)
