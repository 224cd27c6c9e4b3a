"""Which runs are sampled: all of a run, or nothing of it, by the same answer in each process."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast
from uuid import UUID

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, Sampler, SamplingResult, TraceIdRatioBased

from holdfast import App, Client, Context
from holdfast.store.memory import MemoryStore
from holdfast.tracing.places import place_of
from holdfast.tracing.provider import Tracer
from holdfast.tracing.worker import WorkerTracer
from holdfast.tracing.writer import EndedSpan, SpanWriter
from holdfast.values.ids import uuid7
from holdfast.values.trace_ids import TRACEPARENT, attempt_span_id, run_span_id
from holdfast.worker import Worker


def tracer(sampler: Sampler) -> tuple[Tracer, InMemorySpanExporter]:
    provider, exporter = TracerProvider(sampler=sampler), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracer(provider), exporter


def test_a_ratio_of_a_tenth_samples_a_tenth_of_the_runs() -> None:
    for sampler in (TraceIdRatioBased(0.1), ParentBased(TraceIdRatioBased(0.1))):
        traced, _ = tracer(sampler)
        sampled = sum(place_of(traced, uuid7(), None).sampled for _ in range(10_000))
        assert 900 <= sampled <= 1_100  # 3.3 standard deviations


def test_all_spans_of_a_run_are_written_or_none() -> None:
    traced, exporter = tracer(ParentBased(TraceIdRatioBased(0.3)))
    writer, runs = SpanWriter(traced), [uuid7() for _ in range(300)]
    writer.start()
    sampled = set[UUID]()
    for run_id in runs:
        headers = None
        for number in range(3):  # three processes, the last ones know the run by its headers
            place = place_of(traced, run_id, headers)
            headers = {TRACEPARENT: str(place.parent)} if number else None
            if place.sampled:
                sampled.add(run_id)
                span_id = attempt_span_id(run_id, "charge", number, 1)
                parent = run_span_id(run_id)
                writer.put(EndedSpan("step", place.trace_id, span_id, parent, 1, 2, {}))
    writer.stop()
    counts = Counter(
        span.context.trace_id for span in exporter.get_finished_spans() if span.context
    )
    assert set(counts.values()) == {3}
    assert len(counts) == len(sampled)
    assert 0 < len(sampled) < len(runs)


def test_a_sampled_callers_run_is_sampled_and_others_are_not() -> None:
    traced, _ = tracer(ParentBased(TraceIdRatioBased(0.0)))
    headers = {TRACEPARENT: "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
    assert place_of(traced, uuid7(), headers).sampled
    headers = {TRACEPARENT: headers[TRACEPARENT][:-1] + "0"}
    assert not place_of(traced, uuid7(), headers).sampled


@pytest.mark.parametrize("error", [KeyError, AttributeError])
async def test_a_sampler_that_fails_holds_up_no_run(
    error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Such as one that needs attributes, which runs do not have, or that returns nothing."""

    class Fails(Sampler):
        def should_sample(self, *given: Any, **options: Any) -> SamplingResult:
            if error is AttributeError:
                return cast("SamplingResult", None)
            raise error("url.path of a run")

        def get_description(self) -> str:
            return "fails"

    app, store = App("shop"), MemoryStore()

    @app.step
    async def charge() -> int:
        return 3

    @app.workflow
    async def checkout(ctx: Context) -> int:
        return await charge()

    worker = Worker(app, store, tracer=WorkerTracer(tracer(Fails())[0]))
    await worker.start()
    try:
        async with Client(store=store, app=app) as client, asyncio.timeout(60):
            assert [await client.run(checkout) for _ in range(2)] == [3, 3]
    finally:
        await worker.stop(0)
    told = "the sampler of traces fails, and these runs have no spans: "
    assert caplog.text.count(f"{told}{error.__name__}: ") == 1


def test_spans_that_do_not_fit_into_the_queue_are_dropped_and_counted() -> None:
    traced, exporter = tracer(TraceIdRatioBased(1.0))
    writer = SpanWriter(traced, capacity=10)
    for number in range(1, 16):
        writer.put(EndedSpan("step", 7, number, 99, 1, 2, {}))
    assert writer.dropped == 5
    writer.start()
    writer.stop()
    assert len(exporter.get_finished_spans()) == 10


def test_other_tracers_of_the_provider_keep_their_ids() -> None:
    provider = TracerProvider()
    random = provider.id_generator
    traced = Tracer(provider)
    assert provider.id_generator is random
    traced.ids.choose(1, 2)
    span = provider.get_tracer("others").start_span("theirs")
    assert span.get_span_context().trace_id != 1
    assert traced.otel.start_span("ours").get_span_context().span_id == 2
    assert traced.otel.start_span("next").get_span_context().span_id != 2
    assert Tracer(provider).ids.others is random
