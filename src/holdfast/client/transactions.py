"""Calls within the caller's own transaction, on a connection of any of four libraries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Final, cast
from uuid import UUID

from holdfast.database.scripts import check_schema_name
from holdfast.errors import ConfigurationError
from holdfast.store.port import WORK_TOPIC, messages_topic
from holdfast.store.postgres import Statement, ack_statement, send_statement, start_statement
from holdfast.store.postgres.executing import Execute, Mark, executor
from holdfast.store.postgres.listening import channel
from holdfast.store.postgres.starts import cast_mark
from holdfast.types import NewMessage, NewRun, Notice, Receipt, RuleKind, StartedRun, Status

WITH_DATA_ONLY: Final = ContextVar("WITH_DATA_ONLY", default=False)
"""True in a transaction of a test whose runs are in memory: its database has only the data."""


def callers_executor(connection: object) -> Execute:
    """Return what executes holdfast's statements on the caller's connection.

    Raises ConfigurationError for an unknown kind of connection, and in a test for one to a
    database that does not have the runs.
    """
    if WITH_DATA_ONLY.get():
        raise ConfigurationError(
            "the runs of this test are in memory, and this connection is to the database of its "
            "data: what connection= writes there would be no part of the test. Use `local(app, "
            "database)` in place of `Environment` for this test, or replace the transaction with "
            "`environment.replace`"
        )
    return executor(connection)


async def start_within(
    connection: object, runs: Sequence[NewRun], *, schema: str, notify: bool
) -> list[StartedRun]:
    """Start runs on the caller's connection; they exist once its transaction commits.

    Awaits only the connection, so with a synchronous one it never suspends. Raises
    ConfigurationError for an unknown kind of connection, and what the connection's library raises.
    """
    if not runs:
        return []
    execute = callers_executor(connection)

    def start(mark: Mark) -> Statement:
        return start_statement(runs, schema=schema, placeholder=mark)

    rows = await execute(connection, start)
    started = [
        StartedRun(
            UUID(str(run_id)),
            bool(created),
            cast("Status | None", status),
            cast("RuleKind | None", refused),
            cast("int | None", until),
        )
        for run_id, created, status, refused, until in rows
    ]
    if notify:
        created = [run for run, answer in zip(runs, started, strict=True) if answer.created]
        queues = {run.queue for run in created if run.queue is not None}
        if unknown := [run.run_id for run in created if run.queue is None]:
            queues |= await queues_within(connection, schema, unknown)
        await notify_within(connection, schema, [Notice(WORK_TOPIC, each) for each in queues])
    return started


async def queues_within(connection: object, schema: str, run_ids: Sequence[UUID]) -> set[str]:
    """Return the queues of runs, as the caller's connection sees them."""
    rows = await callers_executor(connection)(connection, partial(_queues_of, schema, run_ids))
    return {str(queue) for (queue,) in rows}


async def notify_within(connection: object, schema: str, notices: Iterable[Notice]) -> None:
    """Send wake-ups when the transaction of the caller's connection commits."""
    execute = callers_executor(connection)
    for notice in sorted(set(notices), key=lambda each: (each.topic, each.payload)):
        await execute(connection, partial(_notify, channel(schema, notice.topic), notice.payload))


async def send_within(
    connection: object, queue: str, messages: Sequence[NewMessage], *, schema: str, notify: bool
) -> list[int]:
    """Send messages on the caller's connection; they exist once its transaction commits.

    Raises what `start_within` raises.
    """
    if not messages:
        return []
    execute = callers_executor(connection)

    def send(mark: Mark) -> Statement:
        return send_statement(queue, messages, schema=schema, placeholder=mark)

    ids = [int(str(message_id)) for (message_id,) in await execute(connection, send)]
    if notify:
        await notify_within(connection, schema, [Notice(messages_topic(queue), queue)])
    return ids


async def ack_within(connection: object, receipts: Sequence[Receipt], *, schema: str) -> list[bool]:
    """Acknowledge messages on the caller's connection, once its transaction commits.

    Raises what `start_within` raises.
    """
    if not receipts:
        return []

    def ack(mark: Mark) -> Statement:
        return ack_statement(receipts, schema=schema, placeholder=mark)

    return [bool(acked) for (acked,) in await callers_executor(connection)(connection, ack)]


async def apps_within(connection: object, schema: str, workflow: str) -> list[str]:
    """Return the apps that have a workflow of this name, as the caller's connection sees them."""

    def find(mark: Mark) -> Statement:
        check_schema_name(schema)
        name = f"cast({mark(1)} as text)"
        return Statement(f'select unnest("{schema}".apps_with({name}))', (workflow,))

    return [str(app) for (app,) in await callers_executor(connection)(connection, find)]


def _queues_of(schema: str, run_ids: Sequence[UUID], mark: Mark) -> Statement:
    ids = cast_mark(mark(1), "uuid[]")
    return Statement(f'select queue from "{schema}".queues_of_runs({ids})', (list(run_ids),))


def _notify(name: str, payload: str, mark: Mark) -> Statement:
    text = f"select pg_notify(cast({mark(1)} as text), cast({mark(2)} as text))"
    return Statement(text, (name, payload))
