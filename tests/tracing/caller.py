"""A program with a tracer provider of its own that starts, signals and forks a run.

`python -m tests.tracing.caller DATABASE` prints the ids of the run and of its fork.
"""

from __future__ import annotations

import asyncio
import sys

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from holdfast import Client


async def main(database: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "website"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("website")
    async with Client(database) as client:
        with tracer.start_as_current_span("request"):
            handle = await client.start("shop/deliver", "lamp")
        with tracer.start_as_current_span("packing"):
            await client.signal(handle.run_id, "packed")
        await handle.result(timeout="60s")
        fork = await client.runs.fork(handle.run_id)
        await fork.result(timeout="60s")
    provider.shutdown()
    print(handle.run_id, fork.run_id)


asyncio.run(main(sys.argv[1]))
