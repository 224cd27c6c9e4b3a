"""What each of several databases is: a shard of the engine, spare, away; and what is wrong."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.database.connection import Connection, connected
from holdfast.database.resolve import Database
from holdfast.database.urls import redact
from holdfast.errors import DatabaseError, DatabaseUnavailable
from holdfast.insight.examining import examine
from holdfast.insight.findings import Finding
from holdfast.store.opening import opened_store
from holdfast.store.port import Store
from holdfast.store.shards.homes import open_shards
from holdfast.types import ShardState, Value

_MOST: Final = 10_001  # that are counted of each kind
_ANSWER_SECONDS: Final = 5.0
_SERVED: Final = ("open", "closed")  # shards of the engine

ShardSituation: TypeAlias = Literal[
    "open", "closed", "alone", "spare", "away", "other engine", "unusable"
]


class ShardSummary(Value, frozen=True, kw_only=True):
    """One of the databases that are named.

    `history` is what it knows of the shards, see `ShardState`. `runs` are counted by status,
    each kind up to 10,001; `forwards` are signals and events that wait for other shards.
    """

    number: int
    database: str
    state: ShardSituation
    history: tuple[int, ...] = ()
    runs: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    forwards: int = 0
    message: str | None = None


async def look_at_shards(database: Database, schema: str) -> list[ShardSummary]:
    """Return what each of the databases is, and has."""
    parts = database.parts
    looks = (_look(each, number, schema) for number, each in enumerate(parts))
    found = await asyncio.gather(*looks)
    states = [state for state, _ in found if state is not None]
    newest = max(states, key=lambda each: len(each.history), default=None)
    return [_judged(summary, state, newest, len(parts)) for state, summary in found]


def _judged(
    summary: ShardSummary, state: ShardState | None, newest: ShardState | None, named: int
) -> ShardSummary:
    """Compare what a database says with what the one says that knows most."""
    if state is None or newest is None:
        only = summary.state == "spare" and named == 1
        return replace(summary, state="alone") if only else summary
    if state.engine != newest.engine:
        return replace(summary, state="other engine")
    if state.number != summary.number:
        return replace(summary, state="unusable", message=f"it is shard {state.number}")
    if summary.number not in open_shards(newest.history):
        summary = replace(summary, state="closed")
    if state.history != newest.history:
        told = "it has not heard of the last change of the shards: run that command again"
        return replace(summary, message=told)
    return summary


async def examine_database(database: Database, schema: str) -> Sequence[Finding]:
    """Return what all checks find in one database. Raises DatabaseError if it cannot be used."""
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(connected(database.url))

        async def open_store() -> Store:
            opened = opened_store(database, schema, connections=1)
            return await stack.enter_async_context(opened)

        return await examine(connection, open_store, schema)


async def examine_shards(database: Database, schema: str) -> Sequence[Finding]:
    """Return what all checks find in each of several databases; each message says in which."""
    findings: list[Finding] = []
    found = await look_at_shards(database, schema)
    for each, summary in zip(database.parts, found, strict=True):
        here = [_finding(summary)]
        if summary.state in _SERVED:
            try:
                here += await examine_database(each, schema)
            except DatabaseError as error:
                here.append(Finding("database", "fail", str(error)))
        is_shard = summary.state not in ("spare", "alone")
        name = f"shard {summary.number}" if is_shard else f"database {summary.number + 1}"
        findings += [replace(one, message=f"{name}: {one.message}") for one in here]
    return findings


def _finding(summary: ShardSummary) -> Finding:
    if summary.state == "spare":
        told = "spare: it is not used until it is added"
        return Finding("shard", "warn", told, "`holdfast shards add` makes it a shard")
    if summary.state == "alone":
        told = "it is in use, and not a shard of the engine"
        add = "`holdfast shards add` with the first database alone makes that shard 0"
        return Finding("shard", "fail", told, "" if summary.number else add)
    if summary.state in _SERVED and summary.message is None:
        closed = ", closed for new runs" if summary.state == "closed" else ""
        return Finding("shard", "ok", f"one of {max(summary.history)}{closed}")
    return Finding("shard", "fail", summary.message or f"it belongs to {summary.state}")


async def _connect(database: Database, shown: str, stack: AsyncExitStack) -> Connection:
    """Connect, or raise DatabaseUnavailable soon: a server may accept it and answer nothing."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await stack.enter_async_context(connected(database.url))
    except TimeoutError as error:
        message = f"{shown}: the server has not answered for {_ANSWER_SECONDS:g} s"
        raise DatabaseUnavailable(message) from error


async def _look(
    database: Database, number: int, schema: str
) -> tuple[ShardState | None, ShardSummary]:
    shown = redact(database.url)
    try:
        async with AsyncExitStack() as stack:
            connection = await _connect(database, shown, stack)
            opened = opened_store(database, schema, connections=1)
            store = await stack.enter_async_context(opened)
            state = await store.shard_state()
            runs = Counter[str]()
            for by_status in (await store.count_runs(None, _MOST)).values():
                runs.update(by_status)
            is_used = bool(runs or await store.list_workers())
            waiting = await connection.fetchval(
                f'select count(*) from (select from "{schema}".forwards limit {_MOST}) as f'
            )
    except DatabaseUnavailable as error:
        return None, ShardSummary(number=number, database=shown, state="away", message=str(error))
    except DatabaseError as error:
        return None, ShardSummary(
            number=number, database=shown, state="unusable", message=str(error)
        )
    unused: ShardSituation = "alone" if is_used else "spare"
    return state, ShardSummary(
        number=number,
        database=shown,
        state=unused if state is None else "open",
        history=() if state is None else state.history,
        runs=dict(runs),
        forwards=waiting,
    )
