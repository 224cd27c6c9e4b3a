"""The workflows that the client's tests start, and a worker that ends them by hand."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from uuid import UUID, uuid4

from holdfast.codec import describe, encode, encode_error
from holdfast.definitions.app import App
from holdfast.runtime.code.context import Context
from holdfast.store.port import Store
from holdfast.types import ANY_END, JSON, ClaimedTask, Event, Finish, Suspend, TurnCommit
from holdfast.values.ids import uuid7

app = App("shop")


@dataclass(frozen=True)
class Order:
    number: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Receipt:
    number: int
    paid: bool


@app.workflow(priority=1, queue="orders", timeout="1h", retention="7d")
async def order(ctx: Context, order: Order) -> Receipt:
    return Receipt(order.number, paid=True)


@app.workflow
async def tick(ctx: Context) -> int:
    return 1


@app.workflow(version=2, name="tick")
async def tick_2(ctx: Context) -> int:
    return 2


class Finisher:
    """A worker that claims and ends runs when the test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def claim(self, least: int = 0) -> list[ClaimedTask]:
        """Lease all that is due, and wait for so many.

        What was due long before the last claim, and could not be claimed, is only found soon.
        """
        tasks: list[ClaimedTask] = []
        while True:
            claims = await self._store.claim_tasks(
                "finisher", ("default", "orders"), app.handlers(), 1000, lease_seconds=30
            )
            tasks += claims.tasks
            if len(tasks) >= least:
                return tasks
            await asyncio.sleep(0.02)

    async def complete(self, output: object = None, least: int = 0) -> list[UUID]:
        """End every run that is due, with this output; return their ids."""
        finish = Finish("completed", output=encode(output))
        return await self._finish(finish, "WorkflowCompleted", least)

    async def fail(self, error: Exception) -> list[UUID]:
        """End every run that is due, with this error; return their ids."""
        finish = Finish("failed", error=encode_error(describe(error)))
        return await self._finish(finish, "WorkflowFailed")

    async def write(
        self,
        task: ClaimedTask,
        *events: Event,
        then: Suspend | Finish | None = None,
        at: int | None = None,
        has_commands: bool = False,
    ) -> None:
        """Append what a turn would, at the log's end or at an index."""
        turn = TurnCommit(
            task.run_id,
            task.lease_no,
            task.log_length if at is None else at,
            events,
            then,
            has_commands=has_commands,
        )
        committed = await self._store.commit("finisher", uuid4(), [turn])
        assert not committed.refused
        await self._store.notify(committed.notices)

    async def ask(self, task: ClaimedTask, key: str, request: JSON) -> None:
        """Have a run ask for an approval, and wait for it."""
        event = await self.event("ApprovalRequested", key, request)
        await self.write(task, event, then=Suspend(awaiting=(ANY_END,)), has_commands=True)

    async def continue_as_new(self, task: ClaimedTask, input: JSON = None) -> UUID:
        """End a run that continues as a new run."""
        run_id = uuid7()
        event = await self.event(
            "WorkflowContinuedAsNew",
            None,
            {"run_id": str(run_id), "input": input, "version": task.version, "signals": []},
        )
        finish = Finish("continued", output=encode({"run_id": str(run_id)}))
        length = len((await self._store.read_events([(task.run_id, 0)]))[task.run_id])
        await self.write(task, event, then=finish, at=length, has_commands=True)
        return run_id

    async def event(self, type: str, key: str | None, details: JSON = None) -> Event:
        """Make an event of this moment."""
        return Event(type, key, encode(details), await self._store.now())

    async def _finish(self, finish: Finish, event_type: str, least: int = 0) -> list[UUID]:
        tasks = await self.claim(least)
        event = Event(event_type, None, None, await self._store.now())
        turns = [
            TurnCommit(task.run_id, task.lease_no, task.log_length, [event], finish)
            for task in tasks
        ]
        committed = await self._store.commit("finisher", uuid4(), turns)
        assert not committed.refused
        await self._store.notify(committed.notices)
        return [task.run_id for task in tasks]
