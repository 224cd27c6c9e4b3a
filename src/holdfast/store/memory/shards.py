"""Shards: which of an engine's databases this is, and what it keeps for the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID, uuid4

from msgspec.structs import replace

from holdfast.errors import InvalidInput
from holdfast.store.memory.database import Part
from holdfast.store.memory.tables import Tables
from holdfast.store.port import FORWARDS_TOPIC
from holdfast.types import (
    MOST_SHARDS,
    Forward,
    NewEvent,
    NewSignal,
    Notice,
    ShardChange,
    ShardState,
    target_of,
)

_HELD: Final = 10_000_000


class MemoryShards(Part):
    """Says which shard the store is, and keeps what it has for the others."""

    async def shard_state(self) -> ShardState | None:
        """Return which shard it is; see `ShardStore.shard_state`."""
        async with self._transaction() as (tables, _):
            return tables.shard

    async def set_shard_state(self, state: ShardState) -> ShardChange:
        """Make it a shard; see `ShardStore.set_shard_state`."""
        if not 0 <= state.number < state.count <= MOST_SHARDS:
            raise InvalidInput(f"there is no shard {state.number} of {state.count}")
        async with self._transaction() as (tables, _):
            known = tables.shard
            if known is not None:
                if (known.engine, known.number) != (state.engine, state.number):
                    return "other"
                if state.counts[: len(known.counts)] != known.counts:
                    return "other"
                if state.counts == known.counts:
                    return "same"
            tables.shard = state
            return "written"

    async def take_forwards(
        self, worker_id: str, *, held: Collection[UUID | int] = (), limit: int = 1000
    ) -> list[Forward]:
        """Return what is for other shards; see `ShardStore.take_forwards`."""
        async with self._transaction() as (tables, now):
            holder, until = tables.forwarder
            if tables.shard is None or (holder != worker_id and until >= now):
                return []
            tables.forwarder = worker_id, now + _HELD
            return [each for each in tables.forwards if target_of(each) not in held][:limit]

    async def end_forwards(self, forward_ids: Sequence[int]) -> None:
        """Forget what has arrived; see `ShardStore.end_forwards`."""
        async with self._transaction() as (tables, _):
            done = set(forward_ids)
            tables.forwards[:] = [x for x in tables.forwards if x.forward_id not in done]


def forward_signal(tables: Tables, signal: NewSignal) -> bool:
    """Keep a signal for the shard that has its run; return False for an engine alone."""
    if tables.shard is None:
        return False
    sent = replace(signal, signal_id=signal.signal_id or str(uuid4()))
    _keep(tables, Forward(0, signal=sent))
    return True


def forward_event(tables: Tables, event: NewEvent) -> list[Notice]:
    """Keep an event for all other shards, unless it came from one of them."""
    state = tables.shard
    if state is None or event.forwarded:
        return []
    for number in range(state.count):
        if number != state.number:
            _keep(tables, Forward(0, event=event, shard=number))
    return [Notice(FORWARDS_TOPIC, "")]


def _keep(tables: Tables, forward: Forward) -> None:
    tables.forwarded += 1
    tables.forwards.append(replace(forward, forward_id=tables.forwarded))
