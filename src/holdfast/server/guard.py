"""What holds for every request and every answer: hosts, other sites, headers, how many at once.

A page of another site can make a browser send requests here, with cookies, and with a name of its
own that leads to this machine. So the host must be one of ours, and what changes something must
come from our own pages, or not from a browser.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final, Self
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.access import Principal
from holdfast.server.problems import Problem
from holdfast.webhooks import PUBLIC_URL_VARIABLE

LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_RAW: Final = {name.lower().encode(): value.encode() for name, value in HEADERS.items()}
_NOT_STORED: Final = (b"cache-control", b"no-store")

MAX_BODY: Final = 1024 * 1024  # bytes, unless the server is told otherwise
MAX_REQUESTS: Final = 256
MAX_STREAMS: Final = 500
MAX_STREAMS_EACH: Final = 250  # of one principal
PATIENCE_SECONDS: Final = 1.0


class Guard:
    """Stands before all that the server answers. An empty list of hosts lets every host pass."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(map(_own_name, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, or pass it on; add the headers to either answer."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = guarded(message["headers"])
            await send(message)

        try:
            self._check(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if self._hosts and (len(hosts) != 1 or host_name(hosts[0]) not in self._hosts):
            raise Problem(
                421,
                "misdirected",
                f"the server does not answer to the host {', '.join(hosts)[:255]!r}: name it with "
                "`holdfast server --allowed-host`, or with `hosts=` of a server in your program",
            )
        if scope["method"] not in SAFE:
            headers = Headers(scope=scope)
            if "cookie" in headers:
                check_same_origin(headers, hosts[0] if hosts else "")


def guarded(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer with ours, which replace others of the same name."""
    answer = [each for each in headers if each[0] not in _RAW]
    answer.extend(_RAW.items())
    if all(name != b"cache-control" for name, _ in answer):
        answer.append(_NOT_STORED)
    return answer


def check_same_origin(headers: Headers, host: str) -> None:
    """Refuse a request with cookies that a page of another site made. Raises Problem 403."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        same = site == "same-origin"
    else:  # an old browser, or none
        origin = headers.get("origin", "")
        same = origin != "" and urlsplit(origin).netloc.lower() == host.lower()
    if not same:
        raise Problem(403, "cross-site", "a page of another site made this request")


def public_hosts() -> list[str]:
    """Return the host of $HOLDFAST_PUBLIC_URL, by which others post to webhooks, if it is set."""
    name = urlsplit(os.environ.get(PUBLIC_URL_VARIABLE, "")).hostname
    return [] if name is None else [name]


def _own_name(host: str) -> str:
    """Return the name of a host that is answered to, which may have a port."""
    bare = host.count(":") > 1 and not host.startswith("[")  # an address of IPv6
    return host_name(f"[{host}]" if bare else host)


def host_name(host: str) -> str:
    """Return the name of a Host header, without the port and without brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


class Slot:
    """The place of one request among those under way; it can be given up before the answer."""

    def __init__(self, gate: RequestGate) -> None:
        self._gate, self._held = gate, False

    async def __aenter__(self) -> Self:
        await self._gate.enter()
        self._held = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Give the place to others: from here on the request only waits. Idempotent."""
        if self._held:
            self._held = False
            self._gate.leave()


class RequestGate:
    """Lets at most `most` requests be under way; one more waits a second, then it is refused."""

    def __init__(self, most: int = MAX_REQUESTS) -> None:
        self._free = asyncio.Semaphore(most)

    def slot(self) -> Slot:
        """Return a place, to be entered with `async with`. Raises Problem 503 if all are taken."""
        return Slot(self)

    async def enter(self) -> None:
        """Take a place. Raises Problem 503 after a second."""
        if not self._free.locked():
            await self._free.acquire()
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._free.acquire()
        except TimeoutError:
            raise Problem(503, "busy", "the server has as many requests as it may") from None

    def leave(self) -> None:
        """Give a place back."""
        self._free.release()


class StreamGate:
    """Lets at most `most` streams be open, of one principal at most `most_each`."""

    def __init__(self, most: int = MAX_STREAMS, most_each: int = MAX_STREAMS_EACH) -> None:
        self._most, self._most_each = most, most_each
        self._open: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many streams are open."""
        return self._open.total()

    @contextmanager
    def stream(self, principal: Principal) -> Generator[None]:
        """Count a stream while the block lasts. Raises Problem 429 or 503 for one too many."""
        if self._open[principal.name] >= self._most_each:
            raise Problem(
                429,
                "too-many-streams",
                f"{self._most_each} streams or waits of yours are open: close one, or start the "
                "server with --max-streams-each",
                headers={"Retry-After": "1"},
            )
        if self.count >= self._most:
            raise Problem(503, "busy", "the server has as many streams as it may: --max-streams")
        self._open[principal.name] += 1
        try:
            yield
        finally:
            self._open[principal.name] -= 1
            if not self._open[principal.name]:
                del self._open[principal.name]
