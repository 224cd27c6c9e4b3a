"""Generated from the asynchronous module by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Iterator
from typing import Any, TypeVar, Unpack, overload

from holdfast.client.rescheduling import RescheduleOptions
from holdfast.client.run import Run
from holdfast.client.streams import StreamOptions
from holdfast.insight.approvals import OpenApproval
from holdfast.insight.flow_progress import StepProgress
from holdfast.sync.base import SyncHandleBase
from holdfast.types import JSON, LoggedEvent, Restarted, Status, StreamInfo, StreamItem, StreamPage
from holdfast.values.durations import Duration

T = TypeVar("T")
Out_co = TypeVar("Out_co", covariant=True)


class SyncRunHandle(SyncHandleBase[Out_co]):
    """One run: its result, what it is doing, and what can be done to it.

    A handle of a key (`client.start(…, key=…)`, `client.handle((workflow, key))`) means the newest
    run of the key, in all that it reads and does: the last that the first run was continued or
    retried as. `run_id` is that of the first run, `(handle.get()).run_id` that of the newest;
    `client.handle(run_id)` means one run.

    `already_existed` is True if a start, fork or retry found a run that was there before, and
    `status_at_start` is the status that the run had then. For a handle made from an id or a key
    they are False and None.

    ```python
    handle = client.start(checkout, Order(7), key="order-7")
    receipt = handle.result(timeout="1m")
    ```
    """

    def result(self, timeout: Duration | None = None) -> Out_co:
        """Wait for the run's end and return its output, as the type the workflow declares.

        Raises RunFailed, RunCancelled, RunTerminated or RunTimedOut for a run that ended so,
        ResultTimeout when `timeout` is up first, and RunNotFound. A `timeout` of 0 does not wait.

        ```python
        try:
            receipt = handle.result(timeout=30)
        except RunFailed as failure:
            print(failure.error)
        ```
        """
        return self._call(self._target.result, timeout)

    def status(self) -> Status:
        """Return the run's status now. Raises RunNotFound.

        ```python
        assert handle.status() == "running"
        ```
        """
        return self._call(self._target.status)

    def get(self) -> Run:
        """Return the run as it is now, its values typed as by `result`. Raises RunNotFound.

        ```python
        run = handle.get()
        print(run.state)
        ```
        """
        return self._call(self._target.get)

    def signal(self, name: str, payload: object = None, signal_id: str | None = None) -> bool:
        """Send the run a signal; see `SyncClient.signal`.

        ```python
        handle.signal("packed", {"boxes": 2})
        ```
        """
        return self._call(self._target.signal, name, payload, signal_id)

    @overload
    def update(
        self,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[T],
    ) -> T: ...
    @overload
    def update(
        self,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: None = None,
    ) -> object: ...
    def update(
        self,
        name: str,
        payload: object = None,
        *,
        update_id: str | None = None,
        timeout: Duration | None = None,
        type: builtins.type[object] | None = None,
    ) -> object:
        """Ask the run to change something, and return its answer; see `SyncClient.update`.

        ```python
        try:
            total = handle.update("add-item", {"sku": "A7"}, timeout=0.1)
        except ResultTimeout:
            print("no answer yet")
        ```
        """
        return self._call(
            self._target.update, name, payload, update_id=update_id, timeout=timeout, type=type
        )

    def approvals(self) -> builtins.list[OpenApproval]:
        """Return the run's approvals that wait for a decision; see `SyncApprovals.decide`.

        ```python
        for approval in handle.approvals():
            print(approval.key, approval.title)
        ```
        """
        return self._call(self._target.approvals)

    def cancel(self, reason: str | None = None) -> bool:
        """Ask the run to end; see `SyncRuns.cancel`.

        ```python
        handle.cancel("the customer changed their mind")
        ```
        """
        return self._call(self._target.cancel, reason)

    def terminate(self, reason: str | None = None) -> bool:
        """End the run at once, without its code; see `SyncRuns.terminate`.

        ```python
        handle.terminate("started by mistake")
        ```
        """
        return self._call(self._target.terminate, reason)

    def pause(self, reason: str | None = None) -> bool:
        """Let the run do nothing until it is resumed; see `SyncRuns.pause`.

        ```python
        handle.pause("the shop is closed")
        ```
        """
        return self._call(self._target.pause, reason)

    def resume(self) -> bool:
        """Let the run continue if it is paused or stuck; see `SyncRuns.resume`.

        ```python
        handle.resume()
        ```
        """
        return self._call(self._target.resume)

    def reschedule(self, reason: str | None = None, **change: Unpack[RescheduleOptions]) -> bool:
        """Change the queue, the start or the deadline of the run; see `SyncRuns.reschedule`.

        ```python
        handle.reschedule("a large order", queue="slow", timeout="2h")
        ```
        """
        return self._call(self._target.reschedule, reason, **change)

    def log(self, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return the run's log from an index on. Raises RunNotFound.

        ```python
        types = [entry.event.type for entry in handle.log()]
        ```
        """
        return self._call(self._target.log, from_index)

    def follow_log(self, from_index: int = 0) -> Iterator[LoggedEvent]:
        """Iterate over the run's log as it grows, to its end; see `SyncRuns.follow_log`.

        ```python
        for entry in handle.follow_log():
            print(entry.event.type)
        ```
        """
        return self._portal.iterate(self._target.follow_log(from_index))

    def values(self) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set.

        ```python
        progress = (handle.values()).get("progress")
        ```
        """
        return self._call(self._target.values)

    @overload
    def stream(self, name: str, *, type: builtins.type[T], after: int = 0) -> Generator[T]: ...
    @overload
    def stream(self, name: str, *, type: None = None, after: int = 0) -> Generator[JSON]: ...
    def stream(
        self, name: str, *, type: builtins.type[object] | None = None, after: int = 0
    ) -> Generator[Any]:
        """Iterate over the values of a stream of the run, as they are written; see `stream_items`.

        ```python
        for token in handle.stream("tokens", type=str):
            print(token, end="")
        ```
        """
        return self._portal.iterate(self._target.stream(name, type=type, after=after))

    @overload
    def stream_items(
        self, name: str, *, type: builtins.type[T], **options: Unpack[StreamOptions]
    ) -> Generator[StreamItem[T] | Restarted]: ...
    @overload
    def stream_items(
        self, name: str, *, type: None = None, **options: Unpack[StreamOptions]
    ) -> Generator[StreamItem[JSON] | Restarted]: ...
    def stream_items(
        self, name: str, *, type: builtins.type[T] | None = None, **options: Unpack[StreamOptions]
    ) -> Generator[StreamItem[Any] | Restarted]:
        """Iterate over what is written to a stream of the run, with offsets, to its end.

        It ends with the run, or where the stream was closed. What an attempt writes is read as it
        comes. If another attempt follows, nothing more of the first one is read, and readers who
        come later see nothing of it. `type` decodes the values; `options` are those of
        `StreamOptions`: where to begin, and what to read of attempts that do not count.

        Raises RunNotFound, InvalidName, and InvalidInput for a value that does not fit `type` or
        an offset that the stream does not have.

        ```python
        offset = 0
        for item in handle.stream_items("tokens", type=str, after=offset):
            offset = item.offset
        ```
        """
        return self._portal.iterate(self._target.stream_items(name, type=type, **options))

    def read_stream(
        self,
        name: str,
        *,
        type: builtins.type[T] | None = None,
        limit: int = 1000,
        **options: Unpack[StreamOptions],
    ) -> StreamPage[Any]:
        """Return what a stream of the run has now, up to `limit` values; see `stream_items`.

        ```python
        page = handle.read_stream("tokens", type=str)
        text = "".join(item.value for item in page.items)
        ```
        """
        return self._call(self._target.read_stream, name, type=type, limit=limit, **options)

    def streams(self) -> builtins.list[StreamInfo]:
        """Return the streams of the run, by name. Raises RunNotFound.

        ```python
        names = [stream.name for stream in handle.streams()]
        ```
        """
        return self._call(self._target.streams)

    def watch_value(self, name: str) -> Iterator[JSON]:
        """Iterate over a value that the run sets, as it changes; see `SyncRuns.watch_value`.

        ```python
        for progress in handle.watch_value("progress"):
            print(progress)
        ```
        """
        return self._portal.iterate(self._target.watch_value(name))

    def watch_steps(self) -> Iterator[builtins.list[StepProgress]]:
        """Iterate over the steps of a flow's run, as they change; see `SyncRuns.watch_steps`.

        ```python
        for steps in handle.watch_steps():
            print(sum(step.has_ended for step in steps), "of", len(steps))
        ```
        """
        return self._portal.iterate(self._target.watch_steps())
