"""Giving back the leases of a worker whose event loop is blocked by user code.

A step may have ended, but the blocked thread never sent its result. The result is recorded first:
otherwise every worker that takes the run would execute the step again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec

from holdfast.errors import LockTimeout
from holdfast.store.port import Store
from holdfast.store.shared_calls import BriefLocks
from holdfast.types import (
    MessageReturn,
    Notice,
    Receipt,
    Refusal,
    Release,
    TurnCommit,
    count_bearable,
)
from holdfast.worker.recording import weigh_part

_BUSY_SECONDS: Final = 0.05


class GivenUp(NamedTuple):
    """A lease to release, after the log has the `results` of steps that it may lack."""

    release: Release
    results: TurnCommit | None = None


class MessageEnds(NamedTuple):
    """What a worker that ends has of messages: those to acknowledge, and those to give back."""

    acks: Sequence[Receipt] = ()
    returns: Sequence[MessageReturn] = ()


async def give_back(store: Store, worker_id: str, given_up: Sequence[GivenUp]) -> None:
    """Record the results of steps, then release the leases."""
    parts = [each.results for each in given_up if each.results is not None]
    while parts:
        parts = await _record(store, worker_id, parts)
    releases = [each.release for each in given_up]
    locked, notices = await release_free(store, worker_id, releases)
    await store.notify(notices)
    if locked:
        await store.notify(await store.release_tasks(worker_id, locked))


async def give_back_messages(store: Store, ends: MessageEnds) -> None:
    """Acknowledge messages, and give back others."""
    if ends.acks:
        await store.notify((await store.ack_messages(ends.acks))[1])
    if ends.returns:
        await store.notify((await store.return_messages(ends.returns))[1])


async def release_free(
    store: Store, worker_id: str, releases: Sequence[Release]
) -> tuple[list[Release], list[Notice]]:
    """Release leases; return those that were not, as another transaction has their rows."""
    parts, locked, notices = [releases], list[Release](), list[Notice]()
    while parts:
        part = parts.pop()
        try:
            with BriefLocks():
                notices += await store.release_tasks(worker_id, part)
        except LockTimeout:
            middle = len(part) // 2
            if middle:
                parts += [part[middle:], part[:middle]]
            else:
                locked += part
    return locked, notices


async def _record(store: Store, worker_id: str, parts: Sequence[TurnCommit]) -> list[TurnCommit]:
    """Commit the parts; return what remains to be committed of those that were refused."""
    left: list[TurnCommit] = []
    for call in _calls(parts):
        refused = (await store.commit(worker_id, uuid4(), call)).refused
        for part in call:
            refusal = refused.get(part.run_id)
            if refusal is not None:
                left += _left(part, refusal)
    if any(part in parts for part in left):
        await asyncio.sleep(_BUSY_SECONDS)
    return left


def _left(part: TurnCommit, refusal: Refusal) -> list[TurnCommit]:
    """Return what to commit in place of a refused part: one part or none.

    The commit that was in flight when the thread stopped may have been applied: those events are
    left out.
    """
    if refusal.reason == "busy":
        return [part]
    if refusal.reason != "conflict" or not refusal.tail:
        return []
    recorded = {(event.type, event.key, event.at) for event in refusal.tail}
    events = [each for each in part.events if (each.type, each.key, each.at) not in recorded]
    expected = part.expected + len(refusal.tail)
    return [msgspec.structs.replace(part, expected=expected, events=events)] if events else []


def _calls(parts: Sequence[TurnCommit]) -> Iterator[Sequence[TurnCommit]]:
    """Divide parts into calls that are not too heavy."""
    while parts:
        size = count_bearable(map(weigh_part, parts))
        yield parts[:size]
        parts = parts[size:]
