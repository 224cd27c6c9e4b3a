"""Wait for the end of a run, and return its output or raise its error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Never, TypeVar, cast
from uuid import UUID

from holdfast.client.chains import find_successor
from holdfast.client.naming import RunRef
from holdfast.client.reading import get_record
from holdfast.client.run import decode_plain
from holdfast.client.session import Session
from holdfast.codec import decode_error
from holdfast.definitions.app import App
from holdfast.definitions.startable import Startable
from holdfast.errors import ENDED_AS, ResultTimeout, RunFailed, RunNotFound, UnknownWorkflow
from holdfast.insight.retries import find_retry
from holdfast.types import End, RunRecord, continued_as
from holdfast.values.durations import Duration, seconds

Out = TypeVar("Out")
Out_co = TypeVar("Out_co", covariant=True)


class Restorer(Generic[Out_co]):
    """Returns a run's output, or raises the error that the run ended with.

    The output is of the type that the workflow declares. Without a workflow, the app's workflow of
    the run's name is taken; without that too, the output is plain JSON values.
    """

    def __init__(self, workflow: Startable[Never, Out_co] | None, app: App | None) -> None:
        self._app = app
        self._decode = workflow.decode_output if workflow is not None else None

    @property
    def needs_run(self) -> bool:
        """True if only the run's name says of which type the output is."""
        return self._decode is None and self._app is not None

    def __call__(self, end: End, run: RunRecord | None = None) -> Out_co:
        """Return the output, or raise the error. `run` must be given if `needs_run` is True."""
        if end.status == "failed":
            raise RunFailed(end.run_id, decode_error(end.error or "null"))
        if error := ENDED_AS.get(end.status):
            raise error(end.run_id)
        decode = self._decode or self._decoder_of(run)
        return cast("Out_co", decode(end.output or "null"))

    def _decoder_of(self, run: RunRecord | None) -> Callable[[str], object]:
        if self._app is None or run is None or run.app != self._app.name:
            return decode_plain
        try:
            return self._app.startable(run.name).decode_output
        except UnknownWorkflow:
            return decode_plain


async def wait_for_result(
    session: Session, run: UUID | tuple[str, str], restore: Restorer[Out], timeout: Duration | None
) -> Out:
    """Wait for a run's end and return its output, or raise the error that it ended with.

    Raises RunNotFound, and ResultTimeout when `timeout` is up.
    """
    limit = None if timeout is None else seconds(timeout)
    end = await wait_for_newest(session, run, limit, asyncio.get_running_loop().time())
    return restore(end, await get_record(session, end.run_id) if restore.needs_run else None)


async def wait_for_newest(
    session: Session, run: RunRef, timeout: float | None, began: float
) -> End:
    """Return how a run ended; of a key, the newest run. Raises what `wait_for_end` raises.

    Of a key the first run is waited for: most have no other, and nothing more is asked then.
    """
    run_id = await session.id_of(run)
    try:
        end = await wait_for_end(session, run_id, timeout, began)
    except RunNotFound:  # a retry may be there longer than the run that it retries
        newest = await session.newest_of(run)
        if newest == run_id:
            raise
        return await wait_for_end(session, newest, timeout, began)
    return await end_of_key(session, end, timeout, began) if isinstance(run, tuple) else end


async def end_of_key(session: Session, end: End, timeout: float | None, began: float) -> End:
    """Return the end of a key's run, or of the last run that it was retried or started again as."""
    while True:
        retry = await find_retry(session.store, end.run_id)
        if retry is None:
            break
        end = await wait_for_end(session, retry.run_id, timeout, began)
    return end


async def wait_for_end(session: Session, run_id: UUID, timeout: float | None, began: float) -> End:
    """Return how a run ended, or the last of those that it continued as.

    `timeout` counts from the moment `began`, by the event loop's clock. Raises RunNotFound and
    ResultTimeout.
    """
    end = await _wait(session, run_id, run_id, timeout, began)
    return await last_end(session, end, run_id, timeout, began)


async def last_end(
    session: Session, end: End, run_id: UUID, timeout: float | None, began: float
) -> End:
    """Return an end, or wait for the last run that its run continued as and return that one's.

    `began` is the moment, by the event loop's clock, from which `timeout` counts.
    """
    while end.status == "continued":
        next_id = await find_successor(session.store, end.run_id) or continued_as(end)
        if next_id is None:
            raise RunNotFound(end.run_id)
        end = await _wait(session, next_id, run_id, timeout, began)
    return end


async def _wait(
    session: Session, run_id: UUID, asked: UUID, timeout: float | None, began: float
) -> End:
    """Wait for the end of a run in the rest of the time that a caller has for the run `asked`.

    The run may be one of the archive. Raises RunNotFound and ResultTimeout.
    """
    while True:
        passed = asyncio.get_running_loop().time() - began
        try:
            return await session.ends.wait(run_id, timeout and max(0.0, timeout - passed))
        except ResultTimeout:
            assert timeout is not None
            raise ResultTimeout(asked, timeout) from None
        except RunNotFound:
            record = await get_record(session, run_id)  # of the archive
            if record.status != "running":  # else it was started after the wait had looked for it
                return End(run_id, record.status, record.output, record.error)
