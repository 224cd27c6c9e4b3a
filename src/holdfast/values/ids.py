"""Identifiers of runs."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final
from uuid import UUID, SafeUUID

from holdfast.errors import InvalidInput
from holdfast.values.texts import clipped

_POOL_BYTES: Final = 4096
_SEED_BYTES: Final = 10
_COUNTER_BITS: Final = 74
_LOW_BITS: Final = 62
_LOW: Final = (1 << _LOW_BITS) - 1
_UNKNOWN: Final = SafeUUID.unknown  # to look up a member of an Enum each time is slow


class _Source:
    """Makes UUIDv7s that increase: the counter starts at random and counts within a moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool = b""
        self._moment = 0  # ms since 1970
        self._frame = 0  # the bits of an id of this moment, with a counter of 0
        self._counter = 0

    def next(self) -> UUID:
        with self._lock:
            now = time.time_ns() // 1_000_000
            if now > self._moment:
                self._moment, self._counter = now, self._draw()
                self._frame = (now << 80) | (7 << 76) | (0b10 << 62)
            else:
                self._counter += 1
            frame, counter = self._frame, self._counter
        return _uuid(frame | (counter >> _LOW_BITS << 64) | (counter & _LOW))

    def moment_of(self, now: int) -> int:
        """Return the milliseconds that an id of a moment in microseconds begins with."""
        return now // 1000

    def _draw(self) -> int:
        if len(self._pool) < _SEED_BYTES:
            self._pool = os.urandom(_POOL_BYTES)
        drawn, self._pool = self._pool[:_SEED_BYTES], self._pool[_SEED_BYTES:]
        # The top bit stays clear, so that counting on never overflows.
        return int.from_bytes(drawn) & ((1 << (_COUNTER_BITS - 1)) - 1)


def _uuid(number: int) -> UUID:
    """Return UUID(int=number) without its checks, which take a third of the time of a new id."""
    made = object.__new__(UUID)
    object.__setattr__(made, "int", number)  # UUID's own __setattr__ refuses
    object.__setattr__(made, "is_safe", _UNKNOWN)
    return made


class _Counted(_Source):
    """Makes the same ids each time, in the same order."""

    def next(self) -> UUID:
        with self._lock:
            self._counter += 1
            return UUID(int=(7 << 76) | (0b10 << 62) | self._counter)

    def moment_of(self, now: int) -> int:
        return 0  # a kill may have moved it


_source = _Source()


@contextmanager
def counted_ids() -> Generator[None]:
    """Let `uuid7` count from 1 in the block: for tests whose runs are to be the same each time.

    The moments at which runs continue do not count then either.
    """
    global _source
    before, _source = _source, _Counted()
    try:
        yield
    finally:
        _source = before


def read_id(run: UUID | str) -> UUID:
    """Return a run's id. Raises InvalidInput for what is not a UUID, such as a handle."""
    if isinstance(run, UUID):
        return run
    try:
        return UUID(run)
    except (AttributeError, TypeError, ValueError):
        hint = "; of a handle, pass its run_id" if hasattr(run, "run_id") else ""
        raise InvalidInput(f"{clipped(run)} is not a run's id: an id is a UUID{hint}") from None


def uuid7() -> UUID:
    """Make a new time-ordered id; within a process each is greater than the one before."""
    return _source.next()


def keyed_run_id(name: str, key: str) -> UUID:
    """Return the id of the run that a workflow's full name and an idempotency key determine.

    A UUIDv8 of sha256(name, 0x00, key) in UTF-8, with 0xff as its first byte; SQL computes
    the same.
    """
    return _derived(b"\xff", f"{name}\0{key}")


def child_run_id(parent_run_id: UUID, key: str, began: int) -> UUID:
    """Return the id of the child run that a call starts, named by the call's key.

    A UUIDv8 of sha256(parent's id, 0x00, key, 0x00, began) in UTF-8 behind the parent's first six
    bytes, so that a tree's runs stand together. `began` is when the parent did: children of a
    deleted run that had the same id may still be there.
    """
    return _derived(parent_run_id.bytes[:6], f"{parent_run_id}\0{key}\0{began}")


def step_run_id(run_id: UUID, key: str, attempt: int, created_at: int) -> UUID:
    """Return the id of the run that stands for an attempt of a flow's step, or of a map's element.

    When the flow's run was created tells it from a deleted run that had its id.
    """
    return keyed_run_id(str(run_id), f"{key}#{attempt}@{created_at}")


def sent_id(run_id: UUID, key: str, began: int) -> str:
    """Return the id of what a call of a run sends: its receiver takes it once.

    `began` is when the run did: a deleted run that had the same id may have made the same call.
    """
    return f"{run_id}@{began}/{key}"


def retry_run_id(run_id: UUID) -> UUID:
    """Return the id of the run that retries a run: asked for twice, it is one.

    A UUIDv8 as `keyed_run_id` makes them, of a name that no workflow can have.
    """
    return keyed_run_id("//retry", str(run_id))


def former_retry_run_id(run_id: UUID) -> UUID:
    """Return the id that the retry of a run had in an earlier release.

    It is also that of a run of the workflow `run/retry` with the run's id as its key.
    """
    return keyed_run_id("run/retry", str(run_id))


def continued_run_id(run_id: UUID, now: int) -> UUID:
    """Return the id of the run that a run continues as, at a moment in microseconds since 1970.

    A UUIDv8 of sha256(id, 0x00, "continued") behind the moment in milliseconds, which orders it
    as it does other ids.
    """
    return _derived(_source.moment_of(now).to_bytes(6), f"{run_id}\0continued")


def _derived(prefix: bytes, text: str) -> UUID:
    data = bytearray(hashlib.sha256(text.encode()).digest()[:16])
    data[: len(prefix)] = prefix
    data[6] = (data[6] & 0x0F) | 0x80
    data[8] = (data[8] & 0x3F) | 0x80
    return UUID(bytes=bytes(data))


def _reset() -> None:
    global _source
    _source = _Source()


# A forked process must not continue with its parent's counter and pool.
os.register_at_fork(after_in_child=_reset)
