"""Append to runs' logs from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.store.postgres import rows
from holdfast.store.postgres.connections import Database
from holdfast.types import Delivered, NewSignal

if TYPE_CHECKING:
    import asyncpg


async def signal_runs(database: Database, signals: Sequence[NewSignal]) -> Delivered:
    """Send signals."""
    row = await database.row(
        "signal_runs",
        [signal.run_id for signal in signals],
        [signal.name for signal in signals],
        [signal.payload for signal in signals],
        [signal.signal_id for signal in signals],
        [signal.update for signal in signals],
        [signal.reply_to for signal in signals],
        database.tell,
    )
    return delivered(row)


def delivered(row: asyncpg.Record) -> Delivered:
    """Read what became of signals, cancels or terminations."""
    return Delivered(row["outcomes"] or [], rows.notices(row["notices"]))
