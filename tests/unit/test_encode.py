"""Values to JSON text and back."""

from __future__ import annotations

import asyncio
import enum
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codec import decoder, encode, encode_sorted, fingerprint
from holdfast.errors import ConfigurationError, InvalidInput, PayloadError


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    price: Decimal
    sold_at: datetime | None = None


class Box(msgspec.Struct):
    items: list[Item]


class Label(TypedDict):
    text: str


class Point(NamedTuple):
    x: int
    y: int


class Customer(pydantic.BaseModel):
    name: str = pydantic.Field(alias="Name")
    born_on: date
    photo: bytes = b""


class Score(pydantic.BaseModel):
    value: float


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Item, Item(Decimal("1.10"), datetime(2024, 2, 29, 12, tzinfo=UTC))),
        (Box, Box([Item(Decimal("0.1"))])),
        (Label, {"text": "häßlich \\u0000 is not a NUL"}),
        (Point, Point(1, 2)),
        (Colour, Colour.RED),
        (UUID, UUID(int=7)),
        (bytes, b"\0\xff"),
        (timedelta, timedelta(days=1, microseconds=3)),
        (datetime, datetime(2024, 1, 1, 3, 4, 5, 6)),
        (datetime, datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
        (set[int], {3, 1, 2}),
        (tuple[int, str], (1, "a")),
        (dict[int, Item | None], {1: None, 2: Item(Decimal(2))}),
        (Customer, Customer(Name="Ada", born_on=date(1815, 12, 10), photo=b"png")),
        (list[Customer] | None, [Customer(Name="Ada", born_on=date(1815, 12, 10))]),
        (int, 10**40),
        (Any, {"a": [1, 1e300, None, "null", True]}),
        (object, [None]),
        (None, None),
    ],
)
def test_a_value_comes_back_as_its_declared_type(annotation: object, value: object) -> None:
    restored = decoder(annotation)(encode(value))
    assert restored == value
    assert type(restored) is type(value)


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet="ab\\u0"), inner),
)


@given(plain)
def test_plain_json_values_come_back_exactly(value: object) -> None:
    restored = decoder(Any)(encode(value))
    assert repr(restored) == repr(value)
    assert decoder(Any)(encode_sorted(value)) == value


class Missed:
    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize("write", [encode, encode_sorted])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, math.nan]}, r"\$\.a\[1\]: JSON has no NaN"),
        ({"a": None, "b": {"c": math.inf}}, r"\$\.b\.c: JSON has no NaN"),
        (Box([Item(Decimal(1)), -math.inf]), r"\$\.items\[1\]: JSON has no NaN"),  # type: ignore[list-item]
        ([Score(value=math.nan)], r"\$\[0\]\.value: JSON has no NaN"),
        ({"a": {"b": "x\0y"}}, r"\$\.a\.b: PostgreSQL stores no NUL"),
        ({"a\0": 1}, "the value: PostgreSQL stores no NUL"),
        (["\\\0"], r"\$\[0\]: PostgreSQL stores no NUL"),
        (["ok", "\ud800"], r"\$\[1\]: the text has a lone surrogate"),
        ({"a": object()}, r"\$\.a: objects of type builtins\.object cannot be stored"),
        ({"a": ValueError("x")}, r"\$\.a: objects of type builtins\.ValueError cannot"),
        (Item(price=1j), r"\$\.price: objects of type builtins\.complex cannot"),  # type: ignore[arg-type]
        ({"a": {(1, 2): 3}}, r"\$\.a: "),
        (math.nan, "^the value: JSON has no NaN"),
        ([Missed()], r"\$\[0\]: what is to be awaited cannot be stored: an await is missing"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_place(
    write: Any, value: object, message: str
) -> None:
    """Trap 20."""
    with pytest.raises(PayloadError, match=message):
        write(value)


def test_too_much_is_refused_with_the_limit() -> None:
    """Trap 20."""
    with pytest.raises(PayloadError, match=r"20,000,002 bytes of JSON.*16,777,216"):
        encode("x" * 20_000_000)
    assert encode("xxx", limit=5) == '"xxx"'
    with pytest.raises(PayloadError):
        encode("xxxx", limit=5)


def test_a_value_that_contains_itself_is_refused() -> None:
    """Trap 20."""
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(PayloadError, match="contains itself"):
        encode(loop)


def test_results_keep_the_order_of_their_keys() -> None:
    assert encode({"b": 1, "a": 2}) == '{"b":1,"a":2}'


def test_equal_arguments_give_equal_text() -> None:
    first = {"b": {3, 1, 2}, "a": {UUID(int=2): 1, UUID(int=1): 2}, "c": {2: 1, 1: 2}}
    again = {"c": {1: 2, 2: 1}, "a": {UUID(int=1): 2, UUID(int=2): 1}, "b": {2, 3, 1}}
    assert encode_sorted(first) == encode_sorted(again)


def test_a_fingerprint_tells_texts_apart() -> None:
    assert fingerprint("[1]") == fingerprint("[1]") != fingerprint("[2]")
    assert 0 <= fingerprint("[1]") < 2**32


@pytest.mark.parametrize(
    ("annotation", "text", "message"),
    [
        (int, '"x"', "Expected `int`, got `str`"),
        (Box, '{"items": [{"price": "1"}, {"price": true}]}', r"at `\$\.items\[1\]\.price`"),
        (Annotated[int, msgspec.Meta(ge=0)], "-1", ">= 0"),
        (list[Customer], '[{"Name": "Ada"}]', r"born_on(.|\n)*at `\$\[0\]`"),
        (Any, '{"a": ', "truncated"),
        (Any, "[" * 100_000, "truncated|recursion|Stack overflow"),
        (Any, "[" * 301 + "]" * 301, "nested too deeply to be read: a value has 256 levels"),
        (list[Any], "[" * 60_000 + "]" * 60_000, "nested too deeply"),
        (Any, "1e400", "out of range"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(
    annotation: object, text: str, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        decoder(annotation)(text)


@dataclass
class Raising:
    def __post_init__(self) -> None:
        raise KeyError("price")


class RaisingModel(pydantic.BaseModel):
    @pydantic.model_validator(mode="after")
    def check(self) -> RaisingModel:
        raise KeyError("price")


@pytest.mark.parametrize("text", ["{}", "[{}]"])
@pytest.mark.parametrize("kind", [Raising, RaisingModel])
def test_a_value_does_not_fit_if_the_code_of_its_type_raises(kind: Any, text: str) -> None:
    """Fault: an error of another class failed activities and runs for good after a deploy."""
    with pytest.raises(InvalidInput, match=r"^KeyError: 'price'$") as raised:
        decoder(list[kind] if text == "[{}]" else kind)(text)
    assert isinstance(raised.value.__cause__, KeyError)


class Leaving(Raising):
    def __post_init__(self) -> None:
        raise SystemExit(3)


class Cancelling(Raising):
    def __post_init__(self) -> None:
        raise asyncio.CancelledError


class LeavingModel(pydantic.BaseModel):
    @pydantic.model_validator(mode="after")
    def check(self) -> LeavingModel:
        sys.exit("no price")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Leaving, "SystemExit: 3"),
        (Cancelling, "CancelledError: "),
        (LeavingModel, "SystemExit: no price"),
    ],
)
def test_code_of_a_type_cannot_end_the_process_or_the_task(kind: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{said}$"):
        decoder(list[kind])("[{}]")


class Interrupted(Raising):
    def __post_init__(self) -> None:
        raise KeyboardInterrupt


def test_a_key_that_was_pressed_while_a_value_was_read_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        decoder(Interrupted)("{}")


class Recursive(msgspec.Struct):
    children: list[Recursive]
    value: complex


@pytest.mark.parametrize(
    "annotation",
    [complex, list[range], dict[str, Exception], int | complex, str | bytes, Recursive],
)
def test_a_type_that_json_cannot_restore_is_refused(annotation: object) -> None:
    with pytest.raises(ConfigurationError):
        decoder(annotation)


def test_an_annotation_with_unhashable_metadata_works() -> None:
    assert decoder(Annotated[int, msgspec.Meta(extra_json_schema={"a": []}), []])("1") == 1
