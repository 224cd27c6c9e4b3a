"""Events that no worker can read leave their run stuck, and its steps' results recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, Context, StepFailed
from holdfast.codec import MAX_DEPTH, depth, encode
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.testing import Environment

app = App("unreadable")


@app.activity
async def render(page: int) -> int:
    return page


@app.entity
@dataclass
class Counter:
    number: int = 0

    async def add(self, more: int) -> int:
        self.number += more
        return self.number


@app.workflow
async def deep_names(ctx: Context, call: tuple[str, int]) -> str:
    called, length = call

    async def inner() -> Any:
        if called == "signal":
            ctx.signal_run(ctx.run_id, "go", 1)
            return await ctx.wait_for_signal("go")
        return await (render(1) if called == "activity" else ctx.entity(Counter, "a").add(1))

    coro = inner()
    coro.__name__ = "n" * length  # which the keys of what it calls begin with
    try:
        return str(await asyncio.create_task(coro))
    except (ConfigurationError, StepFailed) as error:
        return str(error)


@pytest.mark.parametrize(
    ("called", "most"), [("activity", "2,048"), ("entity", "970"), ("signal", None)]
)
async def test_a_key_that_no_index_can_hold_is_refused_at_the_call(
    called: str, most: str | None
) -> None:
    """A signal has an id of another kind then."""
    async with Environment(app) as env:
        assert await env.run(deep_names, (called, 100)) == "1"
        said = await env.run(deep_names, (called, 4000))
    if most is None:
        assert said == "1"
    else:
        assert f"bytes, more than {most}: give the call, or the tasks around it" in said


@pytest.mark.parametrize("make", [lambda value: [value], lambda value: {"a": value}])
def test_values_are_nested_as_deeply_as_every_reader_gets_through(
    make: Callable[[object], object],
) -> None:
    value: object = 1
    for _ in range(MAX_DEPTH):
        value = make(value)
    assert depth(encode(value).encode()) == MAX_DEPTH
    with pytest.raises(PayloadError, match="nested more than 256 levels"):
        encode(make(value))


def test_brackets_in_texts_are_not_levels() -> None:
    assert encode(["[" * 3000, "}" * 5])
    assert depth(encode([[["]["]]] * 400).encode()) < MAX_DEPTH
    assert depth(encode([["]"]] * 400).encode()) == 2
