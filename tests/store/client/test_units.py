"""Rates of units, with a worker: calls say how many they use, and attempts what they have used."""

from __future__ import annotations

import json

import pytest
from tests.runtime.desk import eventually

from holdfast import Context, Rate, current_activity
from holdfast.client import Client
from holdfast.definitions.app import App
from holdfast.errors import InvalidInput
from holdfast.payloads import AesGcm
from holdfast.store.port import Store

from .test_defaults import working


def make_app() -> App:
    app = App("shop")

    @app.activity(rate=Rate(1_000, per="1h", units=lambda prompt, most: len(prompt) + most))
    async def ask(prompt: str, most: int) -> str:
        current_activity().set_units(99.5)
        return prompt

    @app.workflow
    async def agent(ctx: Context, most: int) -> str:
        return await ask("hello", most)

    return app


async def used(client: Client) -> int | None:
    [limit] = await client.limits.list()
    return limit.used


async def test_a_call_uses_units_until_its_attempt_says_better(
    store: Store, client: Client
) -> None:
    """The log has what the call said, and `why` says what the next one waits for."""
    app = make_app()
    async with Client(store=store, app=app) as knowing, working(app, store):
        handle = await knowing.start("agent", 900)
        assert await handle.result() == "hello"
        assert await used(knowing) == 100
        [scheduled] = [
            entry.event for entry in await handle.log() if entry.event.type == "ActivityScheduled"
        ]
        assert json.loads(scheduled.details or "")["units"] == 905
        waits = await knowing.start("agent", 950)

        async def is_held() -> bool:
            found = await store.explain_limits(waits.run_id)
            return [(wait.uses, wait.free) for wait in found] == [(955, 900)]

        await eventually(is_held)
        [detail] = (await knowing.why(waits.run_id)).details
        assert "; a limit holds it: activity 'shop/ask' uses 1,000 in 1 h" in detail
        assert "; it uses 955, and 900 are free" in detail
        assert await knowing.limits.set(Rate(2_000, per="1h", units="call"), activity="shop/ask")
        assert await waits.result() == "hello"
        assert await used(knowing) == 200
        assert await knowing.limits.remove(Rate, activity="shop/ask", units=True)
        assert await knowing.limits.list() == []


async def test_units_that_are_no_number_fail_the_call(store: Store, client: Client) -> None:
    app = App("shop")

    @app.activity(rate=Rate(1_000, per="1h", units=lambda prompt: prompt))
    async def ask(prompt: str) -> str:
        return prompt

    @app.workflow
    async def agent(ctx: Context) -> str:
        try:
            return await ask("hello")
        except InvalidInput as error:
            return str(error)

    async with Client(store=store, app=app) as knowing, working(app, store):
        assert "the units of a call of activity ask are a number" in await knowing.run("agent")


def test_units_of_calls_need_no_look_into_encoded_inputs() -> None:
    """A path does: the app that encodes its inputs cannot have it."""
    coded = App("coded", payload_codec=AesGcm({"k1": AesGcm.new_key()}))
    coded.activity(rate=Rate(5, per="1h", units=lambda prompt: 5))(plain)
    with pytest.raises(Exception, match="path into the input"):
        coded.activity(name="other", rate=Rate(5, per="1h", units="input.prompt"))(plain)


async def plain(prompt: str) -> None:
    """Do nothing."""
