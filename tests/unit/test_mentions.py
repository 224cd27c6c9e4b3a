"""What a workflow's code mentions: the names of steps that it may still call."""

from __future__ import annotations

import functools
from types import SimpleNamespace

from holdfast.definitions.mentions import mentions
from holdfast.definitions.steps import Step


def _named(name: str) -> Step[[], int]:
    return Step(lambda: 1, name=name)


class Till:
    book = _named("book-it")

    def __init__(self) -> None:
        self.own = _named("own")

    async def settle(self) -> None:
        await deep()


direct, in_helper, in_table, by_partial = map(_named, ("direct", "helped", "listed", "partial"))
TABLE = {"a": [in_table]}
TILL = Till()
later = functools.partial(by_partial)
unused = _named("unused")
bag = SimpleNamespace(packed=_named("packed"))


async def deep() -> None:
    await in_helper()


async def flow(ctx: object) -> None:
    inner = _named("inner")

    async def nested() -> None:
        await direct()
        await inner()

    await nested()
    await TABLE["a"][0]()
    await TILL.settle()
    await later()
    await bag.packed()
    await ctx.step("by-text", print)  # type: ignore[attr-defined]
    await ctx.shop.by_attribute()  # type: ignore[attr-defined]


def test_steps_are_found_through_helpers_tables_objects_and_texts() -> None:
    found = mentions(flow)
    expected = {"direct", "helped", "listed", "book-it", "own", "partial", "packed", "by-text"}
    assert expected | {"by_attribute", "inner"} <= found
    assert "unused" not in found


def test_variables_of_closures_are_found() -> None:
    step = _named("closed-over")

    async def outer() -> None:
        await step()

    assert "closed-over" in mentions(outer)


def test_functions_that_know_each_other_end_the_search() -> None:
    def one() -> None:
        other()

    def other() -> None:
        one()

    assert mentions(one) == mentions(other)
