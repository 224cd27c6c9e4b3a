"""The part of the port for reading from a replica: what is shown, and nothing that decides."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, Literal, Protocol

import msgspec

from holdfast.store.port.readable import readable
from holdfast.types import ReadCheck

if TYPE_CHECKING:
    from holdfast.store.port.store import Store


class ReadStore(Protocol):
    """Says where to read lists, which may be older than the database."""

    @property
    def reads(self) -> Store:
        """The store for what is only shown: on the read database, or this store.

        It answers from the database while the read database cannot. Never use it for one run, for
        what is done next, or to find out whether something exists.
        """
        ...

    async def fresh_reads(self) -> Store:
        """Return a store that reads all that was committed before this call.

        It is that on the read database if that has all of it within a moment, else this store.
        """
        ...

    @readable
    async def check_reads(self) -> ReadCheck | None:
        """Look at the read database; None if there is none.

        Raises ConfigurationError for one that is not a replica of this database.
        """
        ...


class ReadFrom(msgspec.Struct):
    """Where the lists of one request were read, and how many seconds behind these were.

    `away` are shards that did not answer: what they have is missing.
    """

    source: Literal["replica", "database"] | None = None
    lag_seconds: float | None = None
    away: set[int] = msgspec.field(default_factory=set[int])


read_from: Final[ContextVar[ReadFrom | None]] = ContextVar("holdfast_read_from", default=None)
"""Notes for the caller of lists; None: the caller does not ask."""


@contextmanager
def noting_reads() -> Generator[ReadFrom]:
    """Note where lists are read within the block; nothing is noted without a read database."""
    notes = ReadFrom()
    token = read_from.set(notes)
    try:
        yield notes
    finally:
        read_from.reset(token)


def note_away(shards: Iterable[int]) -> None:
    """Note for the caller of lists that shards did not answer."""
    if (notes := read_from.get()) is not None:
        notes.away.update(shards)
