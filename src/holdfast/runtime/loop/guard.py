"""The methods of an event loop that workflow code may not call: a replay could not repeat them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_REFUSED: Final = (
    "run_forever",
    "run_until_complete",
    "stop",
    "close",
    "run_in_executor",
    "set_default_executor",
    "create_connection",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "create_datagram_endpoint",
    "connect_accepted_socket",
    "sendfile",
    "start_tls",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendto",
    "sock_connect",
    "sock_accept",
    "sock_sendfile",
    "getaddrinfo",
    "getnameinfo",
    "add_reader",
    "remove_reader",
    "add_writer",
    "remove_writer",
    "connect_read_pipe",
    "connect_write_pipe",
    "subprocess_exec",
    "subprocess_shell",
    "add_signal_handler",
    "remove_signal_handler",
    "set_task_factory",
    "set_exception_handler",
)


class GuardedLoop(asyncio.AbstractEventLoop):
    """An event loop that refuses I/O, threads, processes and being run by hand."""

    def refuse(
        self, what: str, way_out: str = "do it in a step", line: str | None = None
    ) -> BaseException:
        """Record that the code did `what`, and return the error to raise.

        `line` is by default the one that executes.
        """
        raise NotImplementedError


def _refusal(name: str) -> Callable[..., object]:
    def method(self: GuardedLoop, *args: object, **kwargs: object) -> object:
        raise self.refuse(f"loop.{name}()")

    method.__name__ = name
    return method


for _name in _REFUSED:
    setattr(GuardedLoop, _name, _refusal(_name))
