"""What the code of an app says of its workflows and flows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from holdfast import App, Context
from holdfast.definitions.catalogue import LARGEST_SCHEMA, LONGEST_TEXT, catalogue_of


@dataclass
class Order:
    """What a customer wants."""

    number: int
    express: bool = False


class Card(BaseModel):
    """What is paid with."""

    digits: str


class Strange(BaseModel):
    """It has no schema."""

    call: Callable[[int], int]


Wide = make_dataclass("Wide", [(f"field_{n}_{'x' * 100}", int) for n in range(1_000)])


def said(annotation: Any, docs: str | None = None, version: int = 1) -> tuple[Any, str]:
    """Return schema and text of a workflow with such an input."""
    app = App("shop")

    async def buy(ctx: Context, order: object) -> None: ...

    buy.__annotations__["order"] = annotation
    buy.__doc__ = docs
    app.workflow(version=version)(buy)
    [entry] = catalogue_of(app.registry)
    assert (entry.name, entry.version) == ("shop/buy", version)
    schema = entry.input_schema
    return None if schema is None else msgspec.json.decode(schema), entry.about


def test_the_schema_of_the_input_and_the_first_paragraph_of_the_docs() -> None:
    schema, about = said(Order, "Buy\n    something.\n\n    And more.", 4)
    assert schema["$defs"]["Order"]["required"] == ["number"]
    assert about == "Buy something."


def test_a_pydantic_model_says_its_schema_itself() -> None:
    schema, _ = said(Card)
    assert (schema["properties"]["digits"]["type"], schema["required"]) == ("string", ["digits"])


def test_of_several_versions_the_newest_speaks() -> None:
    app = App("shop")

    @app.workflow(name="buy", version=2)
    async def newer(ctx: Context, order: str) -> None: ...

    @app.workflow(name="buy")
    async def older(ctx: Context, order: int) -> None: ...

    flow = app.flow("sell", input=Order)

    @flow.step
    async def pack(run: Order) -> None: ...

    found = {each.name: each for each in catalogue_of(app.registry)}
    assert (found["shop/buy"].version, found["shop/buy"].input_schema) == (2, '{"type":"string"}')
    assert "number" in str(found["shop/sell"].input_schema)


@pytest.mark.parametrize("annotation", [Strange, Wide], ids=["no schema", "a large one"])
def test_what_has_no_schema_that_can_be_kept_has_none(annotation: Any) -> None:
    assert said(annotation, "Buy.") == (None, "Buy.")
    assert LARGEST_SCHEMA < 100_000


@pytest.mark.parametrize(
    ("docs", "about"),
    [(None, ""), ("a\0b", "ab"), ("\ud800", "?"), ("x" * 9_999, "x" * LONGEST_TEXT)],
    ids=["none", "NUL", "surrogate", "long"],
)
def test_docs_are_text_that_a_database_can_hold(docs: str | None, about: str) -> None:
    assert said(int, docs)[1] == about
