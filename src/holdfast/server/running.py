"""Run the server as a process of its own: uvicorn, which ends streams when it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType
from typing import Final

import uvicorn

from holdfast.server.connection import Connection
from holdfast.server.server import Server

STREAM_SECONDS: Final = 300.0
GRACE_SECONDS: Final = 10.0


class _Uvicorn(uvicorn.Server):
    """Tells the streams that the server stops, before it waits for them."""

    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping, self.interrupted = stopping, False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal does not wait for requests."""
        if self.should_exit:  # uvicorn itself heeds a second Ctrl-C only
            self.force_exit = True
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # requests that are cut off
        super().handle_exit(sig, frame)
        self.interrupted |= sig == signal.SIGINT
        self._stopping()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle the signals, and not raise them again after the end as uvicorn does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Beside(uvicorn.Server):
    """Leaves the signals to the program that it runs in."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises OSError if the address is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        bound.listen(2048)
    except BaseException:
        bound.close()
        raise
    return bound


async def run(
    server: Server,
    bound: socket.socket,
    *,
    grace_seconds: float = GRACE_SECONDS,
    root_path: str = "",
    ready: Callable[[], None] = lambda: None,
) -> bool:
    """Serve until SIGTERM or Ctrl-C; requests under way may take so long after it.

    Return True if it was Ctrl-C.
    """
    loop = asyncio.get_running_loop()

    def stopping() -> None:  # called by the signal handler
        loop.call_soon_threadsafe(server.site.closing.set)

    process = _Uvicorn(_config(server, root_path, grace_seconds), stopping)
    ready()
    await process.serve(sockets=[bound])
    return process.interrupted


@asynccontextmanager
async def running_beside(
    server: Server, bound: socket.socket, *, grace_seconds: float = GRACE_SECONDS
) -> AsyncGenerator[None]:
    """Serve while the block lasts, in a program with other work and signals of its own."""
    process = _Beside(_config(server, "", grace_seconds))
    task = asyncio.create_task(process.serve(sockets=[bound]), name="holdfast server")
    try:
        yield
    finally:
        server.site.closing.set()
        process.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


def _config(server: Server, root_path: str, grace_seconds: float) -> uvicorn.Config:
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return uvicorn.Config(
        server,
        http=Connection,
        log_config=None,
        access_log=False,
        lifespan="on",
        proxy_headers=False,
        server_header=False,
        root_path=root_path,
        timeout_graceful_shutdown=max(1, round(grace_seconds)),
        timeout_keep_alive=30,
    )
