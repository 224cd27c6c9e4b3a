"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Iterator
from typing import Any, TypeVar, Unpack, overload

from holdfast.client.handle import RunHandle
from holdfast.client.rescheduling import RescheduleOptions
from holdfast.client.run import Run
from holdfast.client.streams import ItemOptions, StreamOptions
from holdfast.insight.approvals import OpenApproval
from holdfast.insight.flow_progress import StepProgress
from holdfast.sync.base import SyncHandleBase
from holdfast.types import JSON, LoggedEvent, Restarted, Status, StreamInfo, StreamItem, StreamPage
from holdfast.values.durations import Duration

T = TypeVar("T")
Out_co = TypeVar("Out_co", covariant=True)


class SyncRunHandle(SyncHandleBase[Out_co], of=RunHandle):
    """One run: its result, what it is doing, and what can be done to it."""

    def result(self, timeout: Duration | None = None) -> Out_co:
        """Wait for the run's end and return its output, as the type the workflow declares."""
        return self._call(self._target.result, timeout)

    def status(self) -> Status:
        """Return the run's status now. Raises RunNotFound."""
        return self._call(self._target.status)

    def get(self) -> Run:
        """Return the run as it is now, its values typed as by `result`. Raises RunNotFound."""
        return self._call(self._target.get)

    def signal(self, name: str, payload: object = None, signal_id: str | None = None) -> bool:
        """Send the run a signal; see `Client.signal`."""
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
        """Ask the run to change something, and return its answer; see `Client.update`."""
        return self._call(
            self._target.update, name, payload, update_id=update_id, timeout=timeout, type=type
        )

    def approvals(self) -> builtins.list[OpenApproval]:
        """Return the run's approvals that wait for a decision; see `Approvals.decide`."""
        return self._call(self._target.approvals)

    def cancel(self, reason: str | None = None) -> bool:
        """Ask the run to end; see `Runs.cancel`."""
        return self._call(self._target.cancel, reason)

    def terminate(self, reason: str | None = None) -> bool:
        """End the run at once, without its code; see `Runs.terminate`."""
        return self._call(self._target.terminate, reason)

    def pause(self, reason: str | None = None) -> bool:
        """Let the run do nothing until it is resumed; see `Runs.pause`."""
        return self._call(self._target.pause, reason)

    def resume(self) -> bool:
        """Let the run continue if it is paused or stuck; see `Runs.resume`."""
        return self._call(self._target.resume)

    def reschedule(self, reason: str | None = None, **change: Unpack[RescheduleOptions]) -> bool:
        """Change the queue, the start or the deadline of the run; see `Runs.reschedule`."""
        return self._call(self._target.reschedule, reason, **change)

    def log(self, from_index: int = 0) -> builtins.list[LoggedEvent]:
        """Return the run's log from an index on. Raises RunNotFound."""
        return self._call(self._target.log, from_index)

    def follow_log(self, from_index: int = 0) -> Iterator[LoggedEvent]:
        """Iterate over the run's log as it grows, to its end; see `Runs.follow_log`."""
        return self._portal.iterate(self._target.follow_log(from_index))

    def values(self) -> dict[str, JSON]:
        """Return the newest value of each name that the run has set."""
        return self._call(self._target.values)

    @overload
    def stream(self, name: str, *, type: builtins.type[T], after: int = 0) -> Generator[T]: ...
    @overload
    def stream(self, name: str, *, type: None = None, after: int = 0) -> Generator[JSON]: ...
    def stream(
        self, name: str, *, type: builtins.type[object] | None = None, after: int = 0
    ) -> Generator[Any]:
        """Iterate over the values of a stream of the run, as they are written; see
        `stream_items`.
        """
        return self._portal.iterate(self._target.stream(name, type=type, after=after))

    @overload
    def stream_items(
        self, name: str, *, type: builtins.type[T], **options: Unpack[ItemOptions]
    ) -> Generator[StreamItem[T]]: ...
    @overload
    def stream_items(
        self, name: str, *, type: None = None, **options: Unpack[ItemOptions]
    ) -> Generator[StreamItem[JSON]]: ...
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
        """Iterate over what is written to a stream of the run, with offsets, to its end."""
        return self._portal.iterate(self._target.stream_items(name, type=type, **options))

    def read_stream(
        self,
        name: str,
        *,
        type: builtins.type[T] | None = None,
        limit: int = 1000,
        **options: Unpack[StreamOptions],
    ) -> StreamPage[Any]:
        """Return what a stream of the run has now, up to `limit` values; see `stream_items`."""
        return self._call(self._target.read_stream, name, type=type, limit=limit, **options)

    def streams(self) -> builtins.list[StreamInfo]:
        """Return the streams of the run, by name. Raises RunNotFound."""
        return self._call(self._target.streams)

    def watch_value(self, name: str) -> Iterator[JSON]:
        """Iterate over a value that the run sets, as it changes; see `Runs.watch_value`."""
        return self._portal.iterate(self._target.watch_value(name))

    def watch_steps(self) -> Iterator[builtins.list[StepProgress]]:
        """Iterate over the steps of a flow's run, as they change; see `Runs.watch_steps`."""
        return self._portal.iterate(self._target.watch_steps())
