"""The part of the port for databases that are one engine together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import Final, Protocol
from uuid import UUID

from holdfast.errors import DatabaseUnavailable
from holdfast.store.port.readable import readable
from holdfast.types import Delivered, Forward, NewSignal, ShardChange, ShardState

known_history: Final[ContextVar[int | None]] = ContextVar("holdfast_known_history", default=None)
"""How long a history of the shards the caller of this context knows; None: it asks for no check.

A call to a database that knows a longer one raises ShardsChanged, and changes nothing.
"""


class MayBeAway(DatabaseUnavailable):
    """No shard that answers has a run, and one that is away may have it."""


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
        are as they are stored.
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
