"""Publishers and deliverers killed: each row that was committed has its run and its request."""

from __future__ import annotations

import asyncio
import json
import random
from multiprocessing.context import ForkServerProcess

import asyncpg
import pytest

from holdfast.database.embedded import EmbeddedServer
from holdfast.store.postgres import PostgresStore
from holdfast.types import NewSubscription, UrlTarget
from tests.crash import publishing
from tests.crash.leases import until_gone
from tests.crash.ledger import home_of
from tests.crash.processes import processes
from tests.targets import Target, target

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BLOWS = 3
EACH = 10  # orders, at least, before each blow


async def begin(url: str, *, publishes: bool = False) -> ForkServerProcess:
    """Start a process that publishes, or a worker, and wait until it is ready."""
    here, there = processes.Pipe(duplex=False)
    options = {"publishes": publishes}
    process = processes.Process(
        target=publishing.run, args=(url, there), kwargs=options, daemon=True
    )
    process.start()
    there.close()
    with here:
        assert await asyncio.to_thread(here.poll, 60)
        assert here.recv()
    return process


async def kill(process: ForkServerProcess) -> None:
    """Kill it as power failure would."""
    process.kill()
    await asyncio.to_thread(process.join)


async def until(connection: asyncpg.Connection, query: str) -> None:
    """Wait until a query gives true."""
    async with asyncio.timeout(180):
        while not await connection.fetchval(query):
            await asyncio.sleep(0.05)


async def test_what_was_committed_is_started_and_delivered(server: EmbeddedServer) -> None:
    """B14, section 4 of the design: edge cases 15 and 20 for publishers and deliverers."""
    choose = random.Random(11)
    async with target() as web:
        store = PostgresStore(home_of(server))
        await store.open()
        for path in ("/ok", "/hangs"):
            url = UrlTarget(url=web.url(path), secret=SECRET, allow_inner=True)
            await store.subscribe(NewSubscription(pattern="orders.#", target=url))
        await store.close()
        listening = asyncio.create_task(listen(web))
        connection = await asyncpg.connect(home_of(server))
        await connection.execute("create table orders (id int generated always as identity)")
        worker = await begin(server.url)  # which declares the subscription
        try:
            for _ in range(BLOWS):
                publisher = await begin(server.url, publishes=True)
                known = await connection.fetchval("select count(*) from orders")
                await until(connection, f"select count(*) >= {known + EACH} from orders")
                await asyncio.sleep(choose.uniform(0, 0.1))
                await asyncio.gather(kill(publisher), kill(worker))
                await until_gone(server, worker)
                worker = await begin(server.url)
            # The leases of those that were killed run out.
            await connection.execute(
                "update holdfast.http_deliveries set visible_at = now() where dead_at is null"
            )
            await until(
                connection,
                "select count(*) = (select count(*) from orders) from holdfast.runs "
                "where name = 'outbox/ship' and status = 'completed'",
            )
            await until(
                connection,
                "select not exists (select from holdfast.http_deliveries d "
                "join holdfast.subscriptions s using (subscription_id) "
                "where s.target like '%/ok')",
            )
            async with asyncio.timeout(60):
                while len(told(web)) < await connection.fetchval("select count(*) from orders"):
                    await asyncio.sleep(0.01)
        finally:
            await kill(worker)
            listening.cancel()
        orders = {row[0] for row in await connection.fetch("select id from orders")}
        outputs = await connection.fetch(
            "select output::text::int from holdfast.runs where name = 'outbox/ship'"
        )
        assert sorted(row[0] for row in outputs) == sorted(orders)
        assert told(web) == orders
        hung = await connection.fetchval("select max(attempts) from holdfast.http_deliveries")
        assert hung >= 1
        await connection.close()


def told(web: Target) -> set[int]:
    """Return the orders that the server has been told of."""
    return {json.loads(each["body"])["data"] for each in web.got if each["path"] == "/ok"}


async def listen(web: Target) -> None:
    """Read what the server says of requests."""
    while True:
        await web.next()
