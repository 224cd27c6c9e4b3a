"""The answers of the SQL functions as values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

import msgspec

from holdfast.types import Ahead, ClaimedTask, Event, Notice, Refusal

if TYPE_CHECKING:
    import asyncpg


_Tail: TypeAlias = list[tuple[str, str | None, str | None, int]]


class _Refused(msgspec.Struct, array_like=True, gc=False):
    run_id: UUID
    reason: str
    tail: _Tail


class _Ahead(msgspec.Struct, array_like=True, gc=False):
    run_id: UUID
    tail: _Tail


_decode_ahead = msgspec.json.Decoder(list[_Ahead]).decode
_decode_refused = msgspec.json.Decoder(list[_Refused]).decode
_decode_headers = msgspec.json.Decoder(dict[str, str]).decode
_decode_tail = msgspec.json.Decoder(_Tail).decode


def notices(pairs: Iterable[Sequence[str]] | None) -> list[Notice]:
    """Read (topic, payload) pairs, each once: who looks once sees everything."""
    return [Notice(topic, payload) for topic, payload in dict.fromkeys(map(tuple, pairs or ()))]


def claimed_task(row: asyncpg.Record) -> ClaimedTask:
    """Read a task row of a claim."""
    name, _, version = row["handler"].rpartition("@")
    return ClaimedTask(
        run_id=row["run_id"],
        key=row["key"],
        kind=row["kind"],
        queue=row["queue"],
        name=name,
        version=int(version),
        attempts=row["attempts"],
        lease_no=row["lease_no"],
        log_length=row["log_length"],
        started_at=row["started_at"],
        input=row["input"],
        payload=row["payload"],
        deadline_at=row["deadline_at"],
        heartbeat=row["heartbeat"],
        parent_run_id=row["parent_run_id"],
        tail_from=row["tail_from"],
        tail=() if row["tail"] is None else _events(_decode_tail(row["tail"])),
        run_key=row["run_key"],
        headers=headers(row["headers"]),
    )


def headers(text: str | None) -> dict[str, str] | None:
    """Read headers. Ones that an early release stored unchecked and that are unreadable are {}."""
    if text is None:
        return None
    try:
        return _decode_headers(text)
    except (msgspec.MsgspecError, RecursionError):
        return {}


def event(row: asyncpg.Record) -> Event:
    """Read an event row."""
    return Event(row["event_type"], row["key"], row["details"], row["at"])


def refusals(text: str | None) -> dict[UUID, Refusal]:
    """Read what a commit refused. Details keep their very text: it is what was recorded."""
    if text is None:
        return {}
    return {
        refused.run_id: Refusal(
            "lost" if refused.reason == "lost" else "conflict",
            _events(refused.tail),
        )
        for refused in _decode_refused(text)
    }


def ahead(text: str | None) -> dict[UUID, Ahead]:
    """Read what stands ahead of parts that a commit wrote behind it."""
    if text is None:
        return {}
    return {found.run_id: Ahead(_events(found.tail)) for found in _decode_ahead(text)}


def _events(tail: _Tail) -> list[Event]:
    """Read events whose details are text, which nobody has looked into."""
    return [Event(*event) for event in tail]
