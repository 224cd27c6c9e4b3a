"""How answers leave a connection: in one piece, not held back, and never more than is read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from holdfast.server.connection import Connection, JoinedWrites
from holdfast.server.guard import HEADERS, guarded
from holdfast.server.running import bind, running_beside
from holdfast.server.server import Server

ASKED = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Recorded:
    """A transport that keeps what is written to it, one entry a call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str) -> object:
        return None


def joined() -> tuple[JoinedWrites, Recorded]:
    """Return a transport, and what becomes of it."""
    recorded = Recorded()
    loop = asyncio.get_running_loop()
    return JoinedWrites(cast("asyncio.Transport", recorded), loop), recorded


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer every request alike."""
    length = [(b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": b"hello"})


def connected(app: ASGIApp = hello) -> tuple[Connection, Recorded]:
    """Return a connection that is answered by an app, and what it has sent."""
    config = uvicorn.Config(app, http=Connection, log_config=None, server_header=False)
    config.load()
    connection, recorded = Connection(config, ServerState(), app_state={}), Recorded()
    connection.connection_made(cast("asyncio.Transport", recorded))
    return connection, recorded


async def test_an_answer_leaves_in_one_piece() -> None:
    """Also one of two that are asked for together."""
    connection, recorded = connected()
    connection.data_received(ASKED + ASKED)
    while len(recorded.written) < 2 or connection.tasks:
        await asyncio.sleep(0)
    assert len(recorded.written) == 2
    for answer in recorded.written:
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"\r\n\r\nhello")
    connection.timeout_keep_alive_handler()
    assert recorded.closed


async def test_a_part_of_an_answer_is_not_held_back() -> None:
    writes, recorded = joined()
    writes.write(b"head")
    writes.write(b"")
    writes.write(b" and first event")
    assert recorded.written == []
    await asyncio.sleep(0)
    assert recorded.written == [b"head and first event"]
    await asyncio.sleep(0)
    assert len(recorded.written) == 1


async def test_much_is_sent_at_once() -> None:
    """So the transport sees a reader that is slow before memory fills."""
    writes, recorded = joined()
    for _ in range(100):
        writes.write(b"x" * 4096)
    assert sum(map(len, recorded.written)) > 99 * 4096 - 64 * 1024


async def test_what_is_held_is_sent_before_the_end_and_never_after() -> None:
    writes, recorded = joined()
    writes.write(b"last")
    writes.close()
    writes.write(b"late")
    await asyncio.sleep(0)
    assert recorded.written == [b"last"]
    assert recorded.closed


@asynccontextmanager
async def listening() -> AsyncGenerator[tuple[str, int]]:
    """Serve with real sockets while the block lasts."""
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(hello, http=Connection, log_config=None, ws="none")
    config.load()
    state = ServerState()
    server = await loop.create_server(
        lambda: Connection(config, state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        yield cast("socket.socket", server.sockets[0]).getsockname()


async def test_bytes_that_are_no_request_are_refused() -> None:
    """The refusal arrives though the connection is closed right after it."""
    async with listening() as place:
        for wrong in (
            b"nonsense\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        ):
            reader, writer = await asyncio.open_connection(*place)
            writer.write(wrong)
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /live HTTP/1.1\r\nHost: localhost\r\nLong: " + b"x" * 40_000,
        b"GET /live?" + b"x" * 40_000,
        b"GET /live HTTP/1.1\r\nHost: localhost\r\n" + b"Short: x\r\n" * 4_000,
        b"POST /live HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\nTrailer: " + b"x" * 40_000,
    ],
    ids=["one-header", "url", "many-headers", "trailer"],
)
@pytest.mark.parametrize("parts", [1, 50], ids=["at-once", "in-parts"])
async def test_a_head_without_an_end_is_refused(head: bytes, parts: int) -> None:
    connection, recorded = connected()
    size = len(head) // parts
    for at in range(0, len(head), size):
        if not recorded.closed:
            connection.data_received(head[at : at + size])
    await asyncio.sleep(0)
    assert recorded.closed
    assert any(each.startswith(b"HTTP/1.1 400 ") for each in recorded.written)


async def test_heads_of_many_requests_and_a_long_body_are_not_counted_together() -> None:
    """Also a body in chunks of one byte, most of which is not its bytes."""
    async with listening() as place:
        reader, writer = await asyncio.open_connection(*place)
        for _ in range(50):
            writer.write(
                b"GET / HTTP/1.1\r\nHost: localhost\r\nLong: " + b"x" * 2_000 + b"\r\n\r\n"
            )
            await reader.readuntil(b"hello")
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        writer.write(b"x" * 1_000_000)
        await reader.readuntil(b"hello")
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            writer.write(b"1\r\nx\r\n" * 1_000)
            await writer.drain()
        writer.write(b"0\r\n\r\n" + ASKED)
        for _ in range(2):
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")
        writer.close()


WRONG_BODY = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nwrong\r\n"


@pytest.mark.parametrize("wrong", [b"nonsense\r\n\r\n", WRONG_BODY], ids=["head", "body"])
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_what_is_refused_is_answered_after_the_requests_before_it(
    wrong: bytes, before: int
) -> None:
    """Else the first of them would seem to be refused, and was carried out."""
    connection, recorded = connected()
    connection.data_received(ASKED * before + wrong)
    connection.data_received(ASKED)
    while not recorded.closed:
        await asyncio.sleep(0)
    answers = [each.split(b" ", 2)[1] for each in recorded.written]
    assert answers == [b"200"] * before + [b"400"]


OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize(
    "offer",
    [
        b"Connection: Upgrade, close\r\nUpgrade: h2c\r\n",
        b"Upgrade: websocket\r\nConnection: close, upgrade\r\n",
        b"Connection: upgrade\r\nUpgrade: h2c\r\nConnection: close\r\n",
    ],
)
async def test_an_offer_on_a_connection_that_ends_is_answered(version: bytes, offer: bytes) -> None:
    """What follows the last request is ignored, as after any other."""
    connection, recorded = connected()
    head = b"POST / HTTP/%b\r\nHost: a\r\nContent-Length: 2\r\n" % version
    connection.data_received(head + offer + b"\r\n{}" + ASKED)
    async with asyncio.timeout(60):
        while not recorded.closed:
            await asyncio.sleep(0)
    assert b"".join(recorded.written).count(b"HTTP/1.1 200 OK") == 1


@pytest.mark.parametrize("parts", [1, 2, 300], ids=["at-once", "body-apart", "by-bytes"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
async def test_an_offer_of_another_protocol_takes_no_body_away(parts: int, chunked: bool) -> None:
    """Java's client makes one with each first request, and sends the body in another packet."""
    bodies = list[bytes]()

    async def keep(scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        bodies.append(body)
        await hello(scope, receive, send)

    if chunked:
        head, body = b"Transfer-Encoding: chunked\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n"
    else:
        head, body = b"Content-Length: 2\r\n\r\n", b"{}"
    head = b"POST / HTTP/1.1\r\nHost: a\r\n" + OFFER + head
    get = b"GET / HTTP/1.1\r\nHost: a\r\n" + OFFER + b"\r\n"
    sent = head + body + get + ASKED
    size = len(head) if parts == 2 else len(sent) // parts + 1
    connection, recorded = connected(keep)
    for at in range(0, len(sent), size):
        connection.data_received(sent[at : at + size])
        await asyncio.sleep(0)
    while len(recorded.written) < 3:
        await asyncio.sleep(0)
    assert bodies == [b"{}", b"", b""]
    assert all(each.startswith(b"HTTP/1.1 200 ") for each in recorded.written)


async def test_no_request_makes_the_server_a_proxy() -> None:
    connection, recorded = connected()
    connection.data_received(b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert recorded.closed
    assert recorded.written[0].startswith(b"HTTP/1.1 400 ")


async def test_a_trailer_is_no_header_of_the_request() -> None:
    """Else a proxy that checks headers could be passed by."""
    seen = list[list[bytes]]()

    async def names(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        seen.append([name for name, _ in scope["headers"]])
        await hello(scope, receive, send)

    connection, recorded = connected(names)
    connection.data_received(
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\nx\r\n0\r\nAuthorization: Bearer x\r\n\r\n" + ASKED
    )
    while len(recorded.written) < 2:
        await asyncio.sleep(0)
    assert seen == [[b"host", b"transfer-encoding"], [b"host"]]


async def test_the_server_limits_heads() -> None:
    served = Server("postgresql://nobody@127.0.0.1:1/none", auth=lambda request: None)
    bound = bind("127.0.0.1", 0)
    place = bound.getsockname()
    async with running_beside(served, bound):
        for size, status in ((1_000, b"HTTP/1.1 200 "), (40_000, b"HTTP/1.1 400 ")):
            reader, writer = await asyncio.open_connection(*place)
            head = b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nLong: "
            writer.write(head + b"x" * size)  # without an end: it is refused before there is one
            if size == 1_000:
                writer.write(b"\r\n\r\n")
            async with asyncio.timeout(20):
                assert (await reader.read()).startswith(status)
            writer.close()


def test_our_headers_replace_others_of_the_same_name() -> None:
    answer = guarded([(b"referrer-policy", b"unsafe-url"), (b"cache-control", b"max-age=9")])
    assert sorted(name for name, _ in answer) == sorted(
        [*(each.lower().encode() for each in HEADERS), b"cache-control"]
    )
    assert dict(answer)[b"referrer-policy"] == b"no-referrer"
    assert dict(answer)[b"cache-control"] == b"max-age=9"
    assert dict(guarded([]))[b"cache-control"] == b"no-store"
