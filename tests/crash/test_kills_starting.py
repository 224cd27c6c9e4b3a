"""Consumers that start runs, killed at every point: one run for each message, and none lost."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from typing import cast

import asyncpg
import pytest

from holdfast import App, Retry, current_message
from holdfast.client import Client, Outgoing
from holdfast.database.embedded import EmbeddedServer
from holdfast.database.urls import split_urls
from holdfast.store.port import Store
from holdfast.worker import WorkerOptions
from tests.crash.leases import until_gone
from tests.crash.ledger import home_of
from tests.crash.processes import processes
from tests.crash.sweeper import Switch
from tests.crash.worker import signed, work_on

pytestmark = [pytest.mark.crash, pytest.mark.timeout(240)]

CALLS = ("receive_messages", "ack_messages", "ack_and_start", "return_messages")
EACH = 3  # messages sent before each kill
LEFT = "select exists (select from holdfast.messages) or exists (select from holdfast.deliveries)"
END_VISIBILITY = """
    update holdfast.deliveries set visible_at = now();
    update holdfast.messages set visible_at = now()
"""


def consume(url: str, batch: int | None, kill_at: int) -> None:
    """Consume until nothing is left; die at a point. Each third message fails when it is new."""
    app, switch, url = App("depot"), Switch(kill_at), signed(url)

    def take(number: int, attempt: int) -> None:
        switch.pass_point()
        if number % 3 == 0 and attempt == 1:
            raise ValueError("not yet")
        current_message().start("shipping/track", number)  # no worker serves it: it only begins
        switch.pass_point()

    async def take_one(number: int) -> None:
        message = current_message()
        if number % 3 == 0 and message.attempt == 1:
            message.start("shipping/track", -1)  # the call fails, so this never begins
        take(number, message.attempt)

    async def take_all(numbers: list[int]) -> list[Exception | None]:
        errors: list[Exception | None] = []
        for number, message in zip(numbers, current_message().messages, strict=True):
            try:
                take(number, message.attempt)
            except ValueError as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors

    at_once = Retry(delay=lambda error: 0)
    if batch is None:
        app.consumer("parcels", concurrency=2, retry=at_once)(take_one)
    else:
        app.consumer("parcels", batch=batch, concurrency=2, retry=at_once)(take_all)

    def watch(store: Store) -> Store:
        return cast("Store", switch.over(store, *CALLS))

    async def run() -> None:
        _ = await work_on(app, url, WorkerOptions(), watch=watch, shard=0)
        connection = await asyncpg.connect(split_urls(url)[0])
        while await connection.fetchval(LEFT):
            await asyncio.sleep(0.005)
        os._exit(0)

    asyncio.run(run())


@pytest.mark.parametrize("batch", [None, 2])
async def test_each_message_starts_one_run_although_its_consumer_is_killed(
    server: EmbeddedServer, batch: int | None
) -> None:
    """B13. Kills before and after each call to the database, and in the function."""
    sent, kill_at = 0, 0
    connection: asyncpg.Connection | None = None
    async with Client(server.url) as client:
        await client.queues.create("parcels", visibility="1h")
        connection = await asyncpg.connect(home_of(server))
        while True:
            kill_at += 1
            new = [Outgoing(number) for number in range(sent, sent + EACH)]
            await client.queues.send_many("parcels", new)
            sent += EACH
            target = partial(processes.Process, target=consume)
            process = target(args=(server.url, batch, kill_at), daemon=True)
            process.start()
            await asyncio.to_thread(process.join)
            if process.exitcode == 0:
                break
            assert process.exitcode == -signal.SIGKILL
            await until_gone(server, process)  # what it had sent may take more messages
            await connection.execute(END_VISIBILITY)
    assert kill_at > 10, "there are more points than these"
    query = "select input::text::int from holdfast.runs where name = 'shipping/track'"
    started = [row[0] for row in await connection.fetch(query)]
    await connection.close()
    assert sorted(started) == list(range(sent))
