"""Read one run: its row, its log, and the values that it sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from uuid import UUID

import msgspec

from holdfast.client.chains import find_successor
from holdfast.client.naming import RunRef, check_workflow, given_workflow
from holdfast.client.run import Run, decode_plain, read_run
from holdfast.client.session import Session
from holdfast.definitions.startable import AnyStartable
from holdfast.details import ValueSet
from holdfast.errors import ConfigurationError, RunNotFound
from holdfast.insight.flow_progress import StepProgress, progress_without_tasks
from holdfast.store.port import Store
from holdfast.types import JSON, LoggedEvent, RunRecord
from holdfast.values.names import check_value_name
from holdfast.values.numbers import whole_number

POLL_SECONDS = (0.05, 1.0)  # between two reads of a log that is followed: least, most
STEPS_POLL_SECONDS = (0.1, 1.0)  # between two reads of the steps of a flow's run


async def get_record(session: Session, run_id: UUID) -> RunRecord:
    """Return a run's row, which may be one of the archive. Raises RunNotFound."""
    found = await session.store.get_runs([run_id])
    if run_id in found:
        return found[run_id]
    if (archived := await session.archived(run_id)) is None:
        raise RunNotFound(run_id)
    return archived.record


async def get_run(session: Session, run: RunRef, workflow: AnyStartable | None = None) -> Run:
    """Return a run by its id, or the newest run of a workflow and key. Raises RunNotFound."""
    known = given_workflow(run) if workflow is None else check_workflow(workflow)
    return read_run(await get_record(session, await session.newest_of(run)), session.app, known)


async def get_values(session: Session, run: RunRef) -> dict[str, JSON]:
    """Return the newest value of each name that a run has set. Raises RunNotFound."""
    run_id = await session.newest_of(run)
    found = await session.store.get_values([run_id])
    if run_id not in found:
        found = await (await store_of(session, run_id)).get_values([run_id])
    return {name: decode_plain(text) for name, text in found[run_id].items()}


async def store_of(session: Session, run_id: UUID) -> Store:
    """Return where a run can be read: the database, or a store that has an archived run alone.

    Raises RunNotFound.
    """
    if run_id in await session.store.get_runs([run_id]):
        return session.store
    if (archived := await session.archived(run_id)) is None:
        raise RunNotFound(run_id)
    from holdfast.retention.viewing import archived_store

    return session.viewed(await archived_store(archived, session.store))


async def read_log(session: Session, run: RunRef, from_index: int) -> list[LoggedEvent]:
    """Return a run's log from an index on. Raises RunNotFound."""
    whole_number(from_index, "a log", "from_index", 0)
    run_id = await session.newest_of(run)
    entries = await read_entries(session, run_id, from_index)
    if not entries and run_id not in await session.store.get_runs([run_id]):
        if (archived := await session.archived(run_id)) is None:
            raise RunNotFound(run_id)
        events = archived.events[from_index:]
        return [LoggedEvent(run_id, idx, event) for idx, event in enumerate(events, from_index)]
    return entries or await read_entries(session, run_id, from_index)  # it may have just begun


async def read_entries(session: Session, run_id: UUID, from_index: int) -> list[LoggedEvent]:
    """Return a run's log from an index on, an empty one if the run does not exist."""
    events = (await session.store.read_events([(run_id, from_index)])).get(run_id, [])
    return [LoggedEvent(run_id, idx, event) for idx, event in enumerate(events, from_index)]


async def follow_log(session: Session, run: RunRef, from_index: int) -> AsyncGenerator[LoggedEvent]:
    """Yield the entries of a run's log as it grows, until the run has ended.

    Raises RunNotFound.
    """
    whole_number(from_index, "a log", "from_index", 0)
    run_id = await session.newest_of(run)
    async with aclosing(_follow_batches(session, run_id, from_index)) as batches:
        async for batch in batches:
            for entry in batch:
                yield entry


async def watch_value(session: Session, run: RunRef, name: str) -> AsyncGenerator[JSON]:
    """Yield the value of a name now, then each that it is changed to, until the run has ended.

    Continues with the runs that it continued as. Raises RunNotFound.
    """
    check_value_name(name)
    next_id: UUID | None = await session.newest_of(run)
    while next_id is not None:
        run_id, is_past = next_id, True
        async with aclosing(_follow_batches(session, run_id, 0)) as batches:
            async for batch in batches:
                values = [_value(entry) for entry in batch if _sets(entry, name)]
                for value in values[-1:] if is_past else values:
                    yield value
                is_past = False
        next_id = await find_successor(session.store, run_id, next_only=True)


async def watch_steps(session: Session, run: RunRef) -> AsyncGenerator[list[StepProgress]]:
    """Yield the steps of a flow's run now, then whenever one has changed, until the run has ended.

    Reads ten times a second while steps change, less often while they do not, and at once when
    the run ends. Raises RunNotFound, and ConfigurationError for the run of a workflow.
    """
    run_id = await session.newest_of(run)
    record = await get_record(session, run_id)
    if record.kind != "flow":
        raise ConfigurationError(
            f"run {run_id} is one of a workflow: its steps are in its log, which follow_log reads"
        )
    shape = await session.store.get_flow(record.full_name, record.version)
    runs = () if shape is None else {step.slug for step in shape.steps if step.runs is not None}
    shown, interval = None, STEPS_POLL_SECONDS[0]
    async with session.ends.expect(run_id) as end:
        session.ends.watch(run_id)
        while True:
            ended = end.done() or record.status != "running"
            states = (await session.store.flow_steps([run_id], outputs=False)).get(run_id, [])
            steps = progress_without_tasks(states, ended=ended, runs=runs)
            interval = min(interval * 1.5, STEPS_POLL_SECONDS[1])
            if steps != shown:
                yield steps
                shown, interval = steps, STEPS_POLL_SECONDS[0]
            if ended:
                return
            await asyncio.wait([end], timeout=interval)


async def _follow_batches(
    session: Session, run_id: UUID, from_index: int
) -> AsyncGenerator[list[LoggedEvent]]:
    """Yield what is new in a run's log, until the run has ended.

    Reads at short intervals while the log grows, at longer ones while it does not, and at once
    when the run ends. Raises RunNotFound.
    """
    interval = POLL_SECONDS[0]
    async with session.ends.expect(run_id) as end:
        session.ends.watch(run_id)
        while True:
            ended = end.done()
            entries = await read_entries(session, run_id, from_index)
            if entries:
                yield entries
            if ended:
                end.result()  # raises RunNotFound if the run does not exist
                return
            from_index += len(entries)
            interval = POLL_SECONDS[0] if entries else min(interval * 1.5, POLL_SECONDS[1])
            await asyncio.wait([end], timeout=interval)


def _sets(entry: LoggedEvent, name: str) -> bool:
    return entry.event.type == "ValueSet" and entry.event.key == name


def _value(entry: LoggedEvent) -> JSON:
    details = msgspec.json.decode(entry.event.details or "null", type=ValueSet)
    return decode_plain(bytes(details.value).decode())
