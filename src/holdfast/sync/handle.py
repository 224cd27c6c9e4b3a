"""Generated from the asynchronous client by scripts/generate_sync.py."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, Generator
from typing import Any, TypeVar, Unpack, cast, overload

from holdfast.client.handle import RunHandle
from holdfast.client.streams import ItemOptions, StreamOptions
from holdfast.sync.base import SyncHandleBase, blocking, iterating
from holdfast.types import JSON, Restarted, StreamItem
from holdfast.values.durations import Duration

T = TypeVar("T")
Out_co = TypeVar("Out_co", covariant=True)


class SyncRunHandle(SyncHandleBase[Out_co], of=RunHandle):
    """One run: its result, what it is doing, and what can be done to it."""

    def result(self, timeout: Duration | None = None) -> Out_co:
        """Wait for the run's end and return its output, as the type the workflow declares."""
        return self._call(self._target.result, timeout)

    status = blocking(RunHandle[object].status)
    """Return the run's status now. Raises RunNotFound."""
    get = blocking(RunHandle[object].get)
    """Return the run as it is now, its values typed as by `result`. Raises RunNotFound."""
    signal = blocking(RunHandle[object].signal)
    """Send the run a signal; see `Client.signal`."""

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
    def update(self, *args: Any, **options: Any) -> object:
        """Ask the run to change something, and return its answer; see `Client.update`."""
        return self._call(self._target.update, *args, **options)

    approvals = blocking(RunHandle[object].approvals)
    """Return the run's approvals that wait for a decision; see `Approvals.decide`."""
    cancel = blocking(RunHandle[object].cancel)
    """Ask the run to end; see `Runs.cancel`."""
    terminate = blocking(RunHandle[object].terminate)
    """End the run at once, without its code; see `Runs.terminate`."""
    pause = blocking(RunHandle[object].pause)
    """Let the run do nothing until it is resumed; see `Runs.pause`."""
    resume = blocking(RunHandle[object].resume)
    """Let the run continue if it is paused or stuck; see `Runs.resume`."""
    reschedule = blocking(RunHandle[object].reschedule)
    """Change the queue, the start or the deadline of the run; see `Runs.reschedule`."""
    log = blocking(RunHandle[object].log)
    """Return the run's log from an index on. Raises RunNotFound."""
    follow_log = iterating(RunHandle[object].follow_log)
    """Iterate over the run's log as it grows, to its end; see `Runs.follow_log`."""
    values = blocking(RunHandle[object].values)
    """Return the newest value of each name that the run has set."""

    @overload
    def stream(self, name: str, *, type: builtins.type[T], after: int = 0) -> Generator[T]: ...
    @overload
    def stream(self, name: str, *, type: None = None, after: int = 0) -> Generator[JSON]: ...
    def stream(self, *args: Any, **options: Any) -> Generator[Any]:
        """Iterate over the values of a stream of the run, as they are written; see
        `stream_items`.
        """
        return self._portal.iterate(
            cast("AsyncGenerator[Any]", self._target.stream(*args, **options))
        )

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
    def stream_items(self, *args: Any, **options: Any) -> Generator[StreamItem[Any] | Restarted]:
        """Iterate over what is written to a stream of the run, with offsets, to its end."""
        return self._portal.iterate(
            cast(
                "AsyncGenerator[StreamItem[Any] | Restarted]",
                self._target.stream_items(*args, **options),
            )
        )

    read_stream = blocking(RunHandle[object].read_stream)
    """Return what a stream of the run has now, up to `limit` values; see `stream_items`."""
    streams = blocking(RunHandle[object].streams)
    """Return the streams of the run, by name. Raises RunNotFound."""
    watch_value = iterating(RunHandle[object].watch_value)
    """Iterate over a value that the run sets, as it changes; see `Runs.watch_value`."""
    watch_steps = iterating(RunHandle[object].watch_steps)
    """Iterate over the steps of a flow's run, as they change; see `Runs.watch_steps`."""
