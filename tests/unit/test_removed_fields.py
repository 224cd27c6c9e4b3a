"""Which fields a stored text has that the classes of its value do not have any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

import msgspec
import pytest
from pydantic import AliasChoices, BaseModel, Field, RootModel
from pydantic.dataclasses import dataclass as pydantic_dataclass

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


class Other(msgspec.Struct, tag_field="kind", tag="other"):
    name: str = ""


class Nothing(NamedTuple):
    pass


class Typed(TypedDict, total=False):
    name: str


@dataclass(frozen=True)
class Tag:
    word: str = ""


@pydantic_dataclass
class Aliased:
    a: int = Field(0, alias="aa")


class Words(RootModel[list[str]]):
    root: list[str] = []


class Open(BaseModel, extra="allow"):
    name: str = Field("", validation_alias=AliasChoices("name", "nm"))
    who: Who = Who()
    aliased: Aliased = Aliased()


@dataclass
class Cart:
    who: Who = field(default_factory=Who)
    items: list[Item] = field(default_factory=list)
    by_number: dict[int, Who] = field(default_factory=dict)
    packed: Packed = field(default_factory=Packed)
    point: Point = field(default_factory=Point)
    model: Open = field(default_factory=lambda: Open())
    nothing: Nothing = field(default_factory=Nothing)
    typed: Typed = field(default_factory=lambda: Typed())
    words: Words = field(default_factory=lambda: Words())
    tags: set[Tag] = field(default_factory=set)
    mixed: list[Other | Item] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mixed.sort(key=lambda each: isinstance(each, Item))


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
        ({"typed": {"name": "ann", "age": 7}}, ["typed.age"]),
        ({"tags": [{"word": "a"}, {"word": "b", "color": "red"}]}, ["tags.color"]),
        ({"mixed": [{"kind": "other", "age": 7}]}, ["mixed.age"]),
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
        {"model": {"nm": "ann", "more": {"age": 7}, "who": {"age": 7}, "aliased": {"aa": 1}}},
        {"nothing": [], "words": ["b", "a"], "typed": {}},
        {"tags": [{"word": "b"}, {"word": "a"}]},
        {"mixed": [{"kind": "item", "unitPrice": 1}, {"kind": "other", "name": "ann"}]},
    ],
)
def test_what_the_class_reads_is_not_lost(plain: object) -> None:
    assert removed(plain) == []


def test_a_text_as_it_was_written_has_lost_nothing() -> None:
    cart = Cart(Who("ann"), [Item(3)], {7: Who()}, Packed(1), Point(2), Open(name="x"))
    assert removed_fields(encode(cart), cart) == []
