"""Cancel, terminate, pause, resume and label one run, and pause queues and workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from uuid import UUID

from holdfast.client.chains import find_successor
from holdfast.client.naming import RunRef
from holdfast.client.reading import get_record
from holdfast.client.session import Session
from holdfast.errors import RunEnded, RunNotFound
from holdfast.store.shared_calls import persist
from holdfast.types import AttributeValue, Delivered, Delivery, Pause, Scope
from holdfast.values.attributes import check_changes
from holdfast.values.texts import check_by, check_reason, check_tags


def noted(
    call: Callable[..., Awaitable[Delivered]], reason: str | None, by: str | None
) -> Callable[[Sequence[UUID]], Awaitable[Delivered]]:
    """Return a change of runs that records why it is made, and who asks. Raises InvalidInput."""
    return partial(call, reason=check_reason(reason), by=check_by(by))


async def cancel_run(
    session: Session, run: RunRef, reason: str | None, by: str | None = None
) -> bool:
    """Ask a run to end. Return False if it had ended before. Raises RunNotFound."""
    call = noted(session.store.cancel_runs, reason, by)
    return (await change_run(session, run, call))[0] != "ended"


async def terminate_run(
    session: Session, run: RunRef, reason: str | None, by: str | None = None
) -> bool:
    """End a run at once. Return False if it had ended before. Raises RunNotFound."""
    call = noted(session.store.terminate_runs, reason, by)
    return (await change_run(session, run, call))[0] != "ended"


async def pause_run(
    session: Session, run: RunRef, reason: str | None, by: str | None = None
) -> bool:
    """Pause a run. Return False if it was paused before. Raises RunNotFound and RunEnded."""
    call = noted(session.store.pause_runs, reason, by)
    return (await change_open(session, run, call))[0] == "delivered"


async def resume_run(session: Session, run: RunRef, by: str | None = None) -> bool:
    """Resume a run. Return False if it was neither paused nor stuck.

    Raises RunNotFound and RunEnded.
    """
    call = partial(session.store.resume_runs, by=check_by(by))
    return (await change_open(session, run, call))[0] == "delivered"


async def set_pause(
    session: Session, scope: Scope, name: str, paused: bool, reason: str | None = None
) -> bool:
    """Pause or resume a queue or a workflow. Return False if it was so before."""
    call = partial(session.store.set_pause, scope, name, paused=paused, reason=check_reason(reason))
    return await session.change(call)


async def list_pauses(session: Session, scope: Scope) -> list[Pause]:
    """Return the queues, or the workflows, that are paused."""
    return [pause for pause in await session.store.list_pauses() if pause.scope == scope]


async def change_open(
    session: Session, run: RunRef, call: Callable[[Sequence[UUID]], Awaitable[Delivered]]
) -> tuple[Delivery, UUID]:
    """Change a run as `change_run` does. Raises RunEnded if it has ended."""
    outcome, run_id = await change_run(session, run, call)
    if outcome == "ended":
        raise RunEnded(run_id, (await get_record(session, run_id)).status)
    return outcome, run_id


async def change_run(
    session: Session, run: RunRef, call: Callable[[Sequence[UUID]], Awaitable[Delivered]]
) -> tuple[Delivery, UUID]:
    """Change a run, or the newest of those that it continued as. Return which one it was."""
    run_id = await session.newest_of(run)
    while True:
        (outcome,) = await session.deliver(partial(call, [run_id]))
        next_id = await find_successor(session.store, run_id) if outcome == "ended" else None
        if next_id is None:
            break
        run_id = next_id
    if outcome == "missing":
        raise RunNotFound(run_id)
    return outcome, run_id


async def set_attributes(
    session: Session, run: RunRef, attributes: Mapping[str, AttributeValue | None]
) -> dict[str, AttributeValue]:
    """Change the attributes of a run, and return all of them. Raises RunNotFound."""
    changes, run_id = check_changes(attributes), await session.newest_of(run)
    found = await persist(partial(session.store.set_attributes, run_id, changes))
    if found is None:
        raise RunNotFound(run_id)
    return found


async def set_tags(
    session: Session,
    run: RunRef,
    tags: Iterable[str] | None,
    add: Iterable[str],
    remove: Iterable[str],
) -> list[str]:
    """Change the tags of a run, and return all of them. Raises RunNotFound."""
    given = None if tags is None else check_tags(tags)
    call = partial(session.store.set_tags, add=check_tags(add), remove=check_tags(remove))
    run_id = await session.newest_of(run)
    found = await persist(partial(call, run_id, given))
    if found is None:
        raise RunNotFound(run_id)
    return found
