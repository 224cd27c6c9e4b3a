"""Events of topics that a run waits for.

A subscription is a command: the store carries it out with the commit that records it. From then
on, events come into the log as signals, whose names follow from pattern and condition. So they are
kept, taken, replayed and passed on as signals are.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Generic, TypeVar, cast, overload

import msgspec

from holdfast.codec import decoder, encode
from holdfast.details import EventSubscribed
from holdfast.errors import InvalidInput
from holdfast.runtime.code.commands import Command, Commands
from holdfast.runtime.code.history import SUBSCRIPTION
from holdfast.runtime.code.mailbox import Mailbox
from holdfast.runtime.code.run import ContextPart, Ledger, Run
from holdfast.runtime.code.values import Values
from holdfast.types import JSON, Value
from holdfast.values.durations import Duration, seconds
from holdfast.values.patterns import check_pattern, event_signal

T = TypeVar("T")

_MOST_MATCH: Final = 8_192  # bytes


class TopicEvent(Value, Generic[T], frozen=True):
    """An event that was published: its topic, its id and its payload."""

    topic: str
    id: str
    payload: T


class _Told(msgspec.Struct):
    """What the payload of the signal has."""

    topic: str
    id: str
    payload: msgspec.Raw = msgspec.Raw(b"null")


_read: Final = msgspec.json.Decoder(_Told).decode


class Subscriptions(Ledger):
    """The events that the code of one instance has asked for, by signal."""

    __slots__ = ("_run", "signals")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.signals: set[str] = set()

    def add(self, pattern: str, match: JSON) -> str:
        """Subscribe the run, once; return the name of the signal that tells of the events."""
        check_pattern(pattern)
        text = None if match is None else _condition(match)
        name = event_signal(pattern, text)
        if name not in self.signals:
            asked = EventSubscribed(pattern, msgspec.Raw((text or "null").encode()))
            command = Command(SUBSCRIPTION, name, pattern, asked.fingerprint)
            self._run.ledger(Commands).give(command, lambda: asked)
            self.signals.add(name)
        return name

    def pass_over(self) -> None:
        """Count those that the log has as made: the calls that made them are not run again."""
        recorded = self._run.history.recorded
        known = {key for key, call in recorded.items() if call.family == SUBSCRIPTION}
        self.signals |= known
        for key in known:
            del recorded[key]


def _condition(match: JSON) -> str:
    text = encode(match)
    if len(text.encode()) > _MOST_MATCH:
        raise InvalidInput(f"a match takes up to {_MOST_MATCH:,} bytes as JSON")
    return text


class TopicPart(ContextPart):
    """The part of a context that waits for events of topics."""

    __slots__ = ()

    def subscribe(self, pattern: str, *, match: JSON = None) -> None:
        """Keep the events of topics that fit a pattern, from now on, for `wait_for_event`.

        ```python
        ctx.subscribe(f"payments.{order.id}.*")
        await request_payment(order)  # the answer cannot come too early
        event = await ctx.wait_for_event(f"payments.{order.id}.*", timeout="1d")
        ```

        Steps that the code calls after this begin when the subscription is in the database. With
        `match`, only events whose payload contains it are kept (as PostgreSQL's `jsonb @>`).
        Nothing is done if the run has this subscription. Raises InvalidName for a pattern that
        cannot be.
        """
        self._run.ledger(Subscriptions).add(pattern, match)

    @overload
    async def wait_for_event(
        self, pattern: str, *, match: JSON = None, timeout: Duration | None = None
    ) -> TopicEvent[JSON]: ...
    @overload
    async def wait_for_event(
        self, pattern: str, *, match: JSON = None, timeout: Duration | None = None, type: type[T]
    ) -> TopicEvent[T]: ...
    async def wait_for_event(
        self,
        pattern: str,
        *,
        match: JSON = None,
        timeout: Duration | None = None,
        type: type[T] | None = None,
    ) -> TopicEvent[Any]:
        """Wait for an event of a topic that fits a pattern, and return it.

        ```python
        event = await ctx.wait_for_event("invoices.*.paid", match={"invoice": 17}, timeout="7d")
        print(event.topic, event.payload)
        ```

        `*` stands for one segment, `#` for any number. With `match`, only events whose payload
        contains it count. The run is subscribed when it first asks for pattern and match, here or
        with `subscribe`, and stays so: events are kept from then on, and taken first in, first
        out. Each pair of pattern and match has its own; an event that fits several comes to each.
        `type` decodes the payload.

        Raises TimeoutError when nothing came in time, InvalidInput for a payload that does not fit
        `type` (the event is then taken all the same), InvalidName for a pattern that cannot be.
        """
        limit = None if timeout is None else seconds(timeout)
        decode = decoder(object if type is None else type)  # a bad type waits for nothing
        name = self._run.ledger(Subscriptions).add(pattern, match)
        async with asyncio.timeout(limit):
            found = await self._run.ledger(Mailbox).take(name, None)
        told = _read(found.message.payload)
        try:
            payload = cast("T", decode(told.payload))
        except InvalidInput as error:
            named = InvalidInput(f"event {told.id} of {told.topic}: {error}")
            values = self._run.ledger(Values)
            raise values.misfit(named, name="event", came_at=found.position) from None
        return TopicEvent(told.topic, told.id, payload)
