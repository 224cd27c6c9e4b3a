"""Values that are checked against the schemas of types: what a type takes is never refused."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
from typing import Any, Literal

import msgspec
import pytest

from holdfast.server.schemas import misfit


class Colour(enum.Enum):
    RED = "red"


class Item(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    count: int = 1


class Order(msgspec.Struct):
    number: int
    items: list[Item] = []
    size: Literal["small", "large"] = "small"
    note: str | None = None
    by: dict[str, Item] = {}
    pair: tuple[int, str] | None = None
    colour: Colour = Colour.RED
    at: dt.datetime | None = None
    price: decimal.Decimal | None = None
    id: uuid.UUID | None = None
    data: bytes = b""
    parts: list[Order] = []
    anything: Any = None


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


FIT: list[tuple[Any, object]] = [
    (Order, {"number": 7}),
    (Order, {"number": 7, "more": 1, "price": 1.5, "at": "2026-01-01T00:00:00Z"}),
    (Order, {"number": 7, "items": [{"name": "a"}], "by": {"x": {"name": "b"}}, "note": None}),
    (Order, {"number": 7, "pair": [1, "a"], "colour": "red", "parts": [{"number": 1}]}),
    (Order, {"number": 7, "data": "aGk=", "id": str(uuid.UUID(int=7)), "anything": [1]}),
    (list[int] | None, None),
    (int | str, "a"),
    (float, 1),
    (Cat | Dog, {"type": "Dog", "tricks": []}),
    (set[int], [1, 1]),
    (dt.timedelta, "PT1S"),
]
UNFIT: list[tuple[Any, object, str]] = [
    (Order, {"number": "7"}, "Expected integer, got string - at `$.number`"),
    (Order, {"number": True}, "Expected integer, got boolean - at `$.number`"),
    (Order, {"number": 7.5}, "Expected integer, got number - at `$.number`"),
    (Order, {}, "Object missing required field `number`"),
    (Order, None, "Expected object, got null - at `$`"),
    (Order, {"number": 1, "items": [{"name": "a"}, {"name": 2}]}, "`$.items[1].name`"),
    (Order, {"number": 1, "items": [{"name": "a", "x": 1}]}, "unknown field `x` - at `$.items[0]`"),
    (Order, {"number": 1, "size": "huge"}, "Invalid enum value 'huge' - at `$.size`"),
    (Order, {"number": 1, "by": {"x": 1}}, "at `$.by[...]`"),
    (Order, {"number": 1, "parts": [{"number": "x"}]}, "`$.parts[0].number`"),
    (Order, {"number": 1, "pair": [1]}, "`$.pair`"),
    (int | str, [], "at `$`"),
]


@pytest.mark.parametrize(("kind", "value"), FIT)
def test_what_a_type_takes_fits_its_schema(kind: Any, value: object) -> None:
    msgspec.json.decode(msgspec.json.encode(value), type=kind)
    assert misfit(msgspec.json.schema(kind), value) is None


@pytest.mark.parametrize(("kind", "value", "said"), UNFIT)
def test_what_a_type_refuses_is_named_with_its_path(kind: Any, value: object, said: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(value), type=kind)
    assert said in (misfit(msgspec.json.schema(kind), value) or "")
