"""The HTTP of one connection: requests with limited heads, and answers that leave in one piece.

uvicorn reads requests by httptools, which has no limit for the URL and the headers. It writes the
head of an answer and its body one after the other, and its event loop sends each at once: two
system calls and two packets for each answer.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

LONGEST_HEAD: Final = 32 * 1024  # bytes of the URL and the headers of a request
_TOO_LONG: Final = f"The URL and the headers of a request have {LONGEST_HEAD:,} bytes at most."
_PIECE: Final = 4 * 1024  # bytes that are read before what the parser holds is counted
_MOST_HELD: Final = 64 * 1024  # bytes: more of them are sent at once, so that a sender is slowed


class JoinedWrites:
    """A transport that holds what is written until `flush`, or the next turn of the event loop."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Hold data, or send it with what is held if that is much."""
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)
        self._size += len(data)
        if self._size > _MOST_HELD:
            self.flush()

    def flush(self) -> None:
        """Send what is held. Nothing is sent on a connection that is closed."""
        if not self._held:
            return
        data = b"".join(self._held)
        self._held.clear()
        self._size = 0
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send what is held, and close the connection."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Connection(HttpToolsProtocol):
    """Refuses requests with long heads, and sends the head and the body of an answer together."""

    parser: httptools.HttpRequestParser  # until the connection is lost
    _writes: JoinedWrites
    _head_bytes = 0  # of the URL and the headers so far
    _in_body = False
    _upgrades = False  # whether another protocol was offered
    _heard = False  # whether the parser has called back since the last data
    _unheard_bytes = 0  # that the parser holds without a call: part of one header
    _refusal: str | None = None  # why nothing more is read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin a connection."""
        self._writes = JoinedWrites(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._writes))

    def data_received(self, data: bytes) -> None:
        """Read what has come. A header that does not end is refused."""
        self._unset_keepalive_if_required()
        for at in range(0, len(data), _PIECE):  # it is one piece but for long bodies
            if self._refusal is not None or self._writes.is_closing():
                return
            self._heard = False
            piece = data[at : at + _PIECE] if len(data) > _PIECE else data
            self._parse(piece)
            self._unheard_bytes = 0 if self._heard else self._unheard_bytes + len(piece)
            if self._unheard_bytes > LONGEST_HEAD:
                self.send_400_response(_TOO_LONG)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return
            else:
                return

    def _head_without_upgrade(self) -> bytes:
        """Return the head of a request that offered another protocol, without the offer.

        A server may ignore such an offer, which some clients make with each first request. But the
        parser takes what follows it, a body too, for data of that protocol: so it starts again.
        """
        line = b"%b %b HTTP/%b\r\n" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        kept = [b"%b: %b\r\n" % each for each in self.headers if each[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)  # one that has met `close` reads no more
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return b"".join([line, *kept, b"\r\n"])

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._head_bytes, self._in_body = 0, False
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. One that comes after the body, as a trailer, is not a header to anyone."""
        self._count(len(name) + len(value) + len(": \r\n"))
        if self._in_body:
            return
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            raise httptools.HttpParserError("a body comes as it is, or in chunks")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Answer the request; its body may come later."""
        self._heard = self._in_body = True
        self._upgrades = self.parser.should_upgrade()
        if not self._upgrades:
            super().on_headers_complete()
        elif self.parser.get_method() == b"CONNECT":
            raise httptools.HttpParserError("this is not a proxy")

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._heard = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if not self._upgrades:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Send the answer, and continue with the next request, or with what was refused."""
        self._writes.flush()
        is_last = not self.pipeline
        super().on_response_complete()
        if self._refusal is not None and is_last:
            super().send_400_response(self._refusal)

    def send_400_response(self, msg: str) -> None:
        """Refuse what was read last, once the requests before it are answered: in their order."""
        if self._refusal is not None or self._writes.is_closing():
            return
        self._refusal = msg
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()  # the newest: its body is what is refused
        elif not self._answers_a_whole_request():
            super().send_400_response(msg)

    def _answers_a_whole_request(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None before the first request
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _count(self, size: int) -> None:
        """Count bytes of the head. Too many are refused as what is not HTTP is."""
        self._heard = True
        self._head_bytes += size
        if self._head_bytes > LONGEST_HEAD:
            raise httptools.HttpParserError(_TOO_LONG)
