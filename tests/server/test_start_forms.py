"""The form that starts a run: which fields it has, and what is read from them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Literal

import msgspec
import pytest
from pydantic import BaseModel

from holdfast.codec import decoder
from holdfast.definitions.catalogue import schema_of
from holdfast.server.pages.forms import read_fields, read_values


@dataclass
class Order:
    amount: Decimal
    on: date
    to: str | None
    note: str | None = None
    count: int | None = 3
    speed: Literal["slow", "fast"] | None = None
    lines: list[int] | None = None


class Parcel(BaseModel):
    on: date | None = None
    to: str | None


EMPTY = {"f.amount": "12.50", "f.on": "2030-12-31"}


def test_a_value_that_may_be_null_has_the_field_of_its_type() -> None:
    """Fault: it was to be written as JSON, a text with quotes."""
    fields = {each.name: each for each in read_fields(schema_of(Order)) or []}
    assert {name: each.kind for name, each in fields.items()} == {
        "amount": "text",
        "on": "text",
        "to": "text",
        "note": "text",
        "count": "number",
        "speed": "choice",
        "lines": "json",
    }
    assert (fields["on"].format, fields["on"].hint) == ("date", "as in 2030-12-31")
    assert (fields["amount"].hint, fields["count"].text) == ("as in 12.50", "3")
    parcel = {each.name: each for each in read_fields(schema_of(Parcel)) or []}
    assert (parcel["on"].kind, parcel["on"].format, parcel["to"].nullable) == ("text", "date", True)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (EMPTY, Order(Decimal("12.50"), date(2030, 12, 31), None)),
        (
            {**EMPTY, "f.to": "ann", "f.note": '"hi"', "f.count": "7", "f.speed": '"fast"'},
            Order(Decimal("12.50"), date(2030, 12, 31), "ann", '"hi"', 7, "fast"),
        ),
        (
            {**EMPTY, "f.to": "ann", "f.lines": "[1, 2]"},
            Order(Decimal("12.50"), date(2030, 12, 31), "ann", lines=[1, 2]),
        ),
    ],
)
def test_what_is_left_empty_is_null_or_the_default(given: dict[str, str], expected: Order) -> None:
    values = read_values(read_fields(schema_of(Order)) or [], given)
    assert decoder(Order)(msgspec.json.encode(values).decode()) == expected
