"""A process that runs or deletes a run with large payloads, and kills itself between two calls."""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast
from uuid import UUID

from holdfast import App, Context
from holdfast.objects import Objects
from holdfast.payloads import LargePayloads
from holdfast.retention.deletion import sweep_batches
from holdfast.store.postgres import PostgresStore
from holdfast.worker import Worker
from tests.crash.sweeper import Switch

SIZE: Final = 5_000


def make_app(place: str) -> App:
    """Return an app whose runs have three large payloads."""
    app = App("crash", large_payloads=LargePayloads(place, above="4kB"))

    @app.step
    async def repeat(letter: str) -> str:
        return SIZE * letter

    @app.workflow
    async def join(ctx: Context, letters: str) -> str:
        return "".join([await repeat(letter) for letter in letters])

    return app


class WatchedStore(PostgresStore):
    """A store whose calls about large payloads are points at which the process may die."""

    def __init__(self, url: str, switch: Switch) -> None:
        super().__init__(url, connections=2)
        self._switch = switch
        names = ("own_payloads", "commit", "due_payloads", "forget_payloads")
        watched: Any = switch.over(super())
        for name in names:
            setattr(self, name, getattr(watched, name))

    def objects_at(self, url: str) -> Objects:
        """Return objects that are watched, too."""
        return cast("Objects", self._switch.over(super().objects_at(url)))


async def work(url: str, place: str, run_id: UUID | None, kill_at: int) -> int:
    """Finish a run, or without a run delete what is due; die at a point, 0 for none.

    Returns the number of points.
    """
    switch = Switch(kill_at)
    store = WatchedStore(url, switch)
    await store.open()
    if run_id:
        worker = Worker(make_app(place), store)
        await worker.start()
        while (await store.get_runs([run_id]))[run_id].status == "running":
            await asyncio.sleep(0.02)
        await worker.stop(grace=1)
    else:
        async for _ in sweep_batches(store):
            pass
    await store.close()
    return switch.points
