"""Requests that are part of a trace: what they start and send continues it."""

from __future__ import annotations

from uuid import UUID

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast.insight.spans import read_details, text_of
from holdfast.store.port import Store
from holdfast.tracing.client import ClientTracer
from holdfast.tracing.provider import Tracer
from holdfast.tracing.requests import within_request
from holdfast.types import NewRun, NewSignal
from holdfast.values.ids import uuid7
from tests.server.shop import Api

RUNS = "/v1/workflows/checkout/runs"
CALLER = f"00-{'ab' * 16}-{'cd' * 8}-01"
OTHER = f"00-{'12' * 16}-{'34' * 8}-01"


async def headers_of(store: Store, run_id: str) -> dict[str, str]:
    run = (await store.get_runs([UUID(run_id)]))[UUID(run_id)]
    return dict(run.headers or {})


async def start(api: Api, body: object, **headers: str) -> str:
    answer = await api.ask("POST", RUNS, body, status=201, headers=headers)
    return str(answer["run_id"])


async def test_a_run_continues_the_trace_of_the_request_that_starts_it(
    api: Api, store: Store
) -> None:
    run = await start(api, {"input": 1}, traceparent=CALLER, tracestate="vendor=1")
    assert await headers_of(store, run) == {"traceparent": CALLER, "tracestate": "vendor=1"}

    body = {"input": 1, "headers": {"tenant": "a"}}
    run = await start(api, body, traceparent=CALLER, tracestate="v" * 513)
    assert await headers_of(store, run) == {"traceparent": CALLER, "tenant": "a"}

    body = {"input": 1, "headers": {"traceparent": OTHER}}
    run = await start(api, body, traceparent=CALLER)
    assert await headers_of(store, run) == {"traceparent": OTHER}


@pytest.mark.parametrize("text", ["", "00-x", f"00-{'0' * 32}-{'cd' * 8}-01"])
async def test_a_trace_that_is_not_valid_is_ignored(api: Api, store: Store, text: str) -> None:
    run = await start(api, {"input": 1}, traceparent=text, tracestate="vendor=1")
    assert await headers_of(store, run) == {}
    run = await start(api, {"input": 1})
    assert await headers_of(store, run) == {}


async def test_a_signal_and_an_update_link_to_their_requests(api: Api, store: Store) -> None:
    run = await start(api, {"input": 1})
    await api.ask("POST", f"/v1/runs/{run}/signals/go", headers={"traceparent": CALLER})
    path = f"/v1/runs/{run}/updates/rename?wait=0"
    await api.ask("POST", path, "Ann", status=202, headers={"traceparent": OTHER})
    log = (await store.read_events([(UUID(run), 0)]))[UUID(run)]
    traces = [text_of(read_details(event.details), "trace") for event in log[1:]]
    assert traces == [CALLER, OTHER]


def test_with_traces_the_servers_spans_are_within_the_requests() -> None:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer, run_id = ClientTracer(Tracer(provider), roots=False), uuid7()
    new = NewRun(run_id=run_id, name="shop/checkout", queue="default")
    with within_request(CALLER, "vendor=1"):
        with tracer.starts([new]) as (started,):
            pass
        with tracer.signals([NewSignal(run_id, "go", "1")]) as (signal,):
            pass
        with provider.get_tracer("web").start_as_current_span("request") as request:
            with tracer.starts([new]):  # the program's own span is nearer
                pass
    with tracer.starts([new]):
        pass
    spans = exporter.get_finished_spans()
    starts = [span for span in spans if span.name == "workflow.start"]
    (sent,) = [span for span in spans if span.name == "workflow.signal"]
    for span, found in ((starts[0], (started.headers or {})["traceparent"]), (sent, signal.trace)):
        assert span.context is not None
        assert span.parent is not None
        assert span.parent.span_id == int("cd" * 8, 16)
        assert found == f"00-{'ab' * 16}-{span.context.span_id:016x}-01"
    assert (started.headers or {})["tracestate"] == "vendor=1"
    assert starts[1].parent is not None
    assert starts[1].parent.span_id == request.get_span_context().span_id
    assert starts[2].parent is None
