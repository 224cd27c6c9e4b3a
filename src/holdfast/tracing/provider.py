"""OpenTelemetry's side: the tracer provider, and a tracer whose spans have the ids that we choose.

This module imports OpenTelemetry, so it is imported when tracing is on.
"""

from __future__ import annotations

import atexit
import importlib
import os
import threading
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator

from holdfast._version import __version__
from holdfast.errors import ConfigurationError
from holdfast.tracing.switch import find_provider

SCOPE: Final = "holdfast"

_EXPORTERS: Final = {
    "http/protobuf": ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "http"),
    "grpc": ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "grpc"),
}
_QUEUE: Final = 8192  # spans that wait for the exporter, if $OTEL_BSP_MAX_QUEUE_SIZE is not set

_FLUSH_SECONDS: Final = 2.0

_making = threading.Lock()
_own: TracerProvider | None = None


class ChosenIds(IdGenerator):
    """Give the span that a thread makes next the id that was chosen for it; else a random one."""

    def __init__(self, others: IdGenerator) -> None:
        self.others, self._chosen = others, _Chosen()

    def choose(self, trace_id: int, span_id: int) -> None:
        """Choose the ids of the span that this thread makes next."""
        self._chosen.ids = (trace_id, span_id)

    def generate_trace_id(self) -> int:
        """Return the id of a trace that the next span begins."""
        ids = self._chosen.ids
        return self.others.generate_trace_id() if ids is None else ids[0]

    def generate_span_id(self) -> int:
        """Return the id of the next span."""
        ids, self._chosen.ids = self._chosen.ids, None
        return self.others.generate_span_id() if ids is None else ids[1]


class _Chosen(threading.local):
    ids: tuple[int, int] | None = None


class Tracer:
    """A tracer of a provider, with the choice of ids."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        others: Any = provider.id_generator
        if isinstance(others, ChosenIds):  # another thread makes its tracer
            others = others.others
        self.ids = ChosenIds(others)
        ids: Any = self.ids  # the attribute is declared as that of random ids
        provider.id_generator = ids
        try:
            self.otel = provider.get_tracer(SCOPE, __version__)
        finally:
            provider.id_generator = others
        used = getattr(self.otel, "id_generator", None)
        if isinstance(used, ChosenIds):
            self.ids = used  # the provider keeps its tracers


def tracer_for(service: str | None, *, shared: bool) -> Tracer:
    """Return a tracer of the program's provider, or of one that exports as the environment says.

    `service` is the service's name if the environment has none. With `shared`, our own provider
    becomes the program's: spans of its libraries are exported too, within those of the attempts.
    Raises ConfigurationError if the exporter is not installed.
    """
    global _own
    with _making:
        provider = find_provider() or _own
        if provider is None:
            _own = provider = _make_provider(service)
        if shared and find_provider() is None:
            trace.set_tracer_provider(provider)
        return Tracer(provider)


class _Service(Resource):
    """A resource that is hashed once: the exporter asks for the hash with each span."""

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> _Service:
        """Return the resource that the environment describes, with these attributes."""
        made = Resource.create(dict(attributes))
        return cls(dict(made.attributes), made.schema_url)

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


def _make_provider(service: str | None) -> TracerProvider:
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    attributes = {} if named or service is None else {"service.name": service}
    provider = TracerProvider(resource=_Service.of(attributes), shutdown_on_exit=False)
    size = None if "OTEL_BSP_MAX_QUEUE_SIZE" in os.environ else _QUEUE
    exporter = _exporter()
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=size))
    atexit.register(_leave, provider, exporter)
    return provider


def _leave(provider: TracerProvider, exporter: SpanExporter) -> None:
    """Send the last spans of the process; a collector that does not answer does not hold it up."""
    flush(provider)
    exporter.shutdown()  # ends its pause between two tries


def flush(provider: TracerProvider) -> None:
    """Send the spans that have ended, within a few seconds. Blocks."""
    limit = _FLUSH_SECONDS
    thread = threading.Thread(target=provider.force_flush, args=(int(limit * 1000),), daemon=True)
    thread.start()
    thread.join(limit)


def _exporter() -> SpanExporter:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if protocol not in _EXPORTERS:
        raise ConfigurationError(
            f"$OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}: use http/protobuf or grpc"
        )
    module, package = _EXPORTERS[protocol]
    try:
        make: Callable[[], SpanExporter] = importlib.import_module(module).OTLPSpanExporter
    except ImportError as error:
        raise ConfigurationError(
            f"spans cannot be sent by {protocol}: install "
            f"opentelemetry-exporter-otlp-proto-{package}, or set "
            "$OTEL_EXPORTER_OTLP_PROTOCOL to http/protobuf"
        ) from error
    return make()
