"""An exception that cannot be shown fails what raised it, and nothing beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, Context, Retry, RunFailed
from holdfast.codec import describe
from holdfast.testing import Environment

RAISED: list[type[BaseException]] = [ValueError, RecursionError, SystemExit, asyncio.CancelledError]


def odd(raised: type[BaseException], *attributes: str) -> type[Exception]:
    """Return a class of exceptions of which these methods raise, or these properties."""

    def broken(self: Any) -> Any:
        raise raised("broken")

    made = [broken if each in ("__str__", "__repr__") else property(broken) for each in attributes]
    return type("Odd", (Exception,), dict(zip(attributes, made, strict=True)))


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize(
    "attribute",
    ["__str__", "__repr__", "data", "__cause__", "__context__", "__notes__", "__traceback__"],
)
def test_every_exception_can_be_described(raised: type[BaseException], attribute: str) -> None:
    found = describe(odd(raised, attribute)("no money"))
    assert found.kind.endswith("Odd")
    said = f"str() raised {raised.__name__}" if attribute == "__str__" else "no money"
    assert said in found.message


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("place", ["step", "activity", "workflow"])
async def test_the_run_fails_and_those_beside_it_continue(
    raised: type[BaseException], place: str
) -> None:
    app, error = App("bank"), odd(raised, "__str__", "__repr__")

    def pay(card: str, at: str) -> str:
        if (card, at) == ("bad", place):
            raise error
        return "paid"

    @app.step(retry=Retry.NEVER)
    async def charge(card: str) -> str:
        return pay(card, "step")

    @app.activity(retry=Retry.NEVER)
    async def book(card: str) -> str:
        return pay(card, "activity")

    @app.workflow
    async def buy(ctx: Context, card: str) -> str:
        await charge(card)
        await book(card)
        return pay(card, "workflow")

    async with Environment(app) as env:
        runs = [await env.client.start(buy, card) for card in ("good", "bad", "good")]
        assert [await env.result(runs[at]) for at in (0, 2)] == ["paid", "paid"]
        with pytest.raises(RunFailed, match="Odd"):
            await env.result(runs[1])


async def test_a_task_that_failed_unseen_does_not_disturb_the_end_of_its_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, error = App("bank"), odd(ValueError, "__repr__")

    async def fail() -> None:
        raise error

    @app.workflow
    async def buy(ctx: Context) -> str:
        task = asyncio.create_task(fail())
        while not task.done():
            await asyncio.sleep(0)
        return "bought"

    async with Environment(app) as env:
        assert await env.run(buy) == "bought"
    assert "failed unseen: Odd" in caplog.text
    assert "cannot be driven" not in caplog.text


@pytest.mark.parametrize("raised", RAISED)
@pytest.mark.parametrize("asked", ["should_retry", "delay"])
async def test_a_policy_that_raises_has_failed(raised: type[BaseException], asked: str) -> None:
    app = App("bank")

    def ask(error: Exception) -> Any:
        raise raised("broken")

    by_name: Any = {asked: ask}

    @app.step(retry=Retry(attempts=2, base="1s", **by_name))
    async def charge() -> None:
        raise OSError("no money")

    @app.workflow
    async def buy(ctx: Context) -> None:
        await charge()

    async with Environment(app) as env:
        with pytest.raises(RunFailed, match="no money"):
            await env.run(buy)
