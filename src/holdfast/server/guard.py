"""What holds for every request and every answer: the host, other sites' pages, the headers.

A page of another site can make a browser send requests here, with cookies, and with a name of its
own that leads to this machine. So the host must be one of ours, and what changes something must
come from our own pages, or not from a browser.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.server.problems import Problem

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


class Guard:
    """Stands before all that the server answers. An empty list of hosts lets every host pass."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = frozenset(each.lower() for each in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused, or pass it on; add the headers to either answer."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._check(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send_guarded)
            return
        await self._app(scope, receive, send_guarded)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if self._hosts and (len(hosts) != 1 or host_name(hosts[0]) not in self._hosts):
            raise Problem(
                421,
                "misdirected",
                "the server does not answer to this host: start it with --allowed-host",
            )
        if scope["method"] not in SAFE and "cookie" in headers:
            check_same_origin(headers, hosts[0] if hosts else "")


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


def host_name(host: str) -> str:
    """Return the name of a Host header, without the port and without brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
