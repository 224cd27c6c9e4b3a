"""Commit many runs' turns, so that one bad or busy run does not hold up its batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal
from uuid import UUID

import asyncpg

from holdfast.store.postgres import rows
from holdfast.store.postgres.arrays import commit_arguments
from holdfast.store.postgres.connections import Database
from holdfast.store.postgres.errors import (
    is_lock_timeout,
    is_refused_value,
    is_too_slow,
    is_unexplained,
    translated,
)
from holdfast.types import Committed, Refusal, TurnCommit

_LIGHT: Final = 1 << 20  # a call of less is slow for another reason


async def commit(
    database: Database, worker_id: str, token: UUID, turns: Sequence[TurnCommit]
) -> Committed:
    """Commit turns; a part that the server cannot take is found by halving the batch.

    An error that no part gets past is raised: it is the server's, and not of a value.
    """
    if len({turn.run_id for turn in turns}) != len(turns):
        raise ValueError("a run stands twice in one commit")
    if not all(turn.events for turn in turns):
        raise ValueError("a turn commits at least one event")
    with translated():
        committed, error = await _commit(database, worker_id, token, turns)
        failed = [each for each in committed.refused.values() if each.reason == "failed"]
        if error is not None and len(failed) == len(turns) > 1:
            raise error
        return committed


async def _commit(
    database: Database, worker_id: str, token: UUID, turns: Sequence[TurnCommit]
) -> tuple[Committed, Exception | None]:
    """Commit turns; also return an error whose reason is not known."""
    arguments = commit_arguments(worker_id, token, turns, database.tell)
    weight = sum(turn.weight for turn in turns)
    try:
        row = await database.row_untranslated("commit", arguments, weight=weight)
    except (asyncpg.PostgresError, TimeoutError) as error:
        alone = len(turns) == 1
        if alone and isinstance(error, TimeoutError):  # the time that it was given is ample
            raise
        if not _may_be_of_a_value(error, weight):
            raise
        if alone:
            return await _refused(database, turns[0], error), error
        middle = len(turns) // 2
        first, one = await _commit(database, worker_id, token, turns[:middle])
        second, other = await _commit(database, worker_id, token, turns[middle:])
        return _together(first, second), one or other
    refused, notices = rows.refusals(row["refused"]), rows.notices(row["notices"])
    ahead = rows.ahead(row["ahead"])
    written = {run_id: found for run_id, found in ahead.items() if run_id not in refused}
    return Committed(row["now"], refused, notices, written), None


def _may_be_of_a_value(error: Exception, weight: int) -> bool:
    """Return True if the call might go through without one of its parts, or in two calls."""
    if is_too_slow(error):
        return weight > _LIGHT
    return is_refused_value(error) or is_lock_timeout(error) or is_unexplained(error)


def _together(first: Committed, second: Committed) -> Committed:
    return Committed(
        second.now,
        first.refused | second.refused,
        [*first.notices, *second.notices],
        {**first.ahead, **second.ahead},
    )


async def _refused(database: Database, turn: TurnCommit, error: Exception) -> Committed:
    now = await database.row_untranslated("now_micros", ())
    code = getattr(error, "sqlstate", None)
    refusal = Refusal(_reason(error), [], f"{error} ({code})" if code else str(error))
    return Committed(now[0], {turn.run_id: refusal}, [])


def _reason(error: Exception) -> Literal["busy", "invalid", "failed"]:
    if is_lock_timeout(error):
        return "busy"
    return "invalid" if is_refused_value(error) else "failed"
