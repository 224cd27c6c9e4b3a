"""Batches: calls of an activity, of any runs, that a worker executes as one call with a list.

Each element is an attempt of its own, with its lease, its limits and its end. An element that ends
early (it is cancelled, its time is over, its lease is lost) leaves the others alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from msgspec import Struct, field

from holdfast.definitions.batches import BatchActivity, BatchContext
from holdfast.definitions.middleware import Layer
from holdfast.definitions.signatures import Arguments
from holdfast.errors import InvalidInput
from holdfast.types import ClaimedTask
from holdfast.worker.activities import ActivityExecution, ScheduledCall
from holdfast.worker.attempts import Execution, Launcher
from holdfast.worker.clock import Clock
from holdfast.worker.observing import Observing

AnyBatch: TypeAlias = BatchActivity[..., Any]


class BatchElement(ActivityExecution):
    """One attempt in a batch. Its clocks start with the call, not while the batch fills."""

    __slots__ = ("activity", "shared")

    def __init__(
        self,
        activity: AnyBatch,
        task: ClaimedTask,
        call: ScheduledCall,
        started_at: int,
        report: Callable[[ActivityExecution], None],
    ) -> None:
        super().__init__(activity, task, call, started_at, report)
        self.activity = activity
        self.shared: BatchCall | None = None  # the call that executes it

    @property
    def _silent_seconds(self) -> float:
        return time.monotonic() - self.context.beaten_at if self.begun else 0.0

    def request_cancel(self) -> None:
        """End the element: its run no longer waits for it. The call continues for the others."""
        super().request_cancel()
        asyncio.get_running_loop().call_soon(self.fail, asyncio.CancelledError())

    def succeed(self, value: object) -> None:
        """Report the element's own result."""
        if self.ended:
            return
        try:
            self.result = self.function.encode_result(value)
        except BaseException as error:  # of any kind: otherwise its run would wait for ever
            self.fail(error)
        else:
            self._end()

    def cancel(self) -> asyncio.Future[object] | None:
        """Leave the batch, and report nothing."""
        found = super().cancel()
        self._leave()
        return found

    def _end(self) -> None:
        super()._end()
        self._leave()

    def _leave(self) -> None:
        if self.shared is not None:
            self.shared.left()


class BatchCall(Execution[BatchContext]):
    """One call of the function, for the elements of a batch."""

    __slots__ = ("_elements",)

    def __init__(self, activity: AnyBatch, elements: Sequence[BatchElement], now: int) -> None:
        context = BatchContext(activity.name, [each.context for each in elements])
        super().__init__(activity, context, now, None, _report_nothing)
        self._elements = elements
        for each in elements:
            each.shared, each.started_at = self, now

    def observe(self, observing: Observing) -> None:
        """Say who is told of the elements: each is an attempt."""
        for each in self._elements:
            each.observe(observing)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the clocks of the elements. Safe in a thread."""
        super().begin(loop)
        for each in self._elements:
            each.begin(loop)
            loop.call_soon_threadsafe(each.watch)

    def left(self) -> None:
        """Stop the call if no element needs it any more."""
        if not self.ended and all(each.ended for each in self._elements):
            self.cancel()

    def finished(self, future: asyncio.Future[object]) -> None:
        """Give each element its result, or all of them the error that the function raised."""
        if self.ended:  # no element needs it, or its event loop ends
            super().finished(future)
            return
        try:
            results = self._checked(future.result())
        except asyncio.CancelledError:
            self.fail(asyncio.CancelledError(f"the batch of {self.name} cancelled itself"))
        except BaseException as error:  # of any kind: otherwise the runs would wait for ever
            self.fail(error)
        else:
            self._report = None
            for each, result in zip(self._elements, results, strict=True):
                if isinstance(result, BaseException):
                    each.fail(result)
                else:
                    each.succeed(result)

    def fail(self, error: BaseException) -> None:
        """Fail all elements."""
        if not self.drop_with_loop():
            self._report = None
            for each in self._elements:
                each.fail(error)

    def _checked(self, results: object) -> Sequence[object]:
        if not isinstance(results, list | tuple):
            raise InvalidInput(
                f"a batch of {self.name} returns a list of results, not {type(results).__name__}"
            )
        found = cast("Sequence[object]", results)
        if len(found) != len(self._elements):
            raise InvalidInput(
                f"a batch of {self.name} returned {len(found)} results for "
                f"{len(self._elements)} inputs: it returns one for each, in their order"
            )
        return found


def _report_nothing(_: object) -> None:
    """Do nothing: the elements report their own ends."""


class _Filling(Struct):
    """A batch that waits for more elements."""

    timer: asyncio.TimerHandle
    entries: list[tuple[BatchElement, object]] = field(
        default_factory=list[tuple[BatchElement, object]]
    )


class Batches:
    """Fill batches with claimed calls, whatever run they are of, and start them."""

    def __init__(self, launcher: Launcher, layers: list[Layer], clock: Clock) -> None:
        self._launcher, self._layers, self._clock = launcher, layers, clock
        self._filling: dict[str, _Filling] = {}  # by the activity's full name

    def element(
        self,
        activity: AnyBatch,
        task: ClaimedTask,
        call: ScheduledCall,
        started_at: int,
        report: Callable[[ActivityExecution], None],
    ) -> tuple[BatchElement, Callable[[], None]]:
        """Return an attempt at a call, and what puts it into the batch that fills."""
        element = BatchElement(activity, task, call, started_at, report)
        return element, partial(self.add, element)

    def add(self, element: BatchElement) -> None:
        """Put a call into the batch that fills now; start the batch if it is full."""
        loop, activity = asyncio.get_running_loop(), element.activity
        try:
            (value,), _ = activity.decode_arguments(element.call.arguments)
        except Exception as error:
            loop.call_soon(element.refuse, error)
            return
        name = activity.full_name
        filling = self._filling.get(name)
        if filling is None:
            timer = loop.call_later(activity.batch.within_seconds, self._start, name)
            filling = self._filling[name] = _Filling(timer)
        filling.entries.append((element, value))
        if len(filling.entries) >= activity.batch.size:
            filling.entries = [entry for entry in filling.entries if not entry[0].ended]
            if len(filling.entries) >= activity.batch.size:
                self._start(name)

    def _start(self, name: str) -> None:
        filling = self._filling.pop(name)
        filling.timer.cancel()
        entries = [entry for entry in filling.entries if not entry[0].ended]
        if not entries:
            return
        elements = [element for element, _ in entries]
        activity = elements[0].activity
        call = BatchCall(activity, elements, self._clock.now())
        if activity.is_async:
            call.begin(asyncio.get_running_loop())
        given: Arguments = (([value for _, value in entries],), {})
        self._launcher.launch_given(call, given, self._layers)
