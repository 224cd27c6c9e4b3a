"""Which types of outputs fit which parameters: what is refused can never work. P10."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import product
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, RootModel, field_validator, model_serializer, model_validator

from holdfast.codec import decoder, encode
from holdfast.definitions.flow_types import (
    admits_none,
    fits,
    fits_elements,
    list_of,
    may_have_field,
    type_name,
)
from holdfast.errors import ConfigurationError, InvalidInput

T = TypeVar("T")
Cents = NewType("Cents", int)


@dataclasses.dataclass
class Page:
    content: str
    links: list[str]


@dataclasses.dataclass
class LongPage(Page):
    size: int = 0


@dataclasses.dataclass
class Tree:
    children: list[Tree]


class Site(TypedDict):
    url: str


class MaybeSite(TypedDict, total=False):
    url: str


class Point(NamedTuple):
    x: int
    y: str


class Struct(msgspec.Struct):
    content: str


class Tagged(msgspec.Struct, tag="page", tag_field="type"):
    content: str


class Typed(TypedDict):
    type: str


class Array(msgspec.Struct, array_like=True):
    content: str


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Model(BaseModel):
    url: str


class Wrapped(RootModel[str]):
    pass


class AsText(BaseModel):
    url: str

    @model_serializer
    def write(self) -> str:
        return self.url


class FromText(BaseModel):
    url: str

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value


class Checked(BaseModel):
    url: str

    @field_validator("url", mode="before")
    @classmethod
    def read(cls, value: object) -> str:
        return str(value)


PAGE = Page("c", ["l"])
NOW = datetime(2030, 1, 1)
# Each type with values of all kinds that it has.
VALUES: list[tuple[Any, list[object]]] = [
    (None, [None]),
    (bool, [True]),
    (int, [3]),
    (float, [0.5]),
    (str, ["text"]),
    (bytes, [b"abc"]),
    (datetime, [NOW]),
    (UUID, [UUID(int=1)]),
    (Decimal, [Decimal("1.5")]),
    (PurePosixPath, [PurePosixPath("/a")]),
    (Any, [None, 3, "a", [1], {"a": 1}]),
    (T, [None, 3, "a", [1], {"a": 1}]),
    (Cents, [Cents(3)]),
    (Annotated[int, msgspec.Meta(ge=0)], [3]),
    (int | None, [3, None]),
    (int | str, [3, "a"]),
    (str | None, ["a", None]),
    (list, [[1, "a"]]),
    (list[int], [[3]]),
    (list[str], [["a"]]),
    (list[int | None], [[3], [None]]),
    (list[str] | None, [["a"], None]),
    (list[list[int]], [[[3]]]),
    (list[Page], [[PAGE]]),
    (Sequence[str], [["a"]]),
    (set[int], [{3}]),
    (frozenset[str], [frozenset({"a"})]),
    (tuple[int, ...], [(3,)]),
    (tuple[int, str], [(3, "a")]),
    (tuple[str, int], [("a", 3)]),
    (dict[str, int], [{"content": 3}]),
    (dict[str, Any], [{"url": "u", "content": 1}]),
    (Mapping[str, str], [{"url": "u"}]),
    (Page, [PAGE]),
    (LongPage, [LongPage("c", ["l"], 3)]),
    (Page | None, [PAGE, None]),
    (Tree, [Tree([Tree([])])]),
    (Site, [{"url": "u"}]),
    (MaybeSite, [{"url": "u"}, {}]),
    (Point, [Point(3, "a")]),
    (Struct, [Struct("c")]),
    (Array, [Array("c")]),
    (Tagged, [Tagged("c")]),
    (Typed, [{"type": "page"}]),
    (Colour, [Colour.RED]),
    (Level, [Level.LOW]),
    (Literal["red", 1], ["red", 1]),
    (Literal[1], [1]),
    (Literal["red", None], ["red", None]),
    (Model, [Model(url="u")]),
    (list[Model], [[Model(url="u")]]),
    (Wrapped, [Wrapped("u")]),
    (AsText, [AsText(url="u")]),
    (FromText, [FromText(url="u")]),
    (Checked, [Checked(url="u")]),
]


def decodes(value: object, annotation: Any) -> bool:
    try:
        decoder(annotation)(encode(value))
    except InvalidInput:
        return False
    return True


def test_what_always_decodes_is_never_refused() -> None:
    refused = [
        f"{type_name(given)} for {type_name(wanted)}"
        for (given, values), (wanted, _) in product(VALUES, VALUES)
        if not fits(given, wanted) and all(decodes(value, wanted) for value in values)
    ]
    assert refused == []


def test_an_element_that_always_decodes_is_never_refused() -> None:
    for (given, values), (wanted, _) in product(VALUES, VALUES):
        lists = [list_of(given)]
        lists += [tuple[given, ...], set[given], Sequence[given]]
        if all(decodes(value, wanted) for value in values):
            assert all(fits_elements(each, wanted) for each in lists), (given, wanted)


def test_every_type_fits_itself() -> None:
    assert [given for given, _ in VALUES if not fits(given, given)] == []


def test_what_admits_none_decodes_null() -> None:
    for annotation, _ in VALUES:
        if decodes(None, annotation):
            assert admits_none(annotation), annotation
    assert not any(map(admits_none, (int, str, Page, list[str], Site, Model, Colour)))
    assert all(map(admits_none, (None, Any, int | None, Literal["a", None])))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (Page, str),
        (str, Page),
        (float, int),
        (int, bool),
        (bool, int),
        (str, int),
        (None, Page),
        (Page | None, Page),
        (int | str, int),
        (list[str], str),
        (str, list[str]),
        (list[str], list[int]),
        (list[str], tuple[int, ...]),
        (tuple[int, str], tuple[int, str, int]),
        (Page, list[str]),
        (Page, Site),
        (Site, Page),
        (dict[str, str], dict[str, int]),
        (list[Page], Page),
        (Model, str),
        (str, Model),
        (list[Model], list[int]),
        (Colour, int),
        (Level, str),
        (int, Colour),
        (Literal["a"], int),
        (Array, Struct),
        (Tree, list[Tree]),
    ],
)
def test_what_cannot_work_is_refused(given: object, wanted: object) -> None:
    assert not fits(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (int, float),
        (LongPage, Page),
        (Page, dict[str, Any]),
        (dict[str, Any], Page),
        (Site, MaybeSite),
        (list[str], Sequence[str]),
        (set[int], list[int]),
        (str, UUID),
        (UUID, str),
        (Page, Page | None),
        (str, Wrapped),
        (AsText, str),
        (str, FromText),
        (Page, "Page"),
        (object, int),
        (int, T),
    ],
)
def test_what_may_work_passes(given: object, wanted: object) -> None:
    assert fits(given, wanted)


@pytest.mark.parametrize(
    ("annotation", "name", "found"),
    [
        (Page, "content", True),
        (Page, "run", False),
        (Page | None, "run", False),
        (Page | dict[str, int], "run", True),
        (list[Page], "content", False),
        (Site, "run", False),
        (Tagged, "type", True),
        (Array, "content", False),
        (Model, "run", False),
        (Any, "run", True),
        (str, "run", False),
    ],
)
def test_only_what_is_known_to_lack_a_field_lacks_it(
    annotation: object, name: str, found: bool
) -> None:
    assert may_have_field(annotation, name) is found


@pytest.mark.parametrize("given", [str, Page, dict[str, int], int, None, list[str] | None])
def test_only_arrays_have_elements(given: object) -> None:
    assert fits_elements(given, Any) is None


def test_elements_of_tuples_are_all_compared() -> None:
    assert fits_elements(tuple[int, str], int | str)
    assert fits_elements(tuple[int, str], int) is False
    assert fits_elements(Point, int)
    assert fits_elements(Any, int)


@pytest.mark.parametrize(
    ("annotation", "name"),
    [
        (Page, "Page"),
        (list[Page], "list[Page]"),
        (Page | None, "Page | None"),
        (Annotated[int, msgspec.Meta(ge=0)], "int"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Literal["a.b", 1], "Literal['a.b', 1]"),
        (dict[str, Any], "dict[str, Any]"),
        (None, "None"),
    ],
)
def test_types_are_named_as_people_write_them(annotation: object, name: str) -> None:
    assert type_name(annotation) == name


def test_types_that_cannot_be_stored_are_refused_where_they_are_written() -> None:
    with pytest.raises(ConfigurationError):
        decoder(type)
