"""Signals, cancels and terminations."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from holdfast.client import Client
from holdfast.client.messaging import Signal
from holdfast.errors import InvalidInput, InvalidName, PayloadError, RunEnded, RunNotFound

from .workflows import Finisher, tick


async def event_types(client: Client, key: str) -> list[str]:
    return [entry.event.type for entry in await client.runs.log((tick, key))]


async def test_a_signal_waits_in_the_log(client: Client) -> None:
    """S9."""
    handle = await client.start(tick)
    assert await handle.signal("packed", {"boxes": 2})
    entry = (await handle.log())[1]
    assert (entry.idx, entry.event.type) == (1, "SignalReceived")
    assert entry.event.details is not None
    assert '"boxes":2' in entry.event.details.replace(" ", "")


async def test_a_signal_id_is_delivered_once(client: Client) -> None:
    """T5."""
    await client.start(tick, key="k")
    assert await client.signal((tick, "k"), "packed", signal_id="s-1")
    assert not await client.signal(("shop/tick", "k"), "packed", signal_id="s-1")
    assert await event_types(client, "k") == ["WorkflowStarted", "SignalReceived"]


async def test_signals_sent_at_once_all_arrive(client: Client) -> None:
    """Trap 14."""
    handle = await client.start(tick)
    await asyncio.gather(*(handle.signal("n", n) for n in range(50)))
    log = await handle.log()
    assert [entry.idx for entry in log] == list(range(51))


async def test_one_bad_signal_fails_alone(client: Client) -> None:
    """Trap 20."""
    handle = await client.start(tick)
    outcomes = await asyncio.gather(
        handle.signal("a"),
        handle.signal("a", "\0"),
        handle.signal("a", signal_id="\0"),
        handle.signal("a b"),
        handle.signal("b"),
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [
        bool,
        PayloadError,
        InvalidInput,
        InvalidName,
        bool,
    ]
    assert len(await handle.log()) == 3


async def test_an_ended_run_takes_no_signal(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    await finisher.complete(1)
    with pytest.raises(RunEnded) as caught:
        await handle.signal("packed")
    assert (caught.value.run_id, caught.value.status) == (handle.run_id, "completed")


async def test_a_request_to_a_missing_run_says_so(client: Client) -> None:
    nobody = uuid4()
    for ask in (
        client.signal(nobody, "packed"),
        client.runs.cancel(nobody),
        client.runs.terminate(nobody),
        client.runs.get(nobody),
        client.runs.log(nobody),
    ):
        with pytest.raises(RunNotFound):
            await ask
    with pytest.raises(InvalidInput, match="UUID"):
        await client.runs.get("nobody")


async def test_signals_sent_together_say_what_became_of_each(
    client: Client, finisher: Finisher
) -> None:
    ended = await client.start(tick)
    await finisher.complete(1)
    going = await client.start(tick)
    outcomes = await client.signal_many(
        [
            Signal(going.run_id, "a", 1),
            Signal(going.run_id, "a", 1, signal_id="1"),
            Signal(going.run_id, "a", 1, signal_id="1"),
            Signal(ended.run_id, "a"),
            Signal(uuid4(), "a"),
        ]
    )
    assert outcomes == ["delivered", "delivered", "duplicate", "ended", "missing"]


async def test_cancel_asks_a_run_that_has_begun(client: Client, finisher: Finisher) -> None:
    """S10. B6."""
    await client.start(tick, key="k")
    await finisher.claim()
    assert await client.runs.cancel((tick, "k"), reason="changed my mind")
    assert await client.runs.cancel((tick, "k"))
    assert (await client.runs.get((tick, "k"))).status == "running"
    assert await event_types(client, "k") == ["WorkflowStarted", "WorkflowCancelRequested"]


async def test_a_cancel_after_the_end_changes_nothing(client: Client, finisher: Finisher) -> None:
    """S10. Trap 16."""
    handle = await client.start(tick)
    await finisher.complete(1)
    before = await handle.log()
    assert not await handle.cancel()
    assert not await handle.terminate()
    assert await handle.log() == before
    assert await handle.result() == 1


async def test_terminate_ends_a_leased_run_at_once(client: Client, finisher: Finisher) -> None:
    handle = await client.start(tick)
    await finisher.claim()
    assert await handle.terminate(reason="stuck")
    assert await handle.status() == "terminated"
