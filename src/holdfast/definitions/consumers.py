"""Consumers: functions that workers call with the messages of a queue.

The code of a call gets its `MessageContext` from `current_message`.
"""

from __future__ import annotations

import contextvars
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Final, TypeAlias, Unpack, cast
from uuid import UUID

from holdfast.definitions.options import limit_seconds, option
from holdfast.definitions.recorded import AttemptContext, Recorded
from holdfast.definitions.signatures import Declared
from holdfast.definitions.startable import AnyStartable
from holdfast.definitions.starts import KeyedStartOptions, Startables, prepare
from holdfast.errors import ConfigurationError, InvalidInput
from holdfast.retry import Retry
from holdfast.types import NewRun, StoredMessage, Value
from holdfast.values.durations import Duration, seconds
from holdfast.values.moments import to_datetime
from holdfast.values.names import check_queue_name

_MOST_MESSAGES: Final = 1000
_MOST_CALLS: Final = 1000


@dataclass(frozen=True, slots=True)
class Snooze:
    """What a consumer returns for a message that is not ready: it comes again after `delay`.

    This receive does not count towards the queue's `max_receives`, and is not a failure.

    ```python
    @app.consumer("parcels")
    async def pack(parcel: Parcel) -> Snooze | None:
        if not await shelf.has(parcel):
            return Snooze("10m")
    ```
    """

    delay: Duration

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a delay that is not a time."""
        with option("Snooze", "delay"):
            seconds(self.delay)


@dataclass(frozen=True, slots=True)
class Discard:
    """What a consumer returns for a message that can never be consumed: it is not tried again.

    It becomes a dead letter at once, with the reason. In a queue without dead letters it is
    acknowledged, and the worker logs the reason.

    ```python
    @app.consumer("parcels")
    async def pack(parcel: Parcel) -> Discard | None:
        if parcel.cancelled:
            return Discard("the order was cancelled")
    ```
    """

    reason: str

    def __post_init__(self) -> None:
        """Raise ConfigurationError for a reason that says nothing."""
        # Callers without a type checker pass anything.
        if not isinstance(self.reason, str) or not self.reason:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"Discard: reason is a text, not {self.reason!r}")


Failure: TypeAlias = BaseException | Snooze | Discard
"""What a message of a call ended with that is not acknowledged."""


def _is_failure_class(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, (BaseException, Snooze, Discard))


class Consumer(Recorded[Any, object]):
    """A function that workers call with messages of a queue, and what to do with its end.

    Messages are acknowledged when the function returns, unless it returns `Snooze` or `Discard`,
    and given back when it raises. `batch` is the most messages of a call, None for a function that
    takes a single one. `concurrency` is how many calls a worker makes at once. Times are in
    seconds, None for the queue's own visibility and for a call without a limit.
    """

    kind: ClassVar[str] = "consumer"

    def __init__(
        self,
        fn: Callable[..., object],
        queue: str,
        *,
        name: str | None = None,
        batch: int | None = None,
        concurrency: int = 10,
        visibility: Duration | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        app: Startables | None = None,
    ) -> None:
        """Wrap `fn`; `app` has the workflows that it may start by name.

        Raises ConfigurationError for a function or options that cannot work.
        """
        self.batch, self.app = batch, app
        super().__init__(fn, name=name, retry=retry, timeout=timeout)
        with option(str(self), "queue"):
            self.queue = check_queue_name(queue)
        _check_count(f"{self}: batch", 1 if batch is None else batch, _MOST_MESSAGES)
        _check_count(f"{self}: concurrency", concurrency, _MOST_CALLS)
        self.concurrency = concurrency
        self.visibility_seconds = limit_seconds(visibility, str(self), "visibility")

    def decode(self, payload: str) -> object:
        """Decode a payload into the declared type. Raises InvalidInput if it does not fit."""
        return self._element.decode(payload)

    def failures(self, found: object, count: int) -> Sequence[Failure | None]:
        """Return for each message of a call what the function returned if it is not done, or None.

        Raises InvalidInput for what only looks as if it said that: an exception that is not raised,
        a class, a list of another length. What a consumer returns otherwise has no meaning.
        """
        if self.batch is None or not isinstance(found, list | tuple):
            if isinstance(found, Snooze | Discard):
                return [found] * count
            self._refuse_misplaced(found)
            return [None] * count
        results = cast("Sequence[object]", found)
        if any(map(_is_failure_class, results)):
            self._refuse_misplaced(results)
        if len(results) != count:
            raise InvalidInput(
                f"{self} returned a list of {len(results)} for {count} messages: it returns "
                "nothing, or one entry for each: an exception for those that failed, Snooze or "
                "Discard"
            )
        return [each if isinstance(each, Failure) else None for each in results]

    def _refuse_misplaced(self, found: object) -> None:
        parts: Iterable[object] = (found,)
        lazy = inspect.isgenerator(found) or inspect.isasyncgen(found)
        if isinstance(found, dict):
            parts = cast("dict[object, object]", found).values()
        elif isinstance(found, list | tuple | set):
            parts = cast("Collection[object]", found)
        if lazy or any(isinstance(each, Failure) or _is_failure_class(each) for each in parts):
            raise InvalidInput(
                f"{self} returned {found!r:.100}: return Snooze(…) or Discard(…)"
                f"{'' if self.batch is None else ', or a list with one entry for each message'}, "
                "and raise an exception"
            )

    def _read_parameters(self, fn: Callable[..., object]) -> None:
        name = self._only_parameter(
            fn,
            f"is called with {'a list of messages' if self.batch else 'one message'}, so it has "
            "one parameter; holdfast.current_message() has the rest, such as headers",
        )
        place = f"{self.name}({name})"
        if self.batch is None:
            self._element = Declared(fn, name, place)
        else:
            element = self._element_of(fn, name, f"its parameter {name}")
            self._element = Declared.of_type(element, place)

    def _read_result(self, fn: Callable[..., object]) -> Declared:
        return Declared.of_type(Any, f"result of {self.name}")  # it is not stored


class ReceivedMessage(Value, frozen=True):
    """A message of a call, beside its payload.

    `attempt` counts receives, this one too; `error` says why it was given back last.
    """

    id: int
    attempt: int
    sent_at: datetime
    headers: Mapping[str, str]
    error: str | None = None

    @classmethod
    def of(cls, stored: StoredMessage) -> ReceivedMessage:
        """Return what code sees of a message."""
        return cls(
            stored.message_id,
            stored.attempts,
            to_datetime(stored.sent_at),
            MappingProxyType(dict(stored.headers or {})),
            stored.error,
        )


_message: contextvars.ContextVar[MessageContext | None] = contextvars.ContextVar(
    "holdfast_message", default=None
)


class MessageContext(AttemptContext):
    """One call of a consumer, as its own code sees it.

    `messages` are in the order of the payloads. `attempt` is the highest of their numbers. `group`
    is theirs in a FIFO queue. It is cancelled if others may have the messages by now.
    """

    variable = _message

    __slots__ = ("_app", "_runs", "group", "messages", "queue")

    def __init__(
        self,
        queue: str,
        group: str | None,
        messages: Sequence[StoredMessage],
        app: Startables | None = None,
    ) -> None:
        """Hold the messages of a call."""
        self.queue, self.group, self._app = queue, group, app
        self._runs: list[NewRun] | None = []  # None after the call
        self.messages = tuple(ReceivedMessage.of(each) for each in messages)
        self.attempt = max(each.attempts for each in messages)
        self._cancelled = self.streams = None

    @property
    def id(self) -> int:
        """The id of the message, or of the first one: the same in all receives of it."""
        return self.messages[0].id

    @property
    def headers(self) -> Mapping[str, str]:
        """What was sent beside the payload of the message, or of the first one."""
        return self.messages[0].headers

    def start(
        self,
        workflow: AnyStartable | str,
        input: object = None,
        **options: Unpack[KeyedStartOptions],
    ) -> UUID:
        """Start a workflow or a flow in the transaction that acknowledges the messages.

        Return the run's id.

        The run is started if and only if they are acknowledged: not if the function raises, not if
        others have them by now, and once although a message may be received twice. A name without
        an app is of this one.

        ```python
        @app.consumer("parcels")
        async def pack(parcel: Parcel) -> None:
            current_message().start(deliver, parcel, tags=["parcel"])
        ```

        If the database refuses the start, such as a second one of a singleton, the messages are
        given back with that error. Raises InvalidInput, PayloadError, UnknownWorkflow and
        ConfigurationError like `Client.start`, and ConfigurationError after the call has ended.
        """
        prepared = prepare(workflow, self._app, options, KeyedStartOptions.__optional_keys__)
        run = prepared.run(input, key=options.get("key"))
        if self._runs is None:
            raise ConfigurationError(
                f"the call with message {self.id} of queue {self.queue} has ended: start "
                f"{run.name} before the function returns"
            )
        self._runs.append(run)
        return run.run_id

    def take_runs(self) -> list[NewRun]:
        """Return what the call has started; from now on it starts nothing."""
        runs, self._runs = self._runs or [], None
        return runs


def current_message() -> MessageContext:
    """Return the context of the consumer that is running.

    ```python
    @app.consumer("parcels")
    async def pack(parcel: Parcel) -> None:
        message = current_message()
        await ledger.add(parcel, once_by=f"{message.queue}/{message.id}")
    ```

    Raises LookupError outside of a consumer, also if one is called as a plain function.
    """
    context = _message.get()
    if context is None:
        raise LookupError(
            "no consumer of a worker is running here: call current_message() in the code of a "
            "function under @app.consumer that a worker has called with a message"
        )
    return context


def _check_count(what: str, count: object, most: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
        raise ConfigurationError(f"{what} is 1 to {most:,}, not {count!r}")
