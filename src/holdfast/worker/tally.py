"""A store that counts what a worker does with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from holdfast.events import STEP_ENDS, TIMER_FIRED
from holdfast.store.port import Store
from holdfast.types import (
    ActivitiesEnded,
    ActivityEnd,
    Claims,
    Committed,
    Finish,
    StepTaskEnd,
    StepTasksEnded,
    Taker,
    TurnCommit,
)


class Tally:
    """Pass every call on to a store, and count what was claimed and what became durable.

    `runs` has the ids of the runs of which a task was claimed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.runs: set[UUID] = set()
        self.tasks = self.turns = self.ended = self.steps = self.timers = 0
        self.activities = self.flow_steps = 0

    @property
    def store(self) -> Store:
        """The store that counts."""
        return cast("Store", self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Pass on what is not counted."""
            return getattr(self._store, name)

    async def claim_tasks(self, *arguments: Any, **options: Any) -> Claims:
        claims = await self._store.claim_tasks(*arguments, **options)
        self.runs.update(task.run_id for task in claims.tasks)
        self.tasks += len(claims.tasks)
        self.turns += sum(task.kind == "workflow" for task in claims.tasks)
        return claims

    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        committed = await self._store.commit(worker_id, token, turns)
        for part in turns:
            if part.run_id not in committed.refused:
                self.ended += isinstance(part.then, Finish)
                self.steps += sum(event.type in STEP_ENDS for event in part.events)
                self.timers += sum(event.type == TIMER_FIRED for event in part.events)
        return committed

    async def end_activities(
        self, worker_id: str | None, ends: Sequence[ActivityEnd]
    ) -> ActivitiesEnded:
        ended = await self._store.end_activities(worker_id, ends)
        self.activities += sum(outcome != "lost" for outcome in ended.outcomes)
        return ended

    async def end_step_tasks(
        self,
        worker_id: str,
        ends: Sequence[StepTaskEnd],
        taker: Taker | None = None,
        *,
        patience: int = 1,
    ) -> StepTasksEnded:
        ended = await self._store.end_step_tasks(worker_id, ends, taker, patience=patience)
        self.flow_steps += sum(outcome != "lost" for outcome in ended.outcomes)
        self.tasks += len(ended.tasks)
        self.runs.update(task.run_id for task in ended.tasks)
        return ended
