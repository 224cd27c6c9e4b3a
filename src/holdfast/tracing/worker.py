"""The spans of a worker: attempts as they end, and runs that the worker has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from opentelemetry import context as otel_context

from holdfast.definitions.activities import ActivityContext
from holdfast.definitions.flow_context import FlowStepContext
from holdfast.definitions.recorded import AttemptContext
from holdfast.definitions.steps import StepContext
from holdfast.store.port import Store
from holdfast.trace_ids import (
    TRACEPARENT,
    attempt_span_id,
    parent_of,
    run_span_id,
)
from holdfast.tracing.ended import read_ended
from holdfast.tracing.places import Place, place_of
from holdfast.tracing.provider import Tracer
from holdfast.tracing.writer import EndedSpan, Kind, SpanWriter
from holdfast.types import ErrorInfo

logger = logging.getLogger("holdfast.tracing")

_STOP_SECONDS: Final = 3.0  # for the logs of runs that have ended
_AT_ONCE: Final = 4  # logs that are read at the same time
_WAITING: Final = 1_000  # runs whose logs wait to be read; the spans of more are dropped
_REMEMBERED: Final = 10_000  # runs whose sampling is remembered


class WorkerTracer:
    """Writes the spans of one worker."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._writer = SpanWriter(tracer)
        self._store: Store | None = None
        self._now: Callable[[], int] = int
        self._places: dict[UUID, Place] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def start(self, store: Store, now: Callable[[], int]) -> None:
        """Begin to write spans; see `holdfast.worker.tracer.Tracer`."""
        self._store, self._now = store, now
        self._writer.start()

    async def stop(self) -> None:
        """Write what has ended until now."""
        if self._reading:
            await asyncio.wait(self._reading, timeout=_STOP_SECONDS)
        for task in self._reading:
            task.cancel()
        await asyncio.to_thread(self._writer.stop)

    def headers_of(self, run_id: UUID, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return a run's headers with its trace context, which its children inherit."""
        if headers is not None and parent_of(headers) is not None:
            return headers
        return {**(headers or {}), TRACEPARENT: str(self._place(run_id, headers).parent)}

    def begin(self, context: AttemptContext, lease_no: int, started_at: int) -> AttemptSpan | None:
        """Begin the span of an attempt, and make it the current one; None if not sampled."""
        if not isinstance(context, StepContext | ActivityContext):
            return None
        run_id = context.run_id
        place = self._places.get(run_id) or self._place(run_id, context.headers)
        if not place.sampled:
            otel_context.attach(place.context)
            return None
        span_id = attempt_span_id(run_id, context.key, context.attempt, lease_no)
        otel_context.attach(place.context_of(span_id))
        return AttemptSpan(self, context, place.trace_id, span_id, started_at)

    def write(self, attempt: AttemptSpan, error: str | None) -> None:
        """Write the span of an attempt that has ended."""
        context = attempt.context
        kind: Kind = "internal"
        if isinstance(context, ActivityContext):
            kind, step, of = "consumer", context.name, "activity"
            workflow: dict[str, str] = {}
        else:
            step, of = context.step, "flow" if isinstance(context, FlowStepContext) else "step"
            workflow = {"workflow.name": context.workflow}
        run_id = context.run_id
        attributes: dict[str, str | int] = {
            **workflow,
            "run_id": str(run_id),
            "step.name": step,
            "step.kind": of,
            "step.attempt": context.attempt,
            "holdfast.key": context.key,
        }
        self._writer.put(
            EndedSpan(
                "workflow.step",
                attempt.trace_id,
                attempt.span_id,
                run_span_id(run_id),
                attempt.started_at,
                self._now(),
                attributes,
                kind,
                error,
            )
        )

    def run_ended(self, run_id: UUID, headers: Mapping[str, str] | None) -> None:
        """Write the span of a run whose end is durable, with those that its log tells of."""
        place = self._places.pop(run_id, None) or self._place(run_id, headers)
        self._places.pop(run_id, None)
        if not place.sampled:
            return
        if len(self._reading) >= _WAITING:
            self._writer.dropped += 1
            return
        task = asyncio.get_running_loop().create_task(self._read(run_id))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _read(self, run_id: UUID) -> None:
        store = self._store
        assert store is not None, "a worker that ends runs has started its tracer"
        try:
            async with self._slots:
                for span in await read_ended(store, run_id):
                    self._writer.put(span)
        except Exception:
            logger.exception("the spans of run %s could not be written", run_id)

    def _place(self, run_id: UUID, headers: Mapping[str, str] | None) -> Place:
        """Decide once whether a run's trace is sampled, as every other process decides it."""
        places = self._places
        if len(places) >= _REMEMBERED:
            del places[next(iter(places))]
        place = places[run_id] = place_of(self._tracer, run_id, headers)
        return place


class AttemptSpan:
    """The span of an attempt under way."""

    __slots__ = ("_tracer", "context", "span_id", "started_at", "trace_id")

    def __init__(
        self,
        tracer: WorkerTracer,
        context: StepContext | ActivityContext,
        trace_id: int,
        span_id: int,
        started_at: int,
    ) -> None:
        self._tracer, self.context = tracer, context
        self.trace_id, self.span_id, self.started_at = trace_id, span_id, started_at

    def end(self, error: ErrorInfo | None, *, stopped: bool = False) -> None:
        """End it: with a result, with an error, or because the worker has stopped the attempt."""
        kind = None if error is None else error.kind.removeprefix("builtins.")
        self._tracer.write(self, "stopped" if stopped else kind)
