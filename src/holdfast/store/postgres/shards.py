"""Shards: which of an engine's databases this is, and what it keeps for the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final
from uuid import UUID

import asyncpg
import msgspec

from holdfast.database.connection import close_connection
from holdfast.store.postgres.database import Part, columns, read_notices, translated
from holdfast.types import Delivered, Forward, NewEvent, NewSignal, ShardChange, ShardState


class _Signal(msgspec.Struct):
    name: str
    payload: str
    signal_id: str


_read_signal: Final = msgspec.json.Decoder(_Signal).decode
_read_event: Final = msgspec.json.Decoder(NewEvent).decode


class PostgresShards(Part):
    async def ping(self) -> None:
        with translated():
            await close_connection(await self._database.connect_unlimited())

    async def shard_state(self) -> ShardState | None:
        row = await self._database.row("shard_state")
        if row["engine"] is None:
            return None
        return ShardState(row["engine"], row["number"], tuple(row["counts"]))

    async def set_shard_state(self, state: ShardState) -> ShardChange:
        change: ShardChange = await self._database.value(
            "set_shard_state", state.engine, state.number, list(state.history)
        )
        return change

    async def take_forwards(
        self, worker_id: str, *, held: Collection[UUID | int] = (), limit: int = 1000
    ) -> list[Forward]:
        runs = [each for each in held if isinstance(each, UUID)]
        shards = [each for each in held if isinstance(each, int)]
        rows = await self._database.rows("take_forwards", worker_id, runs, shards, limit)
        return [_read_forward(row) for row in rows]

    async def receive_signals(self, signals: Sequence[NewSignal]) -> Delivered:
        arguments = columns(signals, "run_id", "name", "payload", "signal_id")
        weight = sum(len(each.payload) for each in signals)
        with translated():
            row = await self._database.row_untranslated("receive_signals", arguments, weight=weight)
        return Delivered(row["outcomes"], read_notices(row["notices"]))

    async def end_forwards(self, forward_ids: Sequence[int]) -> None:
        await self._database.row("end_forwards", list(forward_ids))


def _read_forward(row: asyncpg.Record) -> Forward:
    if row["target_run_id"] is None:
        event = _read_event(row["details"])
        return Forward(row["forward_id"], event=event, shard=row["shard"])
    told = _read_signal(row["details"])
    signal = NewSignal(row["target_run_id"], told.name, told.payload, told.signal_id)
    return Forward(row["forward_id"], signal=signal)
