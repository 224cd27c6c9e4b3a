"""Flows in the contract's tests: shapes, runs of them, and workers that do what the test says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID, uuid4

from clocks import Clock

from holdfast.store.port import Store
from holdfast.store.port.flows import FlowStore
from holdfast.types import (
    ClaimedTask,
    Claims,
    FlowShape,
    FlowStepState,
    NewRun,
    Release,
    StepShape,
    StepTaskEnd,
    StepTaskOutcome,
    StepTasksEnded,
    Taker,
)

from .actors import get, log

NAME = "shop/trip"
NO_LUCK = '{"kind":"builtins.OSError","message":"no luck"}'


class FlowsStore(Store, FlowStore, Protocol):
    """A store with its part for flows."""


def single(slug: str, *deps: str, **options: Any) -> StepShape:
    """Return a step that is given the run's input too."""
    return StepShape(slug=slug, deps=deps, **{"wants_run": True, **options})


def mapped(slug: str, *over: str, **options: Any) -> StepShape:
    """Return a map over a step, or over the run's input."""
    return StepShape(slug=slug, kind="map", deps=over, **options)


def end(task: ClaimedTask, returned: object = None, **fields: Any) -> StepTaskEnd:
    """Return the end of an attempt that returned a value, unless the fields say otherwise."""
    place = {"run_id": task.run_id, "key": task.key, "lease_no": task.lease_no}
    if not {"error", "output"} & fields.keys():
        fields["output"] = json.dumps(returned)
    return StepTaskEnd(**place, **fields)


@dataclass
class Flows:
    """A store with flows in it, and who looks at their runs."""

    store: FlowsStore
    clock: Clock

    async def define(self, *steps: StepShape, **options: Any) -> FlowShape:
        """Make a flow of steps."""
        shape = FlowShape(**{"name": NAME, "steps": steps, **options})
        assert (await self.store.ensure_flow(shape, "hash")).status == "compiled"
        return shape

    async def start(self, given: object = None, **fields: Any) -> UUID:
        """Start a run of the flow."""
        run = NewRun(**{"run_id": uuid4(), "name": NAME, "input": json.dumps(given), **fields})
        [started], _ = await self.store.start_flows([run])
        assert started.created
        return run.run_id

    async def run_of(self, *steps: StepShape, given: object = None) -> UUID:
        """Start a run of a new flow of steps."""
        await self.define(*steps)
        return await self.start(given)

    async def steps(self, run_id: UUID) -> dict[str, FlowStepState]:
        """Return the steps of a run, by slug."""
        return {state.step: state for state in (await self.store.flow_steps([run_id]))[run_id]}

    async def statuses(self, run_id: UUID) -> dict[str, str]:
        """Return the statuses of a run's steps."""
        return {slug: state.status for slug, state in (await self.steps(run_id)).items()}

    async def output(self, run_id: UUID) -> Any:
        """Return the output of a run that must have completed."""
        run = await get(self.store, run_id)
        assert run.status == "completed", (run.status, run.error)
        return json.loads(run.output or "null")

    async def error(self, run_id: UUID) -> Any:
        """Return the error of a run that must have failed."""
        run = await get(self.store, run_id)
        assert run.status == "failed"
        return json.loads(run.error or "null")

    async def log(self, run_id: UUID) -> list[str]:
        """Return the log of a run: the types of its entries, with the steps that they are about."""
        return [
            f"{event.type} {event.key or ''}".strip() for event in await log(self.store, run_id)
        ]

    async def details(self, run_id: UUID, event_type: str) -> list[Any]:
        """Return the details of all entries of a type."""
        events = await log(self.store, run_id)
        return [json.loads(e.details or "null") for e in events if e.type == event_type]


@dataclass
class StepWorker:
    """A worker that claims and ends tasks of steps when the test says so."""

    store: FlowsStore
    worker_id: str = "ann"

    async def claims(
        self, limit: int = 100, *, handlers: Sequence[str] = (f"{NAME}@1",), **options: Any
    ) -> Claims:
        """Claim what is due."""
        asked = {"queues": ("default", "gpu"), "lease_seconds": 30.0, **options}
        queues = asked.pop("queues")
        return await self.store.claim_tasks(self.worker_id, queues, handlers, limit, **asked)

    async def take(self, limit: int = 100, **options: Any) -> dict[str, ClaimedTask]:
        """Claim what is due, and return it by key."""
        return {task.key: task for task in (await self.claims(limit, **options)).tasks}

    async def one(self, **options: Any) -> ClaimedTask:
        """Claim the one task that is due."""
        [task] = (await self.claims(**options)).tasks
        return task

    async def report(self, *ends: StepTaskEnd, taker: Taker | None = None) -> StepTasksEnded:
        """Report how attempts ended."""
        return await self.store.end_step_tasks(self.worker_id, ends, taker)

    async def complete(self, task: ClaimedTask, output: object = None) -> StepTaskOutcome:
        """Report an output; return what became of it."""
        [outcome] = (await self.report(end(task, output))).outcomes
        return outcome

    async def fail(
        self, task: ClaimedTask, *, error: str = NO_LUCK, retryable: bool = True
    ) -> StepTaskOutcome:
        """Report an error; return what became of it."""
        ended = await self.report(end(task, error=error, retryable=retryable))
        [outcome] = ended.outcomes
        return outcome

    async def release(self, task: ClaimedTask, **fields: Any) -> None:
        """Give a task back."""
        release = Release(task.run_id, task.key, task.lease_no, **fields)
        await self.store.release_tasks(self.worker_id, [release])

    def taker(self, room: int = 100, **fields: Any) -> Taker:
        """Return that this worker takes tasks as they become ready."""
        asked = {"queues": ("default",), "handlers": (f"{NAME}@1",), "lease_seconds": 30.0}
        return Taker(room, **{**asked, **fields})
