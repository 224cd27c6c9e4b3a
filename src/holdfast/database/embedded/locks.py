"""File locks between processes; the kernel drops them when a process dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.errors import EmbeddedServerError

_POLL_SECONDS = 0.01


@contextmanager
def held_exclusively(path: Path, timeout_seconds: float) -> Generator[int]:
    """Hold the lock file alone for the length of the block, and give its descriptor.

    A child process that inherits the descriptor still holds the lock if its parent is killed.

    Raises:
        EmbeddedServerError: others held it for longer than the timeout.
    """
    descriptor = _open(path)
    try:
        deadline = time.monotonic() + timeout_seconds
        while not _try_lock(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"another process has held {path} for {timeout_seconds:g} s; "
                    "see which one with `fuser` and end it"
                )
            time.sleep(_POLL_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def hold_shared(path: Path) -> int:
    """Hold the lock file together with others; closing the returned descriptor lets go."""
    descriptor = _open(path)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_free(path: Path) -> bool:
    """Return True if no process holds the lock file."""
    descriptor = _open(path)
    try:
        return _try_lock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
