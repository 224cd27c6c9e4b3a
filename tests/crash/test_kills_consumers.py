"""Consumers killed while they hold messages: none is lost, and no group goes back in its order."""

from __future__ import annotations

import asyncio
import os
import random
import time
from functools import partial
from itertools import pairwise
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import asyncpg
import pytest

from holdfast import App, current_message
from holdfast.client import Client, Outgoing
from holdfast.database.embedded import EmbeddedServer
from holdfast.store.port import messages_topic
from holdfast.store.postgres import PostgresStore
from holdfast.types import Notice
from holdfast.worker import WorkerOptions
from tests.crash.leases import until_gone
from tests.crash.ledger import home_of
from tests.crash.processes import processes
from tests.crash.worker import signed, work_on

pytestmark = [pytest.mark.crash, pytest.mark.timeout(120)]

MESSAGES = 200
GROUPS = 5
BLOWS = 5
PATIENCE_SECONDS = 90


def consume(url: str, ledger: Path) -> None:
    """Consume two queues until killed, and write down each message once its work is done."""
    app, url = App("depot"), signed(url)
    app.queue("parcels", concurrency=30)  # the places of who is killed come back
    app.queue("moves", concurrency=3)

    def write(line: str) -> None:
        time.sleep(0.002)
        with open(ledger, "a", encoding="utf-8") as file:  # one write: lines do not mix
            file.write(f"{line}\n")

    @app.consumer("parcels", batch=5, concurrency=4)
    def pack(numbers: list[int]) -> None:
        for number in numbers:
            write(f"parcels {number}")

    @app.consumer("moves", concurrency=4)
    def move(number: int) -> None:
        write(f"{current_message().group} {number}")

    async def run() -> None:
        options = WorkerOptions(heartbeat_seconds=0.3, lease_seconds=1.2)
        _ = await work_on(app, url, options)
        await asyncio.Event().wait()

    asyncio.run(run())


def size_of(ledger: Path) -> int:
    """Return the size of the ledger, in bytes."""
    return ledger.stat().st_size


def lines_of(ledger: Path) -> dict[str, list[int]]:
    """Return what was done, by queue or group, in its order."""
    done: dict[str, list[int]] = {}
    for line in ledger.read_text(encoding="utf-8").splitlines():
        name, number = line.split()
        done.setdefault(name, []).append(int(number))
    return done


async def end_visibility(server: EmbeddedServer, killed: ForkServerProcess) -> None:
    """Let the time be over for which messages are in flight with a killed process.

    Those of others stay in flight, however busy the machine is.
    """
    await until_gone(server, killed)
    connection = await asyncpg.connect(home_of(server))
    try:
        await connection.execute(
            "update holdfast.deliveries d set visible_at = now() from holdfast.workers w "
            "where w.worker_id = d.consumer and w.pid = $1",
            killed.pid,
        )
    finally:
        await connection.close()
    store = PostgresStore(home_of(server), connections=1)
    await store.open()
    await store.notify([Notice(messages_topic(queue), "") for queue in ("parcels", "moves")])
    await store.close()


async def test_killed_consumers_lose_no_message_and_keep_the_order_of_groups(
    server: EmbeddedServer, ledger: Path
) -> None:
    """B13. Every message is consumed; what is consumed twice is what a killed worker held."""
    choose = random.Random(5)
    groups = [f"g{number}" for number in range(GROUPS)]
    start = partial(processes.Process, target=consume, args=(server.url, ledger), daemon=True)
    workers: list[ForkServerProcess] = []
    try:
        async with Client(server.url) as client:
            await client.queues.create("parcels", visibility="1m")
            await client.queues.create("moves", fifo=True, visibility="1m")
            for _ in range(3):
                workers.append(start())
                workers[-1].start()
            for part in range(BLOWS):
                size = MESSAGES // BLOWS
                enough = size_of(ledger) + choose.randrange(50, 400)  # of the 700 to come
                numbers = range(part * size, (part + 1) * size)
                await client.queues.send_many("parcels", [Outgoing(each) for each in numbers])
                moves = [Outgoing(n, group=groups[n % GROUPS]) for n in numbers]
                await client.queues.send_many("moves", moves)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while size_of(ledger) < enough:
                        await asyncio.sleep(0.005)
                killed = workers.pop(choose.randrange(len(workers)))
                assert killed.pid is not None
                os.kill(killed.pid, 9)
                killed.join()
                await end_visibility(server, killed)
                workers.append(start())
                workers[-1].start()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while sum(map(len, map(set, lines_of(ledger).values()))) < 2 * MESSAGES:
                    await asyncio.sleep(0.05)
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    done = lines_of(ledger)
    assert set(done["parcels"]) == set(range(MESSAGES))
    for place, group in enumerate(groups):
        assert sorted(set(done[group])) == list(range(place, MESSAGES, GROUPS))
        assert all(later >= earlier for earlier, later in pairwise(done[group]))
    repeated = sum(len(numbers) - len(set(numbers)) for numbers in done.values())
    assert repeated <= BLOWS * (4 * 5 + 4), "no more than what the killed held"
