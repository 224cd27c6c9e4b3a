"""Which fields a stored text has that the classes of its value do not have any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pytest
from pydantic import AliasChoices, BaseModel, Field

from holdfast.codec import decoder, encode, removed_fields


@dataclass
class Who:
    name: str = ""


class Item(msgspec.Struct, rename="camel", omit_defaults=True, tag_field="kind", tag="item"):
    unit_price: int = 0


class Packed(msgspec.Struct, array_like=True):
    x: int = 0


class Point(NamedTuple):
    x: int = 0


class Open(BaseModel, extra="allow"):
    name: str = Field("", validation_alias=AliasChoices("name", "nm"))
    who: Who = Who()


@dataclass
class Cart:
    who: Who = field(default_factory=Who)
    items: list[Item] = field(default_factory=list)
    by_number: dict[int, Who] = field(default_factory=dict)
    packed: Packed = field(default_factory=Packed)
    point: Point = field(default_factory=Point)
    model: Open = field(default_factory=lambda: Open())


def removed(plain: object) -> list[str]:
    text = msgspec.json.encode(plain).decode()
    return removed_fields(text, decoder(Cart)(text))


@pytest.mark.parametrize(
    ("plain", "lost"),
    [
        ({"note": 1}, ["note"]),
        ({"who": {"name": "ann", "age": 7}}, ["who.age"]),
        (
            {"items": [{"kind": "item", "unitPrice": 1}, {"kind": "item", "price": 1}]},
            ["items.price"],
        ),
        ({"by_number": {"7": {"name": "ann", "age": 7}}}, ["by_number.age"]),
        ({"packed": [1, 2]}, ["packed.1"]),
        ({"model": {"who": {"age": 7}}}, ["model.who.age"]),
    ],
)
def test_a_field_that_the_class_lacks_is_named(plain: object, lost: list[str]) -> None:
    assert removed(plain) == lost


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"who": {}},
        {"items": [{"kind": "item", "unitPrice": 0}]},
        {"by_number": {"7": {"name": "ann"}}},
        {"packed": [], "point": []},
        {"model": {"nm": "ann", "more": {"age": 7}}},
    ],
)
def test_what_the_class_reads_is_not_lost(plain: object) -> None:
    assert removed(plain) == []


def test_a_text_as_it_was_written_has_lost_nothing() -> None:
    cart = Cart(Who("ann"), [Item(3)], {7: Who()}, Packed(1), Point(2), Open(name="x"))
    assert removed_fields(encode(cart), cart) == []
