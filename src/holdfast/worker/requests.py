"""One signed HTTP request to a URL that users chose.

It is written over plain streams of asyncio, because the address must be checked and then be the one
that is connected to: a client library resolves the host again, and may be led elsewhere. Redirects
are not followed, and of an answer only its beginning is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from holdfast.codec import storable
from holdfast.webhooks import is_inner

SECONDS: Final = 10.0  # for all of a request
MOST_ANSWER: Final = 65_536  # bytes of an answer that are read
_DIGITS: Final = 3  # of a status; the database could not keep one of eleven
_EXCERPT: Final = 200  # characters of an answer that an error shows
_BUSY: Final = (429, 503)  # statuses whose Retry-After is heeded
_LONGEST_PAUSE: Final = 86_400.0


class Answer(NamedTuple):
    """What came of a request: the status, None without an answer, and an error if it failed."""

    status: int | None
    error: str | None
    retry_after: float = 0.0  # seconds for which the target wants to be left alone


async def post(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    allow_inner: bool = False,
    seconds: float = SECONDS,
) -> Answer:
    """Send a request; a status of 200 to 299 is success. The error is a text that can be stored."""
    answer = await _answer(url, headers, body, allow_inner, seconds)
    error = None if answer.error is None else storable(answer.error)
    return answer._replace(error=error)


async def _answer(
    url: str, headers: Mapping[str, str], body: bytes, allow_inner: bool, seconds: float
) -> Answer:
    try:
        async with asyncio.timeout(seconds):
            status, text, retry_after = await _post(url, headers, body, allow_inner)
    except TimeoutError:
        return Answer(None, f"no answer within {seconds:g} s")
    except _Refused as error:
        return Answer(None, str(error))
    except ssl.SSLError as error:
        return Answer(None, f"TLS: {error.reason or error}")
    except Exception as error:  # also that no thread can be started: it concerns this one request
        return Answer(None, f"{type(error).__name__}: {error}")
    if 200 <= status < 300:
        return Answer(status, None)
    if 300 <= status < 400:
        return Answer(status, f"the answer is a redirect ({status}), which is not followed")
    why = f"the answer is {status}: {text[:_EXCERPT]}".rstrip(": ")
    return Answer(status, why, retry_after if status in _BUSY else 0.0)


class _Refused(Exception):
    """The address must not be connected to, or the answer is not HTTP."""


async def _post(
    url: str, headers: Mapping[str, str], body: bytes, allow_inner: bool
) -> tuple[int, str, float]:
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    address = await _resolve(host, port, allow_inner)
    reader, writer = await asyncio.open_connection(
        host=address,
        port=port,
        ssl=ssl.create_default_context() if is_tls else None,
        server_hostname=host if is_tls else None,
        limit=MOST_ANSWER,
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        shown = f"[{host}]" if ":" in host else host
        lines = [
            f"POST {path} HTTP/1.1",
            f"host: {shown}" + ("" if parts.port is None else f":{parts.port}"),
            f"content-length: {len(body)}",
            "connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body)
        # A target may answer before it has read the body, and then read no more.
        drain = asyncio.ensure_future(_drain(writer))
        try:
            return await _read_answer(reader)
        finally:
            drain.cancel()
    finally:
        writer.transport.abort()  # what else is sent is not waited for


async def _drain(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # the answer says what has happened
        await writer.drain()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, str, float]:
    """Read the status, the beginning of the body and Retry-After; pass over interim answers."""
    read = 0
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            head = error.partial
            if not head:
                raise _Refused("the connection was closed without an answer") from None
        except asyncio.LimitOverrunError:
            raise _Refused("the answer's headers take more than 64 KiB") from None
        read += len(head)
        status = _status(head)
        if status >= 200 or read > MOST_ANSWER:
            break
    text = b""
    if status >= 300:  # for the error
        text = await _beginning(reader)
    return status, text.decode("utf-8", "replace"), _retry_after(head)


async def _beginning(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(1.0):  # an answer that dribbles is not worth more
            return await reader.read(1024)
    except (TimeoutError, OSError):
        return b""


def _status(head: bytes) -> int:
    line = head.split(b"\r\n", 1)[0].split(b" ", 2)
    is_http = len(line) >= 2 and line[0].startswith(b"HTTP/1.")
    if not is_http or not line[1].isdigit() or len(line[1]) != _DIGITS:
        raise _Refused("the answer is not HTTP/1.1")
    return int(line[1])


def _retry_after(head: bytes) -> float:
    """Return the seconds of a Retry-After header: a number or a moment. 0 for none, at most a day.

    >>> _retry_after(b"HTTP/1.1 429 No\\r\\nRetry-After: 120\\r\\n\\r\\n")
    120.0
    """
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.decode("latin-1").partition(":")
        if name.strip().lower() != "retry-after":
            continue
        text = value.strip()
        try:
            if text.isascii() and text.isdigit() and len(text) < 10:
                seconds = float(text)
            else:
                from email.utils import parsedate_to_datetime  # imports much, and is rare

                moment = parsedate_to_datetime(text)
                seconds = (moment.astimezone(UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return 0.0
        return min(max(seconds, 0.0), _LONGEST_PAUSE)
    return 0.0


async def _resolve(host: str, port: int, allow_inner: bool) -> str:
    """Return the address to connect to. All addresses of the host are checked."""
    try:
        addresses = await _look_up(host, port)
    except OSError as error:
        raise _Refused(f"{host} cannot be resolved: {error}") from None
    if not addresses:
        raise _Refused(f"{host} has no address")
    for address in addresses:
        if not allow_inner and is_inner(address):
            raise _Refused(
                f"{host} is at {address}, an inner address: subscribe with allow_inner if events "
                "are to be sent there"
            )
    return addresses[0]


async def _look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host.

    Each look-up has a thread of its own: in the few of the event loop's executor some that hang
    would hold up all others, and the end of the process.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()

    def resolve(addresses: list[str], error: Exception | None) -> None:
        if answer.done():  # nobody waits any more
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(addresses)

    def ask() -> None:
        addresses, error = list[str](), None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = [str(each[4][0]) for each in found]
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(resolve, addresses, error)

    threading.Thread(target=ask, name="holdfast look-up", daemon=True).start()
    return await answer
