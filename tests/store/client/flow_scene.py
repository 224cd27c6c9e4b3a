"""Runs of flows as clients see them, and a worker that ends their steps by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol, cast
from uuid import UUID, uuid4

from holdfast.store.port import Store
from holdfast.store.port.flows import FlowStore
from holdfast.types import ClaimedTask, FlowShape, NewRun, StepShape, StepTaskEnd, WorkerInfo
from holdfast.values.ids import keyed_run_id

NAME = "shop/trip"
HANDLER = f"{NAME}@1"
NO_LUCK = '{"kind":"builtins.OSError","message":"no luck"}'


class FlowsStore(Store, FlowStore, Protocol):
    """A store with its part for flows."""


def single(slug: str, *deps: str, **options: Any) -> StepShape:
    """Return a step."""
    return StepShape(slug=slug, deps=deps, **options)


def mapped(slug: str, *over: str, **options: Any) -> StepShape:
    """Return a map over a step, or over the run's input."""
    return StepShape(slug=slug, kind="map", deps=over, **options)


@dataclass
class FlowScene:
    """A store with flows in it, and a worker named ann."""

    given: Store

    @property
    def store(self) -> FlowsStore:
        return cast("FlowsStore", self.given)

    async def start(
        self,
        *steps: StepShape,
        given: object = None,
        name: str = NAME,
        delay: float | None = None,
        key: str | None = None,
        **options: Any,
    ) -> UUID:
        """Start a run of a flow of these steps, which may be there already."""
        shape = FlowShape(name=name, steps=steps, **options)
        await self.store.ensure_flow(shape, "hash")
        run = NewRun(
            run_id=uuid4() if key is None else keyed_run_id(name, key),
            kind="flow",
            name=name,
            input=json.dumps(given),
            delay_seconds=delay,
            key=key,
        )
        await self.store.start_flows([run])
        return run.run_id

    async def sign_on(self, worker_id: str = "ann", *queues: str) -> None:
        """Sign a worker of the flow on."""
        info = WorkerInfo(
            worker_id=worker_id,
            hostname="here",
            pid=1,
            queues=queues or ("default",),
            handlers=(HANDLER,),
            concurrency=10,
            holdfast_version="0",
        )
        await self.store.heartbeat(info, [], lease_seconds=30)

    async def take(self, limit: int = 100, worker: str = "ann") -> dict[str, ClaimedTask]:
        """Claim what is due, and return it by key."""
        claims = await self.store.claim_tasks(
            worker, ("default", "gpu"), (HANDLER,), limit, lease_seconds=30.0
        )
        return {task.key: task for task in claims.tasks}

    async def complete(self, task: ClaimedTask, output: object = None, worker: str = "ann") -> None:
        """Report an output."""
        await self._end(worker, task, output=json.dumps(output))

    async def fail(self, task: ClaimedTask, *, retryable: bool = True) -> None:
        """Report an error."""
        await self._end("ann", task, error=NO_LUCK, retryable=retryable)

    async def _end(self, worker: str, task: ClaimedTask, **fields: Any) -> None:
        end = StepTaskEnd(run_id=task.run_id, key=task.key, lease_no=task.lease_no, **fields)
        ended = await self.store.end_step_tasks(worker, [end])
        assert ended.outcomes != ["lost"]
        await self.store.notify(ended.notices)
