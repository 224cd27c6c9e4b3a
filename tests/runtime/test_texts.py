"""Texts that a run's code hands to others, and that the database could not hold."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from holdfast import Client, Context
from holdfast.errors import HoldfastError, InvalidInput
from holdfast.store.memory import MemoryStore
from tests.runtime.bench import Bench

Call = Callable[[Context], Awaitable[object]]


async def cancel(ctx: Context) -> None:
    child = await ctx.start_child("ship")
    child.cancel("a\0b")


CALLS: dict[str, Call] = {
    "key": lambda ctx: ctx.child("ship", key="a\0b"),
    "empty key": lambda ctx: ctx.child("ship", key=""),
    "tag": lambda ctx: ctx.start_child("ship", tags=["a\0b"]),
    "tags": lambda ctx: ctx.child("ship", tags="urgent"),
    "version": lambda ctx: ctx.child("ship", version=0),
    "reason": cancel,
    "title": lambda ctx: ctx.request_approval("a\0b"),
    "surrogate": lambda ctx: ctx.request_approval("Offer", description="\ud800"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_text_that_cannot_be_stored_is_refused_at_the_call(name: str) -> None:
    """Trap 20. In the commit it would hold up the run for ever."""

    async def flow(ctx: Context) -> str:
        try:
            await CALLS[name](ctx)
        except HoldfastError as error:
            return str(error)
        return ""

    bench = Bench(flow)
    bench.settle()
    assert any(
        word in bench.output for word in ("NUL", "surrogate", "empty", "several", "from 1 to")
    )
    assert bench.ended == "completed"


async def test_an_empty_key_is_invalid_input_like_every_empty_id() -> None:
    async with Client(store=MemoryStore()) as client:
        with pytest.raises(InvalidInput, match="the key is empty"):
            await client.start("shop/ship", key="")
