"""The spans of a worker: attempts as they end, and runs that the worker has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from uuid import UUID

from opentelemetry.context import Context, attach
from opentelemetry.trace import NonRecordingSpan, SpanContext, set_span_in_context

from holdfast.definitions.activities import ActivityContext
from holdfast.definitions.flow_context import FlowStepContext
from holdfast.definitions.recorded import AttemptContext
from holdfast.definitions.steps import StepContext
from holdfast.store.port import Store
from holdfast.tracing.ended import read_ended
from holdfast.tracing.places import Place, PlacedHeaders, place_of, place_within
from holdfast.tracing.provider import Tracer
from holdfast.tracing.writer import EndedSpan, Kind, SpanWriter, sampled_context
from holdfast.types import ErrorInfo, RunRecord
from holdfast.values.loggers import get_logger
from holdfast.values.trace_ids import (
    TRACEPARENT,
    QuietHeaders,
    attempt_span_id,
    parent_of,
    run_span_id,
)
from holdfast.values.waits import in_own_thread

logger = get_logger("holdfast.tracing")

_STOP_SECONDS: Final = 3.0  # for the logs of runs that have ended
_TAKE_SECONDS: Final = 1.0  # between two looks at ends that no worker's commit has made
_AT_ONCE: Final = 4  # logs that are read at the same time
_WAITING: Final = 1_000  # runs whose logs wait to be read; the spans of more are dropped
_INTERNAL: Kind = "internal"
_REMEMBERED: Final = 10_000  # runs whose sampling is remembered


class WorkerTracer:
    """Writes the spans of one worker."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._writer = SpanWriter(tracer)
        self._store: Store | None = None
        self._now: Callable[[], int] = int
        self._taking: asyncio.Task[None] | None = None
        self._places: dict[UUID, Place] = {}
        self._reading: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_AT_ONCE)

    @property
    def dropped(self) -> int:
        """How many spans were dropped, because more ended than could be written."""
        return self._writer.dropped

    async def start(self, store: Store, now: Callable[[], int]) -> None:
        """Begin to write spans; see `holdfast.worker.tracer.Tracer`."""
        self._store, self._now = store, now
        self._taking = asyncio.get_running_loop().create_task(self._take_ends(store))
        self._writer.start()

    async def stop(self) -> None:
        """Write what has ended until now."""
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait([self._taking])
            self._taking = None
        if self._reading:
            await asyncio.wait(self._reading, timeout=_STOP_SECONDS)
        for task in self._reading:
            task.cancel()
        await in_own_thread(self._writer.stop)

    def headers_of(self, run_id: UUID, headers: Mapping[str, str] | None) -> Mapping[str, str]:
        """Return a run's headers with its trace context, which its children inherit."""
        parent = parent_of(headers)
        place = place_within(self._tracer, run_id, parent)
        if headers is None or parent is None:
            headers = {**(headers or {}), TRACEPARENT: str(place.parent)}
        if place.sampled:
            return PlacedHeaders(headers, place)
        return QuietHeaders(headers, partial(attach, place.context))

    def begin(
        self,
        context: AttemptContext,
        lease_no: int,
        started_at: int,
        headers: Mapping[str, str] | None,
    ) -> AttemptSpan | None:
        """Begin the span of an attempt, and make it the current one; None if not sampled."""
        if type(headers) is PlacedHeaders:
            place = headers.place
        elif isinstance(context, StepContext | ActivityContext):
            place = self._place(context.run_id, headers)
        else:  # of a consumer: no run has called it
            return None
        if not place.sampled:
            attach(place.context)
            return None
        assert isinstance(context, StepContext | ActivityContext), "it has the headers of a run"
        span = AttemptSpan(self, place, context, lease_no, started_at)
        attach(set_span_in_context(span, Context()))
        return span

    def put(self, attempt: AttemptSpan, error: str | None) -> None:
        """Write the span of an attempt that has ended."""
        self._writer.put(partial(ended_attempt, attempt, self._now(), error))

    def run_ended(self, run_id: UUID, headers: Mapping[str, str] | None) -> None:
        """Write the span of a run whose end is durable, with those that its log tells of."""
        if type(headers) is QuietHeaders:
            return
        if type(headers) is PlacedHeaders or self._place(run_id, headers).sampled:
            self._read_later(run_id)

    async def _take_ends(self, store: Store) -> None:
        """Write the spans of runs that have ended without a worker's commit, again and again."""
        while True:
            try:
                taken = await store.take_ends()
            except Exception as error:
                taken = []
                logger.debug("ends of runs could not be taken: %s", error)
            for run_id in taken:
                self._read_later(run_id)
            if not taken:
                await asyncio.sleep(_TAKE_SECONDS)

    def _read_later(self, run_id: UUID) -> None:
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
                for span in await read_ended(store, run_id, self._is_sampled):
                    self._writer.put(span)
        except Exception:
            logger.exception("the spans of run %s could not be written", run_id)

    def _is_sampled(self, run: RunRecord) -> bool:
        return place_of(self._tracer, run.run_id, run.headers).sampled

    def _place(self, run_id: UUID, headers: Mapping[str, str] | None) -> Place:
        """Return the place of a run that another worker may hold."""
        place = self._places.get(run_id)
        if place is None:
            if len(self._places) >= _REMEMBERED:
                del self._places[next(iter(self._places))]
            place = self._places[run_id] = place_of(self._tracer, run_id, headers)
        return place


class AttemptSpan(NonRecordingSpan):
    """The span of an attempt under way, as its code sees it. Its ids are made when asked for."""

    def __init__(
        self,
        tracer: WorkerTracer,
        place: Place,
        context: StepContext | ActivityContext,
        lease_no: int,
        started_at: int,
    ) -> None:
        self._tracer, self._lease_no = tracer, lease_no
        self.place, self.attempt, self.started_at = place, context, started_at

    @property
    def span_id(self) -> int:
        """The id of the span."""
        attempt = self.attempt
        return attempt_span_id(attempt.run_id, attempt.key, attempt.attempt, self._lease_no)

    def get_span_context(self) -> SpanContext:
        """Return the ids of the span."""
        return sampled_context(self.place.trace_id, self.span_id, is_remote=False)

    def finish(self, error: ErrorInfo | None, *, stopped: bool = False) -> None:
        """End it: with a result, with an error, or because the worker has stopped the attempt."""
        kind = None if error is None else error.kind.removeprefix("builtins.")
        self._tracer.put(self, "stopped" if stopped else kind)


def ended_attempt(span: AttemptSpan, ended_at: int, error: str | None) -> EndedSpan:
    """Return the span of an attempt that has ended."""
    attempt, workflow = span.attempt, dict[str, str]()
    run_id, kind = attempt.run_id, _INTERNAL
    if isinstance(attempt, ActivityContext):
        kind, step, of = "consumer", attempt.name, "activity"
    else:
        step, of = attempt.step, "flow" if isinstance(attempt, FlowStepContext) else "step"
        workflow["workflow.name"] = attempt.workflow
    attributes: dict[str, str | int] = {
        **workflow,
        "run_id": str(run_id),
        "step.name": step,
        "step.kind": of,
        "step.attempt": attempt.attempt,
        "holdfast.key": attempt.key,
    }
    return EndedSpan(
        "workflow.step",
        span.place.trace_id,
        span.span_id,
        run_span_id(run_id),
        span.started_at,
        ended_at,
        attributes,
        kind,
        error,
    )
