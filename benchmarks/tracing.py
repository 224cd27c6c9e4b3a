"""What traces cost a worker: its CPU time on W50, with tracing off, at 1 % and at 100 %.

`python -m benchmarks.tracing [--rounds N] [--before FOLDER]`; see `benchmarks.paired`. At 0 % no
run is sampled. Spans go to a collector that throws them away.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.paired import OFF, Variant, arguments, compare

SHARES = {"0 %": "0", "1 %": "0.01", "100 %": "1"}
AFTER_SECONDS = 0.5  # the thread that writes spans


class Collector(BaseHTTPRequestHandler):
    """Answers as a collector does, and keeps nothing."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


def sampled(endpoint: str, name: str, share: str) -> Variant:
    """Return a worker that sends a share of the traces."""
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": share,
    }
    return Variant(name, environment=environment)


def main() -> None:
    options = arguments(__doc__).parse_args()
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{collector.server_port}"
    traced = [sampled(endpoint, name, share) for name, share in SHARES.items()]
    compare([Variant(OFF), Variant("off again"), *traced], options, after_seconds=AFTER_SECONDS)


if __name__ == "__main__":
    main()
