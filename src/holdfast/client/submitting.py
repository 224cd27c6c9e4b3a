"""Start the runs that a caller asks for: alone, together, or within the caller's transaction.

A start with a key may find a run that has ended: it returns that, starts another run, or refuses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence, Set
from functools import partial
from typing import Final, get_args
from uuid import UUID

import msgspec

from holdfast.client.chains import search_newest
from holdfast.client.naming import find_full_name, reference_of
from holdfast.client.outcomes import end_of_key, last_end
from holdfast.client.session import Session
from holdfast.client.transactions import apps_within, start_within
from holdfast.client.waiting import end_within
from holdfast.definitions.starts import (
    PreparedStart,
    RunOptions,
    StartManyOptions,
    StartOptions,
    ToStart,
    TransactionOptions,
    prepare,
)
from holdfast.errors import ConfigurationError, RunEnded
from holdfast.store.port import refusal
from holdfast.store.shared_calls import MAX_BATCH
from holdfast.types import End, IfEnded, NewRun, RulesOfStart, RunKind, StartedRun
from holdfast.values.ids import retry_run_id
from holdfast.values.names import check_reference, split_name

_CHUNKS_AT_ONCE: Final = 2  # of a large start
_read_rules: Final = msgspec.json.Decoder(RulesOfStart).decode


async def prepare_start(
    session: Session,
    workflow: ToStart,
    options: RunOptions,
    known: Set[str],
    connection: object = None,
) -> PreparedStart:
    """Check a start's options; ask the database what a name means that is not the app's."""
    kind: RunKind = "workflow"
    if isinstance(workflow, str) and not _is_known(session, workflow):
        name = check_reference("a workflow", workflow)
        flow = await session.names.flow(name)
        if flow is None:
            within = connection is not None
            lookup = partial(apps_within, connection, session.schema) if within else None
            if "/" in name:
                await session.names.warn_if_unknown(name, lookup)
            else:
                name = await find_full_name(name, session.store, lookup)
                flow = await session.names.flow(name)
        kind = "workflow" if flow is None else "flow"
        workflow = flow or name
    return prepare(workflow, session.app, options, known, kind)


def _is_known(session: Session, workflow: str) -> bool:
    """Return True if a name is of the client's app."""
    app = session.app
    return app is not None and split_name(workflow)[0] in ("", app.name)


async def submit(
    session: Session, runs: Sequence[NewRun], options: StartOptions | StartManyOptions
) -> Sequence[StartedRun]:
    """Start runs, within the caller's transaction if the options have its connection.

    Else one run is started in a transaction with others that are asked for at the same moment,
    many are started in chunks. After an error some chunks may be started.
    """
    if (if_ended := options.get("if_ended", "return")) != "return":
        check_if_ended(if_ended, runs)
    with session.traced_starts(runs) as traced:
        answers = await _submit(session, traced, options)
        if if_ended == "return":
            return answers
        call = partial(_submit, session, options=options)
        return await start_ended(session, traced, answers, if_ended, call)


async def _submit(
    session: Session, runs: Sequence[NewRun], options: TransactionOptions
) -> Sequence[StartedRun]:
    connection, notify = options.get("connection"), options.get("notify", False)
    if connection is not None:
        runs = await session.sealed(runs)
        return await start_within(connection, runs, schema=session.schema, notify=notify)
    if notify:
        raise ConfigurationError("notify is for a start within a connection's transaction")
    if len(runs) == 1:
        return [await session.starts(runs[0].kind).submit(runs[0])]
    return await _submit_chunks(session, runs)


async def _submit_chunks(session: Session, runs: Sequence[NewRun]) -> Sequence[StartedRun]:
    chunks = [runs[at : at + MAX_BATCH] for at in range(0, len(runs), MAX_BATCH)]
    answers: list[Sequence[StartedRun]] = [()] * len(chunks)
    numbers = iter(range(len(chunks)))
    starts = session.starts(runs[0].kind if runs else "workflow")

    async def work() -> None:
        for number in numbers:
            answers[number] = await starts.send(chunks[number])

    workers = [asyncio.create_task(work()) for _ in range(_CHUNKS_AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()  # matters only if another one has failed
    return [started for answer in answers for started in answer]


async def start_and_wait(
    session: Session, run: NewRun, timeout: float | None, if_ended: IfEnded = "return"
) -> End:
    """Start a run that names this session's topic as its waiter; return how it ended.

    Raises ResultTimeout after `timeout` seconds.
    """
    if if_ended != "return":
        check_if_ended(if_ended, [run])
    began = asyncio.get_running_loop().time()
    async with session.ends.expect(run.run_id) as end:
        with session.traced_starts([run]) as (traced,):
            started = await session.starts(run.kind).submit(traced)
            if if_ended != "return":
                call = partial(_submit, session, options=TransactionOptions())
                [started] = await start_ended(session, [traced], [started], if_ended, call)
        if started.refused is not None:
            raise refusal(run.name, started)
        if started.run_id == run.run_id:
            session.ends.watch(run.run_id, registered=started.created)
            ended = await end_within(end, run.run_id, timeout)
        else:  # a rule's other run
            ended = await session.ends.wait(started.run_id, timeout)
    ended = await last_end(session, ended, run.run_id, timeout, began)
    by_key = isinstance(reference_of(run, started), tuple)
    if not by_key or (started.created and ended.status == "completed"):
        return ended
    return await end_of_key(session, ended, timeout, began)


def check_if_ended(if_ended: IfEnded, runs: Sequence[NewRun]) -> None:
    """Raise ConfigurationError if these starts cannot have the option."""
    if if_ended not in get_args(IfEnded):
        known = ", ".join(map(repr, get_args(IfEnded)))
        raise ConfigurationError(f"if_ended is one of {known}, not {if_ended!r}")
    if if_ended != "return" and any(run.key is None for run in runs):
        raise ConfigurationError("if_ended says what a used key does: give the start a key")
    if if_ended == "start" and any(run.kind == "flow" for run in runs):
        raise ConfigurationError(
            'if_ended="start" is for workflows and jobs: give the run of a flow another key'
        )


async def start_ended(
    session: Session,
    runs: Sequence[NewRun],
    answers: Sequence[StartedRun],
    if_ended: IfEnded,
    submit: Callable[[Sequence[NewRun]], Awaitable[Sequence[StartedRun]]],
) -> Sequence[StartedRun]:
    """Return the answers, with other runs for those starts whose key's run has ended.

    The id of a key's next run is made from the one that ended, as that of a retry: so of several
    starts, and of a retry, the first one makes the run, and the others find it. Raises RunEnded.
    """
    found = list(answers)
    pending = [at for at, each in enumerate(found) if _has_ended(each)]
    while pending:
        newest, records = await search_newest(session.store, {found[at].run_id for at in pending})
        if unread := list(set(newest.values()) - records.keys()):
            records |= await session.store.get_runs(unread, payloads=False)
        again: dict[int, NewRun] = {}
        for at in pending:
            last = records.get(newest[found[at].run_id])
            if last is None:  # it was deleted meanwhile, so the key is free
                again[at] = runs[at]
            elif last.status == "running":
                found[at] = StartedRun(last.run_id, False, last.status)
            elif if_ended == "refuse":
                raise RunEnded(last.run_id, last.status)
            else:
                again[at] = _next_of_key(runs[at], last.run_id)
        started = await submit(list(again.values())) if again else ()
        pending = list[int]()
        for (at, new), answer in zip(again.items(), started, strict=True):
            found[at] = answer
            # A next run that is there was started by another call meanwhile: both mean this run,
            # although it may have ended since.
            if answer.refused == "gone" or (new is runs[at] and _has_ended(answer)):
                pending.append(at)
    return found


def _has_ended(started: StartedRun) -> bool:
    return started.refused is None and not started.created and started.status != "running"


def _next_of_key(run: NewRun, last: UUID) -> NewRun:
    """Return the run that takes the key of one that has ended."""
    rules = RulesOfStart() if run.rules is None else _read_rules(run.rules)
    text = msgspec.json.encode(msgspec.structs.replace(rules, after=last)).decode()
    return msgspec.structs.replace(run, run_id=retry_run_id(last), rules=text)
