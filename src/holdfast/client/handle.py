"""A handle of one run: its result, what it is doing, and what can be done to it."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.client import reading
from holdfast.client.approvals import Approvals
from holdfast.client.control import cancel_run, pause_run, resume_run, terminate_run
from holdfast.client.messaging import Signal, send_signal, send_update
from holdfast.client.naming import known_run_id
from holdfast.client.outcomes import Restorer, wait_for_result
from holdfast.client.rescheduling import RescheduleOptions, reschedule_run
from holdfast.client.run import Run
from holdfast.client.session import Session
from holdfast.client.streams import (
    ItemOptions,
    StreamOptions,
    follow_chain,
    follow_stream,
    list_streams,
    read_page,
    stream_values,
)
from holdfast.definitions.startable import Startable
from holdfast.errors import RunNotFound
from holdfast.insight.approvals import OpenApproval
from holdfast.insight.flow_progress import StepProgress
from holdfast.types import JSON, LoggedEvent, Restarted, Status, StreamInfo, StreamItem, StreamPage
from holdfast.values.durations import Duration
from holdfast.values.suggestions import missing_attribute

T = TypeVar("T")
Out_co = TypeVar("Out_co", covariant=True)


class RunHandle(Generic[Out_co]):
    """One run: its result, what it is doing, and what can be done to it.

    A handle of a key (`client.start(…, key=…)`, `client.handle((workflow, key))`) means the newest
    run of the key, in all that it reads and does: the last that the first run was continued or
    retried as. `run_id` is that of the first run, `(await handle.get()).run_id` that of the newest;
    `client.handle(run_id)` means one run.

    `already_existed` is True if a start, fork or retry found a run that was there before, and
    `status_at_start` is the status that the run had then. For a handle made from an id or a key
    they are False and None.

    ```python
    handle = await client.start(checkout, Order(7), key="order-7")
    receipt = await handle.result(timeout="1m")
    ```
    """

    __slots__ = (
        "_first",
        "_run",
        "_session",
        "_within",
        "_workflow",
        "already_existed",
        "status_at_start",
    )

    def __init__(
        self,
        session: Session,
        run: UUID | tuple[str, str],
        *,
        first: UUID | None = None,
        workflow: Startable[Never, Out_co] | None = None,
        already_existed: bool = False,
        status_at_start: Status | None = None,
        within: bool = False,
    ) -> None:
        """Hold a run. Clients make handles: see `Client.start` and `Client.handle`.

        `first` is the id of a key's first run, if it is known. `within` says that the run was
        started within a transaction of the caller.
        """
        self._session, self._run, self._within = session, run, within
        self._first, self._workflow = first, workflow
        self.already_existed = already_existed
        self.status_at_start: Status | None = status_at_start

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Never:
            """Raise AttributeError, which suggests a name that exists."""
            raise missing_attribute(self, name)

    def __repr__(self) -> str:
        return f"<RunHandle {self._run}>"

    @property
    def run_id(self) -> UUID:
        """The run's id.

        Raises InvalidInput if the handle was made of a name without an app: then `get()` finds it.
        """
        if isinstance(self._run, UUID):
            return self._run
        return self._first or known_run_id(self._run)

    async def result(self, timeout: Duration | None = None) -> Out_co:
        """Wait for the run's end and return its output, as the type the workflow declares.

        Raises RunFailed, RunCancelled, RunTerminated or RunTimedOut for a run that ended so,
        ResultTimeout when `timeout` is up first, and RunNotFound. A `timeout` of 0 does not wait.

        ```python
        try:
            receipt = await handle.result(timeout=30)
        except RunFailed as failure:
            print(failure.error)
        ```
        """
        restore = Restorer(self._workflow, self._session.app)
        return await self._found(wait_for_result(self._session, self._run, restore, timeout))

    async def status(self) -> Status:
        """Return the run's status now. Raises RunNotFound.

        ```python
        assert await handle.status() == "running"
        ```
        """
        return (await self.get()).status

    async def get(self) -> Run:
        """Return the run as it is now, its values typed as by `result`. Raises RunNotFound.

        ```python
        run = await handle.get()
        print(run.state)
        ```
        """
        return await self._found(reading.get_run(self._session, self._run, self._workflow))

    async def _found(self, answer: Awaitable[T]) -> T:
        """Let RunNotFound say that the caller's transaction may not be committed."""
        try:
            return await answer
        except RunNotFound as error:
            if not self._within or error.run_id is None:
                raise
            raise RunNotFound(
                error.run_id,
                f"no run {error.run_id}: it was started with connection=, and exists once that "
                "transaction commits; commit it before you use the handle",
            ) from None

    async def signal(self, name: str, payload: object = None, signal_id: str | None = None) -> bool:
        """Send the run a signal; see `Client.signal`.

        ```python
        await handle.signal("packed", {"boxes": 2})
        ```
        """
        signal = Signal(self._run, name, payload, signal_id)
        return await self._found(send_signal(self._session, signal, self._first))

    @overload
    async def update(
        self,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[T],
    ) -> T: ...
    @overload
    async def update(
        self,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: None = None,
    ) -> object: ...
    async def update(
        self,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[object] | None = None,
    ) -> object:
        """Ask the run to change something, and return its answer; see `Client.update`.

        ```python
        try:
            total = await handle.update("add-item", {"sku": "A7"}, timeout=0.1)
        except ResultTimeout:
            print("no answer yet")
        ```
        """
        update = Signal(self._run, name, payload, update_id)
        return await self._found(send_update(self._session, update, timeout, type))

    async def approvals(self) -> builtins.list[OpenApproval]:
        """Return the run's approvals that wait for a decision; see `Approvals.decide`.

        ```python
        for approval in await handle.approvals():
            print(approval.key, approval.title)
        ```
        """
        return await Approvals(self._session).list(self._run)

    async def cancel(self, reason: str | None = None) -> bool:
        """Ask the run to end; see `Runs.cancel`.

        ```python
        await handle.cancel("the customer changed their mind")
        ```
        """
        return await self._found(cancel_run(self._session, self._run, reason))

    async def terminate(self, reason: str | None = None) -> bool:
        """End the run at once, without its code; see `Runs.terminate`.

        ```python
        await handle.terminate("started by mistake")
        ```
        """
        return await self._found(terminate_run(self._session, self._run, reason))

    async def pause(self, reason: str | None = None) -> bool:
        """Let the run do nothing until it is resumed; see `Runs.pause`.

        ```python
        await handle.pause("the shop is closed")
        ```
        """
        return await self._found(pause_run(self._session, self._run, reason))

    async def resume(self) -> bool:
        """Let the run continue if it is paused or stuck; see `Runs.resume`.

        ```python
        await handle.resume()
        ```
        """
        return await self._found(resume_run(self._session, self._run))

    async def reschedule(
        self, reason: str | None = None, **change: Unpack[RescheduleOptions]
    ) -> bool:
        """Change the queue, the start or the deadline of the run; see `Runs.reschedule`.

        ```python
        await handle.reschedule("a large order", queue="slow", timeout="2h")
        ```
        """
        return await self._found(reschedule_run(self._session, self._run, change, reason, None))

    async def log(self, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return the run's log from an index on. Raises RunNotFound.

        ```python
        types = [entry.event.type for entry in await handle.log()]
        ```
        """
        return await self._found(reading.read_log(self._session, self._run, from_index))

    def follow_log(self, from_index: int = 0) -> AsyncIterator[LoggedEvent]:
        """Iterate over the run's log as it grows, to its end; see `Runs.follow_log`.

        ```python
        async for entry in handle.follow_log():
            print(entry.event.type)
        ```
        """
        return reading.follow_log(self._session, self._run, from_index)

    async def values(self) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set.

        ```python
        progress = (await handle.values()).get("progress")
        ```
        """
        return await self._found(reading.get_values(self._session, self._run))

    @overload
    def stream(self, name: str, *, type: builtins.type[T], after: int = 0) -> AsyncGenerator[T]: ...
    @overload
    def stream(self, name: str, *, type: None = None, after: int = 0) -> AsyncGenerator[JSON]: ...
    def stream(
        self, name: str, *, type: builtins.type[object] | None = None, after: int = 0
    ) -> AsyncGenerator[Any]:
        """Iterate over the values of a stream of the run, as they are written; see `stream_items`.

        ```python
        async for token in handle.stream("tokens", type=str):
            print(token, end="")
        ```
        """
        return stream_values(self._session, self._run, name, type, after)

    @overload
    def stream_items(
        self, name: str, *, type: builtins.type[T], **options: Unpack[ItemOptions]
    ) -> AsyncGenerator[StreamItem[T]]: ...
    @overload
    def stream_items(
        self, name: str, *, type: None = None, **options: Unpack[ItemOptions]
    ) -> AsyncGenerator[StreamItem[JSON]]: ...
    @overload
    def stream_items(
        self, name: str, *, type: builtins.type[T], **options: Unpack[StreamOptions]
    ) -> AsyncGenerator[StreamItem[T] | Restarted]: ...
    @overload
    def stream_items(
        self, name: str, *, type: None = None, **options: Unpack[StreamOptions]
    ) -> AsyncGenerator[StreamItem[JSON] | Restarted]: ...
    def stream_items(
        self, name: str, *, type: builtins.type[T] | None = None, **options: Unpack[StreamOptions]
    ) -> AsyncGenerator[StreamItem[Any] | Restarted]:
        """Iterate over what is written to a stream of the run, with offsets, to its end.

        It ends with the run, or where the stream was closed. What an attempt writes is read as it
        comes. If another attempt follows, nothing more of the first one is read, and readers who
        come later see nothing of it. `type` decodes the values; `options` are those of
        `StreamOptions`: where to begin, and what to read of attempts that do not count.

        Raises RunNotFound, InvalidName, and InvalidInput for a value that does not fit `type` or
        an offset that the stream does not have.

        ```python
        offset = 0
        async for item in handle.stream_items("tokens", type=str, after=offset):
            offset = item.offset
        ```
        """
        return follow_stream(self._session, self._run, name, type, options)

    async def read_stream(
        self,
        name: str,
        *,
        type: builtins.type[T] | None = None,
        limit: int = 1000,
        **options: Unpack[StreamOptions],
    ) -> StreamPage[Any]:
        """Return what a stream of the run has now, up to `limit` values; see `stream_items`.

        ```python
        page = await handle.read_stream("tokens", type=str)
        text = "".join(item.value for item in page.items)
        ```
        """
        return await read_page(self._session, self._run, name, type, limit, options)

    async def streams(self) -> builtins.list[StreamInfo]:
        """Return the streams of the run, by name. Raises RunNotFound.

        ```python
        names = [stream.name for stream in await handle.streams()]
        ```
        """
        return await list_streams(self._session, self._run)

    def watch_value(self, name: str) -> AsyncIterator[JSON]:
        """Iterate over a value that the run sets, as it changes; see `Runs.watch_value`.

        ```python
        async for progress in handle.watch_value("progress"):
            print(progress)
        ```
        """
        return reading.watch_value(self._session, self._run, name)

    def watch_steps(self) -> AsyncIterator[builtins.list[StepProgress]]:
        """Iterate over the steps of a flow's run, as they change; see `Runs.watch_steps`.

        ```python
        async for steps in handle.watch_steps():
            print(sum(step.has_ended for step in steps), "of", len(steps))
        ```
        """
        return reading.watch_steps(self._session, self._run)


def follow_items(
    handle: RunHandle[Any], name: str, after: int
) -> AsyncGenerator[StreamItem[Any] | Restarted | None]:
    """Yield what `handle.stream_items` does, and None each time that more has to be waited for."""
    session, run = handle._session, handle._run  # pyright: ignore[reportPrivateUsage]
    return follow_chain(session, run, name, None, {"after": after, "restarts": True})
