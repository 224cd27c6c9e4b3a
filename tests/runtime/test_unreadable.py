"""Events that no worker can read leave their run stuck, and its steps' results recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from holdfast import App, Context
from holdfast.codec import MAX_DEPTH, depth, encode
from holdfast.errors import ConfigurationError, PayloadError
from holdfast.testing import Environment

app = App("unreadable")


@app.activity
async def render(page: int) -> int:
    return page


@app.workflow
async def deep_names(ctx: Context, length: int) -> str:
    async def inner() -> int:
        return await render(1)

    coro = inner()
    coro.__name__ = "n" * length  # which the keys of what it calls begin with
    try:
        return str(await asyncio.create_task(coro))
    except ConfigurationError as error:
        return str(error)


async def test_a_key_that_no_index_can_hold_is_refused_at_the_call() -> None:
    async with Environment(app) as env:
        assert await env.run(deep_names, 100) == "1"
        assert "more than 2,048" in await env.run(deep_names, 4000)


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
