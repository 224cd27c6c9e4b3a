"""Work that a cancellation does not cut off, and the error for programs that do not use asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from holdfast import App, Client, Context, local
from holdfast.errors import ConfigurationError
from holdfast.testing import Environment
from holdfast.values.waits import to_the_end

app = App("elsewhere")


@app.workflow
async def unused(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    "begin",
    [Client("postgresql:///no").open(), local(app).__aenter__(), Environment(app).__aenter__()],
    ids=["client", "local", "environment"],
)
def test_without_asyncio_the_error_says_that_it_is_needed(
    begin: Coroutine[Any, Any, object],
) -> None:
    """As in a coroutine of Trio."""
    with pytest.raises(ConfigurationError, match="needs asyncio"):
        begin.send(None)


async def test_work_is_done_to_its_end_before_the_cancellation_is_raised() -> None:
    done, told, may_end = list[str](), list[str](), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        done.append("all of it")

    task = asyncio.create_task(to_the_end(work(), lambda: told.append("end of grace")))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (done, told) == (["all of it"], ["end of grace"] * 3)


async def test_the_error_of_work_whose_caller_was_cancelled_is_the_cause() -> None:
    async def work() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("no")

    task = asyncio.create_task(to_the_end(work()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert isinstance(raised.value.__cause__, ValueError)


async def test_the_error_of_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await to_the_end(work())


def test_the_end_of_the_loop_cuts_work_off() -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cut off")

    async def main() -> None:
        asyncio.create_task(to_the_end(work())).add_done_callback(lambda _: None)
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert ends == ["cut off"]
