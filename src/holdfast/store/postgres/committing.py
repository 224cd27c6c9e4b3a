"""Commit many runs' turns, so that one bad or busy run does not hold up its batch."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import asyncpg

from holdfast.store.postgres import rows
from holdfast.store.postgres.arrays import commit_arguments
from holdfast.store.postgres.connections import Database
from holdfast.store.postgres.errors import is_lock_timeout, is_refused_value, translated
from holdfast.types import Committed, Refusal, TurnCommit


async def commit(
    database: Database, worker_id: str, token: UUID, turns: Sequence[TurnCommit]
) -> Committed:
    """Commit turns; a part that the server cannot take is found by halving the batch."""
    if len({turn.run_id for turn in turns}) != len(turns):
        raise ValueError("a run stands twice in one commit")
    if not all(turn.events for turn in turns):
        raise ValueError("a turn commits at least one event")
    with translated():
        return await _commit(database, worker_id, token, turns)


async def _commit(
    database: Database, worker_id: str, token: UUID, turns: Sequence[TurnCommit]
) -> Committed:
    try:
        row = await database.row_untranslated("commit", commit_arguments(worker_id, token, turns))
    except asyncpg.PostgresError as error:
        if not (is_refused_value(error) or is_lock_timeout(error)):
            raise
        if len(turns) == 1:
            return await _refused(database, turns[0], error)
        middle = len(turns) // 2
        first = await _commit(database, worker_id, token, turns[:middle])
        second = await _commit(database, worker_id, token, turns[middle:])
        return Committed(
            second.now,
            first.refused | second.refused,
            [*first.notices, *second.notices],
            {**first.ahead, **second.ahead},
        )
    refused, notices = rows.refusals(row["refused"]), rows.notices(row["notices"])
    return Committed(row["now"], refused, notices, rows.ahead(row["ahead"]))


async def _refused(database: Database, turn: TurnCommit, error: Exception) -> Committed:
    now = await database.row_untranslated("now_micros", ())
    refusal = Refusal("busy" if is_lock_timeout(error) else "invalid", [], str(error))
    return Committed(now[0], {turn.run_id: refusal}, [])
