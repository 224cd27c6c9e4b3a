"""Commit the turns of many runs, so that one bad or busy run does not hold up the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, compress
from operator import attrgetter, itemgetter
from typing import Any, Final, Literal, TypeAlias, cast
from uuid import UUID

import asyncpg
import msgspec

from holdfast.errors import DatabaseError
from holdfast.store.postgres.database import Database, Part, read_notices, translated
from holdfast.store.postgres.errors import error_class
from holdfast.store.postgres.packing import Packing
from holdfast.types import (
    Ahead,
    Committed,
    Event,
    Finish,
    Refusal,
    Suspend,
    TurnCommit,
    Undelivered,
)

_LIGHT: Final = 1 << 20  # bytes; a smaller call is slow for another reason
_LOCK_TIMEOUT: Final = "55P03"
# Those with an element for each turn, for each further event, or for each end.
_PACKED: Final[Packing] = (
    *((2, "uuid"), (3, "int"), (4, "int"), (5, "text"), (6, "text"), (7, "json"), (8, "bigint")),
    *((9, "uuid"), (10, "int"), (11, "text"), (12, "text"), (13, "json"), (14, "bigint")),
    *((18, "uuid"), (19, "text"), (20, "json"), (21, "json"), (29, "bigint")),
)
_TEXTS: Final = (7, 13, 20, 21)  # the details of events, outputs, errors: how much a call sends

_NO_TURNS: Final[list[tuple[Any, ...]]] = [()] * len(TurnCommit.__struct_fields__)
_first: Final = itemgetter(0)
_status, _output, _error = attrgetter("status"), attrgetter("output"), attrgetter("error")

_Undelivered: TypeAlias = tuple[UUID, UUID, str, Literal["ended", "missing"]]
_Tail: TypeAlias = list[tuple[str, str | None, str | None, int]]


class _Refused(msgspec.Struct, array_like=True, gc=False):
    run_id: UUID
    reason: str
    tail: _Tail


class _Ahead(msgspec.Struct, array_like=True, gc=False):
    run_id: UUID
    tail: _Tail


_decode_ahead = msgspec.json.Decoder(list[_Ahead]).decode
_decode_undelivered = msgspec.json.Decoder(list[_Undelivered]).decode
_decode_refused = msgspec.json.Decoder(list[_Refused]).decode


class PostgresCommits(Part):
    async def commit(self, worker_id: str, token: UUID, turns: Sequence[TurnCommit]) -> Committed:
        """Append, then suspend or finish; see `CommitStore.commit`.

        If the server refuses a part, the batch is halved until that part is found. An error of all
        parts is raised: its reason is the server, and not one value.
        """
        if len({turn.run_id for turn in turns}) != len(turns):
            raise ValueError("a run occurs twice in one commit")
        if not all(turn.events for turn in turns):
            raise ValueError("a turn commits at least one event")
        with translated():
            committed, error = await _commit(self._database, worker_id, token, turns)
            failed = [each for each in committed.refused.values() if each.reason == "failed"]
            if error is not None and len(failed) == len(turns) > 1:
                raise error
            return committed


def commit_arguments(
    worker_id: str, token: UUID, turns: Sequence[TurnCommit], tell: str | None = None
) -> tuple[object, ...]:
    """Return the arguments of `commit`: first events, further ones, suspends, ends, flags."""
    # Column by column, without code of Python for each turn: most of it is the same for all.
    columns: list[tuple[Any, ...]] = [
        *zip(*map(msgspec.structs.astuple, turns), strict=True)
    ] or _NO_TURNS
    runs, leases, expected, events, thens, commanding, touches, parents, after, last_at = columns
    rest: list[tuple[UUID, int, Event]] = [
        (run_id, idx, event)
        for run_id, first, some in zip(runs, expected, events, strict=True)
        if len(some) > 1
        for idx, event in enumerate(some[1:], first + 1)
    ]
    suspended: list[tuple[UUID, Suspend]] = []
    ended: list[tuple[UUID, Finish]] = []
    for run_id, then in zip(runs, thens, strict=True):
        if isinstance(then, Finish):
            ended.append((run_id, then))
        elif then is not None:
            suspended.append((run_id, then))
    ends = [end for _, end in ended]
    return (
        worker_id,
        token,
        list(runs),
        list(leases),
        list(expected),
        *_columns(list(map(_first, events))),
        [run_id for run_id, _, _ in rest],
        [idx for _, idx, _ in rest],
        *_columns([event for _, _, event in rest]),
        [run_id for run_id, _ in suspended],
        [suspend.visible_at for _, suspend in suspended],
        [
            msgspec.json.encode(suspend.awaiting).decode() if suspend.awaiting else None
            for _, suspend in suspended
        ],
        [run_id for run_id, _ in ended],
        list(map(_status, ends)),
        list(map(_output, ends)),
        list(map(_error, ends)),
        list(compress(runs, commanding)),
        list(set(chain.from_iterable(touches))),
        [turn.run_id for turn in compress(turns, parents) if isinstance(turn.then, Finish)],
        list(compress(runs, after)),
        tell,
        True,  # details come back as text
        True,  # undelivered signals are returned
        list(last_at),
    )


def _columns(events: Sequence[Event]) -> list[list[object]]:
    """Return the types of events, their keys, their details and their moments."""
    if not events:
        return [[], [], [], []]
    return [list(column) for column in zip(*map(msgspec.structs.astuple, events), strict=True)]


async def _commit(
    database: Database, worker_id: str, token: UUID, turns: Sequence[TurnCommit]
) -> tuple[Committed, Exception | None]:
    """Commit turns; also return the last error whose reason is unknown."""
    arguments = commit_arguments(worker_id, token, turns, database.tell)
    weight = sum(
        sum(map(len, filter(None, cast("list[str | None]", arguments[place])))) for place in _TEXTS
    )
    try:
        row = await database.row_untranslated("commit", arguments, weight=weight, packing=_PACKED)
    except (asyncpg.PostgresError, TimeoutError) as error:
        alone = len(turns) == 1
        if alone and isinstance(error, TimeoutError):  # it had enough time
            raise
        if not _may_succeed_in_parts(error, weight):
            raise
        if alone:
            return await _refused(database, turns[0], error), error
        middle = len(turns) // 2
        first, one = await _commit(database, worker_id, token, turns[:middle])
        second, other = await _commit(database, worker_id, token, turns[middle:])
        return _together(first, second), one or other
    refused, notices = _refusals(row["refused"]), read_notices(row["notices"])
    ahead = _ahead(row["ahead"])
    written = {run_id: found for run_id, found in ahead.items() if run_id not in refused}
    undelivered = _undelivered(row["undelivered"])
    return Committed(row["now"], refused, notices, written, undelivered), None


def _may_succeed_in_parts(error: Exception, weight: int) -> bool:
    """Return True if the call might succeed without one of its parts, or as two calls."""
    if _is_too_slow(error):
        return weight > _LIGHT
    return _is_refused_value(error) or _is_lock_timeout(error) or _is_unexplained(error)


def _together(first: Committed, second: Committed) -> Committed:
    return Committed(
        second.now,
        first.refused | second.refused,
        [*first.notices, *second.notices],
        {**first.ahead, **second.ahead},
        [*first.undelivered, *second.undelivered],
    )


async def _refused(database: Database, turn: TurnCommit, error: Exception) -> Committed:
    now = await database.row_untranslated("now_micros", ())
    code = getattr(error, "sqlstate", None)
    refusal = Refusal(_reason(error), [], f"{error} ({code})" if code else str(error))
    return Committed(now[0], {turn.run_id: refusal}, [])


def _reason(error: Exception) -> Literal["busy", "invalid", "failed"]:
    if _is_lock_timeout(error):
        return "busy"
    return "invalid" if _is_refused_value(error) else "failed"


def _is_refused_value(error: BaseException) -> bool:
    """Return True if the server would accept the call without some value in it."""
    code = error.sqlstate or "" if isinstance(error, asyncpg.PostgresError) else ""
    return code[:2] in {"22", "23", "54"}


def _is_unexplained(error: BaseException) -> bool:
    """Return True if the server failed for a reason that may lie in one value of the call."""
    return isinstance(error, asyncpg.PostgresError) and error_class(error) is DatabaseError


def _is_too_slow(error: BaseException) -> bool:
    """Return True if the call was cut off because it took too long."""
    return isinstance(error, TimeoutError | asyncpg.QueryCanceledError)


def _is_lock_timeout(error: BaseException) -> bool:
    """Return True if the call gave up waiting for another transaction's lock."""
    return isinstance(error, asyncpg.PostgresError) and error.sqlstate == _LOCK_TIMEOUT


def _refusals(text: str | None) -> dict[UUID, Refusal]:
    """Return what a commit refused. Details stay the text that was recorded."""
    if text is None:
        return {}
    return {
        refused.run_id: Refusal(
            "lost" if refused.reason == "lost" else "conflict", _events(refused.tail)
        )
        for refused in _decode_refused(text)
    }


def _ahead(text: str | None) -> dict[UUID, Ahead]:
    """Return the entries of others after which parts were committed, by run."""
    if text is None:
        return {}
    return {found.run_id: Ahead(_events(found.tail)) for found in _decode_ahead(text)}


def _undelivered(text: str | None) -> Sequence[Undelivered]:
    """Return the signals that could not be delivered."""
    if text is None:
        return ()
    return [Undelivered(*each) for each in _decode_undelivered(text)]


def _events(tail: _Tail) -> list[Event]:
    """Return events; their details are text that is not decoded yet."""
    return [Event(*event) for event in tail]
