"""Ask a server whether it accepts connections, by connecting.

After a crash its status files are wrong.
"""

from __future__ import annotations

import enum
import socket
import struct
from contextlib import suppress

_PROTOCOL = 3 << 16
_STARTUP = b"user\0holdfast\0database\0holdfast\0\0"
_TERMINATE = b"X\0\0\0\4"
_CANNOT_CONNECT_NOW = b"C57P03\0"


class Answer(enum.Enum):
    """What came back."""

    READY = enum.auto()
    NOT_YET = enum.auto()
    NOBODY = enum.auto()


def ask(path: str, timeout_seconds: float = 2.0) -> Answer:
    """Connect to a server's socket as the driver would, and disconnect.

    A server that answers with any error but "cannot connect now" is up: it may be full.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(timeout_seconds)
            link.connect(path)
            link.sendall(struct.pack("!II", len(_STARTUP) + 8, _PROTOCOL) + _STARTUP)
            reply = link.recv(4096)
            with suppress(OSError):
                link.sendall(_TERMINATE)
    except (TimeoutError, BlockingIOError):
        return Answer.NOT_YET
    except OSError:
        return Answer.NOBODY
    if not reply:
        return Answer.NOBODY
    return Answer.NOT_YET if _CANNOT_CONNECT_NOW in reply else Answer.READY
