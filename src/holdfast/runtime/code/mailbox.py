"""The ledger of signals: messages are kept until the code waits for them, first in, first out.

A wait finds its message, and a message its wait, without looking at all others. A message is
decoded once, and only if a pattern asks for it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Final, Generic, TypeVar, cast, overload

import msgspec

from holdfast.codec import decoder, without_nul
from holdfast.details import CarriedSignal
from holdfast.errors import InvalidInput
from holdfast.events import read_signal
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.patterns import Pattern, Scalars, Shape, scalars_at
from holdfast.runtime.code.run import ContextPart, Ledger, Run
from holdfast.runtime.code.values import Values
from holdfast.types import JSON, UPDATE_REPLY, Event, Value
from holdfast.values.answers import answered_call
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_signal_name

T = TypeVar("T")

_SHAPES: Final = 8  # with more shapes than this, all indexes are dropped and built again
_UNREADABLE: Final = object()  # contains nothing

_read_plain = decoder(object)


class Message(Value, frozen=True, gc=False):
    """A signal or an update; `id` is the sender's, `reply_to` the topic of its answer."""

    name: str
    payload: msgspec.Raw
    id: str | None = None
    update: bool = False
    reply_to: str | None = None

    @classmethod
    def read(cls, event: Event) -> Message:
        """Read a SignalReceived."""
        signal = read_signal(event.details or "")
        return cls(signal.signal_name, signal.input, event.key, signal.update, signal.reply_to)

    def carried(self) -> CarriedSignal:
        """Return the message as the next run receives it, when this run continues as new.

        NUL characters, which PostgreSQL cannot store, become U+FFFD.
        """
        payload = without_nul(self.payload)
        return CarriedSignal(self.name, payload, self.id, self.update, self.reply_to)


class Buffered:
    """A message that no wait has taken yet, with its number, and its place among all of the run.

    The code had been fed `position` entries when it came.
    """

    __slots__ = ("_plain", "message", "number", "place", "position")

    def __init__(self, message: Message, number: int, place: int, position: int) -> None:
        self.message, self.number, self.place, self.position = message, number, place, position
        self._plain: object = None

    @property
    def plain(self) -> object:
        """The payload as plain JSON."""
        if self._plain is None:
            try:
                self._plain = _read_plain(self.message.payload)
            except InvalidInput:
                self._plain = _UNREADABLE
        return self._plain


class Waiter:
    """A wait for a message; `offered` is the message that woke it."""

    __slots__ = ("future", "number", "offered", "pattern")

    def __init__(self, pattern: Pattern | None, number: int) -> None:
        self.pattern, self.number = pattern, number
        self.future: asyncio.Future[None] | None = None
        self.offered: Buffered | None = None

    def wake(self, buffered: Buffered) -> None:
        """Wake the waiting code, which then looks for a message."""
        assert self.future is not None, "a wait that is woken has a future"
        self.offered = buffered
        self.future.set_result(None)


N = TypeVar("N", Buffered, Waiter)


class _ByScalars(Generic[N]):
    """An index of messages or waits, in order, by their scalars at the paths of one shape."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: dict[Scalars, dict[int, N]] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, scalars: Scalars | None, thing: N) -> None:
        if scalars is not None:
            self._groups.setdefault(scalars, {})[thing.number] = thing

    def remove(self, scalars: Scalars | None, thing: N) -> None:
        if scalars is not None and (group := self._groups.get(scalars)):
            group.pop(thing.number, None)
            if not group:
                del self._groups[scalars]

    def with_scalars(self, scalars: Scalars | None) -> Iterator[N]:
        return iter(() if scalars is None else self._groups.get(scalars, {}).values())


class Box:
    """The messages and the waits of one name."""

    __slots__ = ("_buffered_by", "_for_any", "_next", "_waiters_by", "buffered")

    def __init__(self) -> None:
        self.buffered: dict[int, Buffered] = {}
        self._for_any: dict[int, Waiter] = {}  # waits without a pattern
        self._buffered_by: dict[Shape, _ByScalars[Buffered]] = {}
        self._waiters_by: dict[Shape, _ByScalars[Waiter]] = {}
        self._next = 0

    @property
    def waits(self) -> bool:
        """True if a wait is open."""
        return bool(self._for_any or self._waiters_by)

    @property
    def is_empty(self) -> bool:
        """True if there is neither a message nor a wait."""
        return not (self.buffered or self.waits)

    def _number(self) -> int:
        self._next += 1
        return self._next

    # Messages

    def put(self, message: Message, place: int, position: int) -> Buffered:
        """Keep a message."""
        buffered = Buffered(message, self._number(), place, position)
        self.buffered[buffered.number] = buffered
        for shape, index in self._buffered_by.items():
            index.add(scalars_at(buffered.plain, shape), buffered)
        return buffered

    def find(self, pattern: Pattern | None) -> Buffered | None:
        """Return the first message that contains a pattern, or the first one."""
        if pattern is None:
            return next(iter(self.buffered.values()), None)
        if not self.buffered:
            return None
        alike = self._by_shape(pattern.shape).with_scalars(pattern.scalars)
        return next((buffered for buffered in alike if pattern.matches(buffered.plain)), None)

    def remove(self, buffered: Buffered) -> None:
        """Take a message out."""
        del self.buffered[buffered.number]
        for shape, index in self._buffered_by.items():
            index.remove(scalars_at(buffered.plain, shape), buffered)

    def _by_shape(self, shape: Shape) -> _ByScalars[Buffered]:
        index = self._buffered_by.get(shape)
        if index is None:
            if len(self._buffered_by) >= _SHAPES:
                self._buffered_by.clear()
            index = self._buffered_by[shape] = _ByScalars()
            for buffered in self.buffered.values():
                index.add(scalars_at(buffered.plain, shape), buffered)
        return index

    # Waits

    def join(self, pattern: Pattern | None) -> Waiter:
        """Add a wait for a message that contains a pattern, or for any, after the open ones."""
        waiter = Waiter(pattern, self._number())
        if pattern is None:
            self._for_any[waiter.number] = waiter
        else:
            self._waiters_by.setdefault(pattern.shape, _ByScalars()).add(pattern.scalars, waiter)
        return waiter

    def leave(self, waiter: Waiter) -> None:
        """Remove a wait."""
        pattern = waiter.pattern
        if pattern is None:
            del self._for_any[waiter.number]
            return
        index = self._waiters_by[pattern.shape]
        index.remove(pattern.scalars, waiter)
        if not index:
            del self._waiters_by[pattern.shape]

    def offer(self, buffered: Buffered) -> None:
        """Wake the first wait that would take this message, unless the message was taken."""
        if buffered.number in self.buffered:
            first = min(self._takers(buffered), key=lambda waiter: waiter.number, default=None)
            if first is not None:
                first.wake(buffered)

    def is_awaited(self, buffered: Buffered) -> bool:
        """Return True if an open wait would take this message."""
        return any(True for _ in self._takers(buffered))

    def _takers(self, buffered: Buffered) -> Iterator[Waiter]:
        """Yield, for each shape, the first wait that would take a message and was not woken."""
        yield from _first(self._for_any.values(), buffered)
        for shape, index in self._waiters_by.items():
            yield from _first(index.with_scalars(scalars_at(buffered.plain, shape)), buffered)


def _first(waiters: Iterable[Waiter], buffered: Buffered) -> Iterator[Waiter]:
    for waiter in waiters:
        asleep = waiter.future is not None and not waiter.future.done()
        if asleep and (waiter.pattern is None or waiter.pattern.matches(buffered.plain)):
            yield waiter
            return


class Mailbox(Ledger):
    """The signals of one instance by name, and the waits for them.

    `taken` are the places of those that were taken since it was set; None if nobody asks.
    """

    __slots__ = ("_boxes", "_loop", "_received", "_run", "taken")

    def __init__(self, run: Run) -> None:
        self._run, self._loop = run, run.loop
        self._boxes: dict[str, Box] = {}  # none of them is empty
        self._received = 0
        self.taken: list[int] | None = None

    @property
    def awaited(self) -> tuple[str, ...]:
        """The names that the code waits for."""
        return tuple(name for name, box in self._boxes.items() if box.waits)

    @property
    def unread(self) -> list[Message]:
        """The messages that no wait has taken, by name."""
        boxes = self._boxes.values()
        return [buffered.message for box in boxes for buffered in box.buffered.values()]

    def put(self, message: Message) -> None:
        """Keep a message, and wake the first wait that would take it."""
        self._received += 1
        box = self._open(message.name)
        buffered = box.put(message, self._received, self._run.history.position)
        if message.name == UPDATE_REPLY and box.is_awaited(buffered):
            self._note_failure(message)
        if not self._loop.ended:
            box.offer(buffered)

    def _note_failure(self, answer: Message) -> None:
        """Record that the log has the failure of a call of an entity, if that is the answer."""
        call, history = answered_call(answer.id), self._run.history
        if call is not None and call.failed:
            history.note_failures().arrive(call.key, history.position)

    async def take(self, name: str, match: JSON) -> Buffered:
        """Wait for the first message that contains `match`; None matches every message.

        As in asyncio.Queue, a message leaves the buffer when its waiter runs, not when it arrives:
        a waiter that is cancelled in between leaves it to the next. After the run's own code has
        ended, messages are not taken: a run that continues as new passes them on.
        """
        pattern = None if match is None else Pattern(match)
        loop, box = self._loop, self._open(name)
        if sys.exception() is not None:
            self._run.ledger(Caught).note_message(name)
        found = None if loop.ended else box.find(pattern)
        waiter = box.join(pattern) if found is None else None
        try:
            while waiter is not None and found is None:
                # Not a WorkflowFuture: asyncio's own class is faster; no user code sees it.
                waiter.future = asyncio.Future(loop=loop)
                await waiter.future
                found = None if loop.ended else box.find(pattern)
            assert found is not None, "a wait ends with a message"
            box.remove(found)
            if self.taken is not None:
                self.taken.append(found.place)
            return found
        finally:
            if waiter is not None:
                box.leave(waiter)
                offered, is_over = waiter.offered, loop.closing or loop.ended
                if not (offered is None or offered is found or is_over):
                    box.offer(offered)
            if box.is_empty:
                self._boxes.pop(name, None)

    def drop(self, places: Collection[int]) -> None:
        """Drop the messages of some places: code that is not run again has taken them."""
        for name, box in list(self._boxes.items()) if places else ():
            for buffered in [each for each in box.buffered.values() if each.place in places]:
                box.remove(buffered)
            if box.is_empty:
                del self._boxes[name]

    def close(self) -> None:
        """Let go of the run, which holds this ledger; what is `unread` stays known."""
        del self._run, self._loop

    def _open(self, name: str) -> Box:
        box = self._boxes.get(name)
        if box is None:
            box = self._boxes[name] = Box()
        return box


class SignalPart(ContextPart):
    """The part of a context that waits for signals."""

    __slots__ = ()

    @overload
    async def wait_for_signal(
        self, name: str, *, match: JSON = None, timeout: Duration | None = None
    ) -> JSON: ...
    @overload
    async def wait_for_signal(
        self, name: str, *, match: JSON = None, timeout: Duration | None = None, type: type[T]
    ) -> T: ...
    async def wait_for_signal(
        self,
        name: str,
        *,
        match: JSON = None,
        timeout: Duration | None = None,
        type: type[T] | None = None,
    ) -> T | JSON:
        """Wait for a message to this run, and return its payload.

        ```python
        packed = await ctx.wait_for_signal("packed", match={"order": order.id}, timeout="7d")
        ```

        Messages are kept from the run's start on and taken first in, first out. With `match`
        only a payload that contains it is taken (as PostgreSQL's `jsonb @>`), and the others
        are left for other waits. `type` decodes the payload.

        Raises TimeoutError when nothing came in time, InvalidInput for a payload that does not
        fit `type`; the message is then taken all the same.
        """
        check_signal_name(name)
        limit = None if timeout is None else seconds(timeout)
        decode = decoder(object if type is None else type)  # a bad type waits for nothing
        async with asyncio.timeout(limit):
            found = await self._run.ledger(Mailbox).take(name, match)
        try:
            return cast("T | JSON", decode(found.message.payload))
        except InvalidInput as error:
            named = InvalidInput(f"signal {name}: {error}")
            values, name = self._run.ledger(Values), f"signal.{name}"
            raise values.misfit(named, name=name, came_at=found.position) from None
