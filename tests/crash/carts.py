"""A worker with entities, which is killed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from holdfast import App
from holdfast.runtime.code import entities
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker, WorkerOptions

app = App("killed-carts")


@app.step
async def touch(item: str) -> str:
    """Do something that takes a moment."""
    await asyncio.sleep(0.01)
    return item


@app.entity
@dataclass
class Cart:
    """Items by the numbers of the calls that brought them."""

    items: list[int] = field(default_factory=list)

    async def add(self, number: int) -> int:
        """Add a number at once, or after a step."""
        if number % 3 == 0:
            await touch(str(number))
        self.items.append(number)
        return len(self.items)


def run(url: str, ready: Connection) -> None:
    """Serve until the process is killed."""
    asyncio.run(_serve(url, ready))


async def _serve(url: str, ready: Connection) -> None:
    entities.MOST_CALLS = 15  # type: ignore[misc]  # so that runs are continued, too
    store = PostgresStore(url, tells=True)
    await store.open()
    options = WorkerOptions(
        lease_seconds=1.5, silent_seconds=1.5, heartbeat_seconds=0.3, maintenance_seconds=0.2
    )
    worker = Worker(app, store, options, heartbeat_store=lambda: PostgresStore(url, tells=True))
    await worker.start()
    ready.send(True)
    await asyncio.Event().wait()
