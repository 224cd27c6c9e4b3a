"""Watch a value that a run sets."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import UUID

import msgspec

from holdfast.client.chains import heir
from holdfast.client.outcomes import decode_plain
from holdfast.client.session import Session
from holdfast.types import JSON, LoggedEvent


class _Set(msgspec.Struct):
    """The details of ValueSet."""

    value: msgspec.Raw


async def watch_value(session: Session, run_id: UUID, name: str) -> AsyncGenerator[JSON]:
    """Yield the value of a name now, then each that it is changed to, until the run has ended.

    Goes on with the runs that it continues as. Raises RunNotFound.
    """
    next_id: UUID | None = run_id
    while next_id is not None:
        run_id, is_past = next_id, True
        async with aclosing(session.read_batches(run_id, 0)) as batches:
            async for batch in batches:
                values = [_value(entry) for entry in batch if _sets(entry, name)]
                for value in values[-1:] if is_past else values:
                    yield value
                is_past = False
        next_id = await heir(session.store, run_id, next_only=True)


def _sets(entry: LoggedEvent, name: str) -> bool:
    return entry.event.type == "ValueSet" and entry.event.key == name


def _value(entry: LoggedEvent) -> JSON:
    details = msgspec.json.decode(entry.event.details or "null", type=_Set)
    return decode_plain(bytes(details.value).decode())
