"""Shards: which of an engine's databases this is, and what it keeps for the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import InvalidInput
from holdfast.store.memory.chains import newest, next_of
from holdfast.store.memory.database import Part
from holdfast.store.memory.signals import has_signal, pass_signals
from holdfast.store.memory.tables import Tables
from holdfast.types import (
    MOST_SHARDS,
    Delivered,
    Forward,
    NewSignal,
    ShardChange,
    ShardState,
    target_of,
)

_HELD: Final = 10_000_000
_PAGE: Final = 8 << 20  # bytes
_AHEAD: Final = 60_000_000  # a hold that ends later was made before the clock was set back


class MemoryShards(Part):
    async def ping(self) -> None:
        """Return at once; see `ShardStore.ping`."""

    async def shard_state(self) -> ShardState | None:
        async with self._transaction() as (tables, _):
            return tables.shard

    async def set_shard_state(self, state: ShardState) -> ShardChange:
        if not all(-state.count < each <= MOST_SHARDS and each for each in state.history):
            raise InvalidInput(f"there is no shard of this history: {state.history}")
        if not 0 <= state.number < state.count:
            raise InvalidInput(f"there is no shard {state.number} of {state.count}")
        async with self._transaction() as (tables, _):
            known = tables.shard
            if known is not None:
                if (known.engine, known.number) != (state.engine, state.number):
                    return "other"
                if state.history[: len(known.history)] != known.history:
                    return "other"
                if state.history == known.history:
                    return "same"
            tables.shard = state
            return "written"

    async def take_forwards(
        self, worker_id: str, *, held: Collection[UUID | int] = (), limit: int = 1000
    ) -> list[Forward]:
        async with self._transaction() as (tables, now):
            holder, until = tables.forwarder
            if tables.shard is None or (holder != worker_id and now <= until <= now + _AHEAD):
                return []
            tables.forwarder = worker_id, now + _HELD
            free = [each for each in tables.forwards if target_of(each) not in held]
            sizes = accumulate(map(_size, free))
            end = next((place for place, size in enumerate(sizes, 1) if size >= _PAGE), limit)
            return free[: min(limit, end)]

    async def receive_signals(self, signals: Sequence[NewSignal]) -> Delivered:
        async with self._transaction() as (tables, now):
            answer = Delivered([], [])
            for each in signals:
                if _has_arrived(tables, each):
                    answer.outcomes.append("duplicate")
                    continue
                sent = replace(each, run_id=newest(tables, each.run_id))
                one = pass_signals(tables, now, [sent])
                answer.outcomes.extend(one.outcomes)
                answer.notices.extend(one.notices)
            return answer

    async def end_forwards(self, forward_ids: Sequence[int]) -> None:
        async with self._transaction() as (tables, _):
            done = set(forward_ids)
            tables.forwards[:] = [x for x in tables.forwards if x.forward_id not in done]


def _has_arrived(tables: Tables, signal: NewSignal) -> bool:
    """Return True if the run, or one that continues it, has the signal."""
    run_id = signal.run_id
    while run_id in tables.runs:
        if has_signal(tables, run_id, signal.signal_id or ""):
            return True
        if tables.runs[run_id].status != "continued":
            break
        run_id = next_of(tables.runs[run_id])
    return False


def _size(forward: Forward) -> int:
    sent = forward.signal or forward.event
    return 0 if sent is None else len(sent.payload)
