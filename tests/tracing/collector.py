"""A collector in a process of its own: it receives OTLP over HTTP, as real ones do.

`python -m tests.tracing.collector` prints its port. `GET /` answers with all spans as JSON.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

_received: list[dict[str, Any]] = []
_lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """Receives spans, and shows them."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        known = self.path == "/v1/traces"
        if known and self.headers["content-type"] == "application/x-protobuf":
            request = ExportTraceServiceRequest.FromString(body)
            with _lock:
                _received.extend(_spans(request))
            self._answer(200, ExportTraceServiceResponse().SerializeToString())
        else:
            self._answer(404 if not known else 415, b"")

    def do_GET(self) -> None:
        with _lock:
            self._answer(200, json.dumps(_received).encode())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def _spans(request: ExportTraceServiceRequest) -> Iterable[dict[str, Any]]:
    for resource in request.resource_spans:
        about = _attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield {
                    "service": about.get("service.name"),
                    "scope": scope.scope.name,
                    "name": span.name,
                    "trace": span.trace_id.hex(),
                    "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(),
                    "kind": span.kind,
                    "began": span.start_time_unix_nano,
                    "ended": span.end_time_unix_nano,
                    "error": span.status.code == 2,
                    "attributes": _attributes(span.attributes),
                    "links": [[link.trace_id.hex(), link.span_id.hex()] for link in span.links],
                }


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_port, flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown()), daemon=True).start()
    server.serve_forever()
