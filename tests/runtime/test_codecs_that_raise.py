"""A codec that raises holds up the value that it was given, and nothing beside it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import App, Context, Retry, RunFailed, current_activity
from holdfast.errors import PayloadError
from holdfast.payloads import Payloads
from holdfast.testing import Environment

BAD = "card " + str(4711)  # in two parts: tracebacks are encoded, too, and quote lines of this file


class Odd:
    """Reverses what it gets, and raises for some."""

    name, key_id = "odd/1", None

    def __init__(self, error: type[BaseException] = KeyError) -> None:
        self.error, self.broken = error, False

    def encode(self, data: bytes) -> Any:
        if self.broken or BAD.encode() in data:
            raise self.error("no key")
        if b"as nothing" in data:
            return ""
        return "text" if b"as text" in data else data[::-1]

    def decode(self, data: bytes, key_id: str | None) -> Any:
        if b"unreadable" in data[::-1]:
            raise self.error("no key")
        if b"a view" in data[::-1]:
            return memoryview(data[::-1])
        return None if b"nothing" in data[::-1] else data[::-1]


@pytest.mark.parametrize("value", [BAD, "as text", "as nothing"])
def test_what_encode_raises_names_the_codec(value: str) -> None:
    with pytest.raises(PayloadError, match=r"codec odd/1 raised (KeyError: 'no key'|TypeError)"):
        Payloads(Odd()).seal(f'"{value}"')


def test_a_codec_may_return_a_view_of_bytes() -> None:
    payloads = Payloads(Odd())
    assert payloads.open(payloads.seal('"a view"')) == '"a view"'


@pytest.mark.parametrize("error", [KeyError, TypeError, OSError, SystemExit])
@pytest.mark.parametrize("value", ["unreadable", "nothing"])
async def test_what_cannot_be_decoded_says_why(value: str, error: type[BaseException]) -> None:
    app = App("bank", payload_codec=Odd(error))

    @app.workflow
    async def pay(ctx: Context, card: str) -> str:
        return await ctx.wait_for_signal("more", type=str)

    async with Environment(app) as env:
        stopped, other = [await env.client.start(pay, "x") for _ in range(2)]
        await stopped.signal("more", value)
        await other.signal("more", "good")
        assert await env.result(other) == "good"
        assert "codec odd/1 raised" in str(await env.client.why(stopped.run_id))


@pytest.mark.parametrize("place", ["step", "output"])
@pytest.mark.parametrize("error", [KeyError, SystemExit, asyncio.CancelledError])
async def test_other_runs_of_the_same_commit_continue(
    place: str, error: type[BaseException]
) -> None:
    app, made = App("bank", payload_codec=Odd(error)), list[str]()

    @app.step(retry=Retry.NEVER)
    async def charge(card: str) -> str:
        made.append(card)
        return BAD if (card, place) == ("bad", "step") else "receipt"

    @app.workflow
    async def pay(ctx: Context, card: str) -> str:
        await asyncio.gather(*(charge(card) for _ in range(5)))
        return BAD if (card, place) == ("bad", "output") else "paid"

    async with Environment(app) as env:
        stopped = await env.client.start(pay, "bad")
        others = [await env.client.start(pay, "good") for _ in range(5)]
        assert [await env.result(each) for each in others] == ["paid"] * 5
        assert made.count("good") == 25
        with pytest.raises(
            (AssertionError, RunFailed), match=f"codec odd/1 raised {error.__name__}"
        ):
            await env.result(stopped)


async def test_a_heartbeat_without_its_details_keeps_the_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app, seen = App("bank", payload_codec=Odd()), list[object]()

    @app.activity(retry=Retry(attempts=2, base="1s"))
    async def print_card(kind: str) -> str:
        activity = current_activity()
        seen.append(activity.read_heartbeat(str))
        activity.heartbeat(BAD if kind == "bad" else kind)
        if activity.attempt == 1:
            raise OSError("paper jam")
        return "printed"

    @app.workflow
    async def pay(ctx: Context, kind: str) -> str:
        return await print_card(kind)

    async with Environment(app) as env:
        assert await env.run(pay, "bad") == "printed"
        assert await env.run(pay, "good") == "printed"
    assert seen == [None, None, None, "good"]
    assert "are left out: codec odd/1 raised KeyError" in caplog.text


async def test_a_run_has_a_reason_although_nothing_can_be_encoded() -> None:
    codec = Odd()
    app = App("bank", payload_codec=codec)

    @app.workflow
    async def pay(ctx: Context, card: str) -> str:
        await ctx.wait_for_signal("more")
        ctx.set_value("card", card)
        return card

    async with Environment(app) as env:
        run = await env.client.start(pay, "x")
        await run.signal("more")
        codec.broken = True
        with pytest.raises(AssertionError, match="the reason cannot be encoded"):
            await env.result(run)
        codec.broken = False
        await env.client.runs.resume(run.run_id)
        assert await env.result(run) == "x"
