"""Start a run from another run's log: forks and retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import TypedDict
from uuid import UUID

from holdfast.client.chains import newest
from holdfast.client.naming import RunRef
from holdfast.client.reading import get_record, read_entries
from holdfast.client.session import Session
from holdfast.codec import encode
from holdfast.definitions.app import App
from holdfast.definitions.options import check_options
from holdfast.errors import ConfigurationError, ForkRefused, RunExists, RunNotFound, UnknownWorkflow
from holdfast.events import NAMED_BY_CALLERS
from holdfast.insight.retries import find_retry
from holdfast.store.port import Store
from holdfast.types import FlowFork, Fork, Forking, RunKind, RunRecord, Status
from holdfast.values.ids import read_id, retry_run_id, uuid7
from holdfast.values.numbers import whole_number
from holdfast.values.suggestions import nearest
from holdfast.values.texts import check_text, clipped

_MOST_KEYS = 10  # that an error names


class ForkOptions(TypedDict, total=False):
    """Where a fork begins, and what is different in it."""

    step: str | None
    """The key of a step, activity, child or timer: the events before its first one are kept.

    Of a flow: the step that runs again with all steps after it.
    """
    index: int | None
    """How many events of the log are kept; without it and `step`, all that led to the end.

    Not for flows, whose log is not replayed.
    """
    input: object
    """Another input; the run's own if it is left out. With it all steps of a flow run again."""
    results: Mapping[str, object]
    """Other results of completed steps and activities that are kept, by key.

    Of a flow: outputs of steps, which may not have completed; of a map, the list of all.
    """
    version: int | None
    """Another version of the workflow. Not for flows."""
    run_id: UUID | None
    """The new run's id, drawn by the caller: the same call again finds that run."""


async def prepare_retry(store: Store, run_id: UUID, *, failed_steps: bool = False) -> Fork:
    """Return the fork that retries a run. Its id is that of the retry if there is one already."""
    retry = await find_retry(store, run_id)
    new_run_id = retry_run_id(run_id) if retry is None else retry.run_id
    return Fork(run_id=run_id, new_run_id=new_run_id, retry=True, failed_steps=failed_steps)


async def prepare_fork(
    session: Session, run: RunRecord, app: App | None, options: ForkOptions, known_options: Set[str]
) -> Fork | FlowFork:
    """Check a fork's options against the run. Raises what `Runs.fork` says."""
    check_options(options, known_options, "fork")
    if run.kind == "flow":
        return _prepare_flow_fork(run, app, options)
    version = options.get("version")
    if version is not None:
        whole_number(version, "a fork", "version", 1)
    return Fork(
        run_id=run.run_id,
        new_run_id=_new_id(options),
        until=await _until(session, run.run_id, options.get("step"), options.get("index")),
        input=_input(run, app, version, options["input"]) if "input" in options else None,
        results=_results(options),
        version=version,
    )


def _prepare_flow_fork(run: RunRecord, app: App | None, options: ForkOptions) -> FlowFork:
    """Check the options that flows have. Raises ConfigurationError for the others."""
    if options.get("index") is not None:
        raise ConfigurationError(
            "a fork of a flow has no index, because a flow's log is not replayed: give a step that "
            "is to run again with all steps after it, or results"
        )
    if options.get("version") not in (None, run.version):
        raise ConfigurationError(
            "a fork of a flow has the version of its run, because other versions have other steps"
        )
    results, step = _results(options), options.get("step")
    if step is not None and step in results:
        raise ConfigurationError(f"give step {step} either to run it again, or a result for it")
    return FlowFork(
        run_id=run.run_id,
        new_run_id=_new_id(options),
        from_step=step,
        input=_input(run, app, None, options["input"]) if "input" in options else None,
        results=results,
    )


def _new_id(options: ForkOptions) -> UUID:
    return uuid7() if (given := options.get("run_id")) is None else read_id(given)


def _results(options: ForkOptions) -> dict[str, str]:
    results = options.get("results") or {}
    if not isinstance(results, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"results are values by key, not {clipped(results)}")
    return {check_text("key", key): encode(value) for key, value in results.items()}


async def retry_of(
    session: Session, run: RunRef, from_step: str | None, *, failed_steps: bool
) -> RunRecord | Fork:
    """Return the fork that retries a run, or the run to use if the retry of a key did not fail.

    Raises RunNotFound.
    """
    run_id = await newest(session.store, await session.id_of(run))
    last = await session.newest_of(run) if isinstance(run, tuple) else run_id
    if last != run_id and from_step is None:
        found = await get_record(session, last)
        if found.status == "running" or (
            found.status == "completed"
            and not (failed_steps and await _has_failures(session, found.run_id))
        ):
            return found
    return await prepare_retry(session.store, last, failed_steps=failed_steps)


async def _has_failures(session: Session, run_id: UUID) -> bool:
    """Return True if a step or an element of a flow's run failed for good."""
    states = (await session.store.flow_steps([run_id], outputs=False)).get(run_id, [])
    return any(
        each.status == "failed" or each.skip_reason == "handler_failed" or each.failed_tasks
        for each in states
    )


async def fork_run(session: Session, fork: Fork | FlowFork) -> tuple[bool, Status]:
    """Start the new run. Return True if it did not exist before, and its status.

    Raises RunNotFound, ForkRefused, and RunExists if the id is that of another workflow's run; for
    flows also InvalidInput, if a map's result is not a list or the flow cannot map over the input.
    """
    if isinstance(fork, FlowFork):
        return await _fork_flow(session, fork)
    outcome = await session.change(lambda: session.store.fork_run(fork))
    if outcome == "forked":
        return True, "running"
    if outcome == "exists":
        return False, await _existing(session, fork)
    if outcome == "missing":
        raise await _absence(session, fork.run_id)
    raise ForkRefused(fork.run_id, await _reason(session, outcome, fork))


async def retry_run(
    session: Session, retry: Fork, kind: RunKind, from_step: str | None = None
) -> tuple[bool, Status]:
    """Start the run that retries another one. Return what `fork_run` returns, and raise the same.

    With a `from_step`, which only flows have, this step and all after it run again.
    """
    if kind == "flow":
        if retry.failed_steps and from_step is not None:
            raise ForkRefused(retry.run_id, "give it either from_step or failed_steps")
        if from_step == "":
            raise await _without_step(session, retry.run_id, [from_step])
        return await _retry_flow(session, retry, "" if retry.failed_steps else from_step)
    if from_step is not None:
        raise ForkRefused(
            retry.run_id, "it is a run of a workflow: fork it with a step instead of from_step"
        )
    return await fork_run(session, retry)


async def _retry_flow(session: Session, retry: Fork, from_step: str | None) -> tuple[bool, Status]:
    call = partial(session.store.retry_flow, retry.run_id, retry.new_run_id, from_step=from_step)
    outcome = await session.change(call)
    match outcome:
        case "started":
            return True, "running"
        case "exists":
            return False, await _existing(session, retry)
        case "missing":
            raise await _absence(session, retry.run_id)
        case "running":
            raise ForkRefused(retry.run_id, await _unfit(session, retry))
        case "unknown_step":
            raise await _without_step(session, retry.run_id, [str(from_step)])


async def _fork_flow(session: Session, fork: FlowFork) -> tuple[bool, Status]:
    outcome = await session.change(lambda: session.store.fork_flow(fork))
    match outcome:
        case "forked":  # with the results that were given it may have ended
            return True, (await get_record(session, fork.new_run_id)).status
        case "exists":
            return False, await _existing(session, fork)
        case "missing":
            raise await _absence(session, fork.run_id)
        case "unknown_key":
            asked = [] if fork.from_step is None else [fork.from_step]
            raise await _without_step(session, fork.run_id, [*asked, *fork.results])


async def _absence(session: Session, run_id: UUID) -> RunNotFound | ForkRefused:
    """Return the error for a run that the database does not have; the archive may have it."""
    archived = await session.archived(run_id)
    if archived is None:
        return RunNotFound(run_id)
    return ForkRefused(
        run_id,
        f"it is archived in {archived.record.archive}: restore it first (`holdfast archive restore "
        f"{run_id}`, client.archive.restore)",
    )


async def _without_step(session: Session, run_id: UUID, asked: Sequence[str]) -> ForkRefused:
    """Return the error for the first step that a run's flow does not have."""
    states = (await session.store.flow_steps([run_id], outputs=False)).get(run_id, [])
    steps = [state.step for state in states]
    wrong = next((step for step in asked if step not in steps), asked[0])
    return ForkRefused(run_id, f"its flow has no step {wrong!r}: {_some(wrong, steps)}")


async def _unfit(session: Session, retry: Fork) -> str:
    """Return why a flow's run that has not failed cannot be retried."""
    if (await get_record(session, retry.run_id)).status == "completed":
        if retry.failed_steps:
            return "it has completed, and no step or element of it has failed"
        return "it has completed: give a step from which it is to run again"
    return "it has not ended"


async def _existing(session: Session, fork: Fork | FlowFork) -> Status:
    """Return the status of the run that has the fork's id; refuse one of another workflow."""
    found = await session.store.get_runs([fork.run_id, fork.new_run_id])
    if fork.new_run_id not in found:
        raise RunNotFound(fork.new_run_id)
    run, origin = found[fork.new_run_id], found.get(fork.run_id)
    if origin is not None and origin.name != run.name:
        raise RunExists.of_another(run.run_id, run.name, origin.name)
    return run.status


async def _reason(session: Session, outcome: Forking, fork: Fork) -> str:
    if outcome == "running":
        run = await get_record(session, fork.run_id)
        if run.last_failure is not None and run.status == "running" and run.started_at is None:
            return (
                "it is retried by itself: it waits for its next attempt, which `holdfast runs "
                f"reschedule {fork.run_id} --delay 0s` (client.runs.reschedule) begins at once"
            )
        return (
            "only a run that failed, timed out, was cancelled or was terminated can be retried; "
            "fork it instead: a fork begins anywhere in its log"
        )
    if outcome == "unknown_key":
        keys = ", ".join(map(repr, sorted(fork.results)))
        return f"{keys}: no step or activity of this key has completed in what is kept"
    if outcome == "unreadable":
        return (
            "its log has an event that no worker can read, and the fork would have it too: fork it "
            "with an index before that event"
        )
    length = len(await read_entries(session, fork.run_id, 0))
    return f"its log has no {fork.until} events to keep: an index is 1 to {length}, its length"


async def _until(session: Session, run_id: UUID, step: str | None, index: int | None) -> int | None:
    if step is None:
        if index is not None and whole_number(index, "a fork", "index", -1) < 1:
            raise ForkRefused(run_id, f"an index is 1 or more, not {index}: event 0 is its start")
        return index
    if index is not None:
        raise ConfigurationError("give a fork either a step or an index: both say where it begins")
    check_text("step", step)
    keys: dict[str, int] = {}
    for entry in await read_entries(session, run_id, 0):
        if entry.event.key is not None and entry.event.type not in NAMED_BY_CALLERS:
            keys.setdefault(entry.event.key, entry.idx)
    if step in keys:
        return keys[step]
    raise ForkRefused(run_id, f"its log has no key {step!r}: {_some(step, list(keys))}")


def _some(step: str, keys: list[str]) -> str:
    """Name the keys that are most likely meant."""
    if len(keys) <= _MOST_KEYS:
        return f"there are {', '.join(keys)}" if keys else "it has none yet"
    near = nearest(step, keys, _MOST_KEYS, cutoff=0.4) or keys[:_MOST_KEYS]
    return f"of its {len(keys):,} keys the nearest are {', '.join(near)}"


def _input(run: RunRecord, app: App | None, version: int | None, value: object) -> str:
    """Encode a new input as the run's workflow or flow declares it, if the app has it."""
    if app is not None and app.name == run.app:
        try:
            return app.startable(run.name, version or run.version).encode_input(value)
        except UnknownWorkflow:
            pass
    return encode(value)
