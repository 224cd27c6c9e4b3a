"""An address of its own at which a worker shows its metrics.

It is served by a thread, so that a scrape is answered while code blocks the event loop, and does
not hold the loop up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Final, cast

from holdfast.errors import ConfigurationError
from holdfast.telemetry.tallies import Family
from holdfast.telemetry.text import CONTENT_TYPE, render

_REQUEST_SECONDS: Final = 5.0
_PORTS: Final = 65_536


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`, or of a port of this machine alone.

    Raises ConfigurationError.

    >>> parse_address("0.0.0.0:9464"), parse_address("[::1]:9464"), parse_address("9464")
    (('0.0.0.0', 9464), ('::1', 9464), ('127.0.0.1', 9464))
    """
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (port.isascii() and port.isdecimal() and int(port) < _PORTS) or (colon and not host):
        raise ConfigurationError(
            f"{text!r} is not an address for metrics: write HOST:PORT, such as 127.0.0.1:9464"
        )
    return host or "127.0.0.1", int(port)


def address_of(address: str, place: int) -> str:
    """Return the address of the worker process of a place: each has a port of its own.

    Raises ConfigurationError.

    >>> address_of("127.0.0.1:9464", 2)
    '127.0.0.1:9466'
    """
    host, port = parse_address(address)
    if port and port + place >= _PORTS:
        raise ConfigurationError(
            f"{address!r} leaves no port for each process: the last one is {_PORTS - 1}"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{port + place if port else 0}"


class MetricsListener:
    """Answers `GET /metrics` with what `read` returns, from `start` until `stop`."""

    def __init__(self, host: str, port: int, read: Callable[[], Iterable[Family]]) -> None:
        self._host, self._port, self._read = host, port, read
        self._server: ThreadingTCPServer | None = None

    @property
    def port(self) -> int:
        """The port; before the start the one that was asked for."""
        return self._port if self._server is None else int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where the metrics are."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/metrics"

    def start(self) -> None:
        """Listen from now on. Raises ConfigurationError if the address cannot be used."""
        try:
            self._server = _Server(self._host, self._port, self._read)
        except OSError as error:
            raise ConfigurationError(
                f"metrics cannot be shown at {self._host} port {self._port}: {error.strerror}; "
                "choose another address with --metrics"
            ) from None
        threading.Thread(
            target=self._server.serve_forever, name="holdfast metrics", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop listening. Idempotent."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # a slow reader does not keep the worker from ending

    def __init__(self, host: str, port: int, read: Callable[[], Iterable[Family]]) -> None:
        self.read = read
        self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "holdfast", ""
    timeout = _REQUEST_SECONDS

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "The metrics are at /metrics")
            return
        body = render(cast("_Server", self.server).read())
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing: scrapes are many."""
