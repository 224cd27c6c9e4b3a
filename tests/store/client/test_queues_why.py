"""Why the messages of a queue are not gone."""

from __future__ import annotations

import pytest

from holdfast import Rate
from holdfast.client import Client
from holdfast.errors import InvalidInput, UnknownQueue
from holdfast.insight.messages import explain_message, explain_queue
from holdfast.store.port import Store


async def test_a_message_says_what_holds_it_up(client: Client, store: Store) -> None:
    await client.queues.create("parcels", max_receives=2, dead_letters="lost")
    assert (await explain_queue(store, "parcels")).state == "empty"
    later = await client.queues.send("parcels", 1, delay="1h")
    delayed = await explain_message(store, "parcels", later)
    assert delayed.because.startswith("it is due in ")
    assert (await explain_queue(store, "parcels")).state == "delayed"
    sent = await client.queues.send("parcels", 2)
    due = await explain_message(store, "parcels", sent)
    assert (due.state, due.details) == ("due", ())
    assert "1 message due" in (await explain_queue(store, "parcels")).because

    [message] = await client.queues.receive("parcels", visibility="2m")
    flying = await explain_message(store, "parcels", sent)
    assert flying.state == "in_flight"
    assert "for the 1st time; if nobody ends or extends it, others may receive it in " in (
        flying.because
    )
    assert (await explain_queue(store, "parcels")).state == "in_flight"

    await client.queues.nack(message, delay="5m", error="no van")
    failed = await explain_message(store, "parcels", sent)
    assert failed.state == "delayed"
    assert failed.because.startswith("it failed, and is tried again in ")
    assert failed.details == (
        "received before: 1; limit: 2, then it is a dead letter",
        "last error: no van",
    )

    await client.queues.pause("parcels")
    for found in (
        await explain_message(store, "parcels", sent),
        await explain_queue(store, "parcels"),
    ):
        assert found.state == "paused"
        assert "`holdfast queues resume parcels` ends the pause" in found.details


async def test_a_dead_letter_says_whose_it_is_and_how_to_move_it_back(
    client: Client, store: Store
) -> None:
    await client.queues.create("parcels", max_receives=1, dead_letters="lost")
    sent = await client.queues.send("parcels", 2)
    await client.queues.nack(await client.queues.receive("parcels"), error="no van")
    [dead] = await client.queues.messages("lost")
    found = await explain_message(store, "lost", dead.message_id)
    assert (found.state, found.because) == ("dead", "it is a dead letter of queue 'parcels'")
    assert found.details[-3:] == (
        "last error: no van",
        "received before it moved here: 1",
        "`holdfast queue redrive parcels` moves it back",
    )
    assert "1 dead letter in 'lost'" in (await explain_queue(store, "parcels")).details[0]
    with pytest.raises(InvalidInput, match="holdfast queue dead parcels"):
        await explain_message(store, "parcels", sent)
    with pytest.raises(UnknownQueue):
        await explain_queue(store, "parcel")


async def test_a_message_of_a_group_names_the_one_before_it(client: Client, store: Store) -> None:
    await client.queues.create("moves", fifo=True)
    first, second, third = [await client.queues.send("moves", n, group="a") for n in range(3)]
    assert (await explain_message(store, "moves", first)).state == "due"
    waiting = await explain_message(store, "moves", third)
    assert waiting.because == f"message {first} of its group 'a' comes first"
    await client.queues.receive("moves")
    waiting = await explain_message(store, "moves", second)
    assert waiting.because == f"message {first} of its group 'a' is in flight"
    assert "their groups are in flight" in (await explain_queue(store, "moves")).because


async def test_a_message_that_waits_for_a_rate_with_a_key_says_so(
    client: Client, store: Store
) -> None:
    await client.limits.set(Rate(1, per="1h", key="input.of"), queue="parcels")
    await client.queues.create("parcels")
    [_, second] = [await client.queues.send("parcels", {"of": "ann"}) for _ in range(2)]
    assert (await explain_message(store, "parcels", second)).state == "due"
    await client.queues.pop("parcels")
    text = "queue 'parcels' begins 1 in 1 h for each input.of, and 1 key is full"
    found = await explain_message(store, "parcels", second)
    assert (found.state, found.because) == ("limited", f"it is due: {text}")
    other = await client.queues.send("parcels", {"of": "bob"})
    for message_id in (second, other):  # whose keys are not known here
        found = await explain_message(store, "parcels", message_id)
        assert found.state == "due"
        assert found.details[-1] == f"if its key is full, it waits for that: {text}"


async def test_what_is_behind_a_delayed_message_of_its_group_is_not_due(
    client: Client, store: Store
) -> None:
    await client.queues.create("moves", fifo=True)
    first, second = [await client.queues.send("moves", n, group="a") for n in range(2)]
    await client.queues.nack(await client.queues.receive("moves", per_group=1), delay="1h")
    [counted] = await store.queue_metrics("moves")
    assert (counted.due, counted.delayed, counted.oldest_due_at) == (0, 2, None)
    found = await explain_queue(store, "moves")
    assert (found.state, found.because) == ("delayed", "nothing in it is due yet")
    waiting = await explain_message(store, "moves", second)
    assert waiting.because.startswith(
        f"message {first} of its group 'a' comes first, and is due in "
    )
    await client.queues.send("moves", 3, group="b")
    await client.queues.send("moves", 4, group="b", delay="1h")
    [counted] = await store.queue_metrics("moves")
    assert (counted.due, counted.delayed) == (1, 3)
