"""The part of the port for databases that are one engine together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from hashlib import sha256
from typing import Final, NamedTuple, Protocol, TypeVar
from uuid import UUID

from holdfast.errors import DatabaseUnavailable
from holdfast.store.port.readable import readable
from holdfast.store.port.reads import note_away
from holdfast.types import Delivered, Forward, NewSignal, ShardChange, ShardState

T = TypeVar("T")


class KnownShards(NamedTuple):
    """What a caller must know to choose the shard of a start."""

    changes: int  # how long the history of the shards is
    ruled: str  # `digest_of` the workflows of the shard that have rules for starts


known_shards: Final[ContextVar[KnownShards | None]] = ContextVar("known_shards", default=None)
"""What the caller of this context knows; None: it asks for no check.

A call to a database that has a longer history, or other rules, raises ShardsChanged, and changes
nothing.
"""


def digest_of(names: Iterable[str]) -> str:
    """Return the digest of names; SQL computes the same."""
    return sha256(",".join(sorted(names)).encode()).hexdigest()


class ShardAway(DatabaseUnavailable):
    """Shards that a call needs do not answer. Others may have done their part of it."""

    def __init__(self, text: str, shards: Iterable[int]) -> None:
        super().__init__(text)
        self.shards = frozenset(shards)


class MayBeAway(ShardAway):
    """What no shard that answers has may be in one that is away. The text names no host."""


async def ask_most(
    call: Callable[[Sequence[UUID]], Awaitable[dict[UUID, T]]],
    run_ids: Sequence[UUID],
    lack: type[ShardAway] = ShardAway,
) -> dict[UUID, T]:
    """Return what a call answers about runs; those of which it raises `lack` are left out.

    Then it asks run by run, and notes the shards for the caller of lists.
    """
    try:
        return await call(run_ids)
    except lack as error:
        note_away(error.shards)
        if len(run_ids) == 1:
            return {}
    found: dict[UUID, T] = {}
    for run_id in run_ids:
        found |= await ask_most(call, [run_id], lack)
    return found


class ShardStore(Protocol):
    """Says which shard a database is, and keeps what it has for the others."""

    @readable
    async def ping(self) -> None:
        """Return when the database has answered over a new connection. Raises what calls raise."""
        ...

    @readable
    async def shard_state(self) -> ShardState | None:
        """Return which shard this database is; None for one that is an engine alone."""
        ...

    @readable
    async def set_shard_state(self, state: ShardState) -> ShardChange:
        """Make this database a shard, or tell it of a longer history.

        Calls that know a shorter one have ended when this returns, and later ones are refused.
        """
        ...

    @readable
    async def take_forwards(
        self, worker_id: str, *, held: Collection[UUID | int] = (), limit: int = 1000
    ) -> list[Forward]:
        """Return what is for other shards, oldest first.

        Signals for runs, and events for shards, that are `held` are left out. A sender's second
        signal is not given without its first one, unless that has been ended. For ten seconds no
        other worker is given anything. What was taken stays until `end_forwards`. Its payloads
        are as they are stored; the answer ends with the one with which it takes 8 MiB.
        """
        ...

    @readable
    async def receive_signals(self, signals: Sequence[NewSignal]) -> Delivered:
        """Append signals of other shards, as they were stored there; each has an id.

        The newest run of those that continue the one that a signal is for gets it, unless one of
        them has it.
        """
        ...

    @readable
    async def end_forwards(self, forward_ids: Sequence[int]) -> None:
        """Forget what has arrived."""
        ...
