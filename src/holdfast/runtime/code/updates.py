"""Updates: signals that are answered, by handlers that the code has set."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar, Final, cast
from uuid import UUID

import msgspec

from holdfast.codec import describe
from holdfast.definitions.signatures import Declared, read_signature, refuse_awaitable
from holdfast.details import UpdateReply
from holdfast.errors import ConfigurationError
from holdfast.events import (
    UPDATE_ACCEPTED,
    UPDATE_COMPLETED,
    UPDATE_ENDS,
    UPDATE_REJECTED,
    UPDATE_REPLIES,
    read_update_reply,
    write_details,
)
from holdfast.runtime.code.caught import Caught
from holdfast.runtime.code.mailbox import Mailbox, Message
from holdfast.runtime.code.run import ContextPart, Ledger, Run
from holdfast.runtime.code.sending import send_signal
from holdfast.runtime.code.values import Values
from holdfast.runtime.loop.tasks import Scope, WorkflowTask
from holdfast.types import ANY_UPDATE, UPDATE_REPLY, ErrorInfo, Event, Notice, update_topic
from holdfast.values.answers import answer_id
from holdfast.values.durations import Duration, seconds
from holdfast.values.names import check_signal_name

_ENDED: Final = ErrorInfo(
    kind="holdfast.errors.RunEnded", message="the run ended before it had carried out the update"
)

REPLY_TO_RUN: Final = "run/"  # before the id of the run that asks


class Reply(msgspec.Struct, omit_defaults=True):
    """What a run that has sent an update is told of it, by a signal."""

    update_id: str
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: ErrorInfo | None = None
    rejected: bool = False


class Handler:
    """The function that serves the updates of one name. It takes the payload, or nothing.

    Raises ConfigurationError if the function has other parameters.
    """

    def __init__(
        self,
        name: str,
        fn: Callable[..., object],
        validate: Callable[..., object] | None,
        timeout: float | None,
    ) -> None:
        self.name, self.fn, self.validate, self.timeout = name, fn, validate, timeout
        parameters = list(read_signature(fn).parameters.values())
        if len(parameters) > 1 or any(p.kind is p.KEYWORD_ONLY for p in parameters):
            raise ConfigurationError(
                f"the handler of update {name} takes the payload and nothing else: write "
                "(payload) or ()"
            )
        self._payload = None
        if parameters:
            self._payload = Declared(fn, parameters[0].name, f"payload of update {name}")
        self._result = Declared(fn, "return", f"result of update {name}")

    def decode(self, payload: msgspec.Raw) -> tuple[object, ...]:
        """Return the arguments of the handler for a payload. Raises InvalidInput."""
        return () if self._payload is None else (self._payload.decode(payload),)

    def skip(self) -> bool:
        """Return True if an update that was carried out is not carried out again by a replay."""
        return False

    async def call(self, args: tuple[object, ...]) -> str:
        """Serve an update, and return its result as JSON text."""
        async with asyncio.timeout(self.timeout):
            result = self.fn(*args)
            if inspect.isawaitable(result):
                result = await cast("Awaitable[object]", result)
        return self._result.encode(result)


class Updates(Ledger):
    """The updates of one instance: those that wait for a handler, and the handlers by name."""

    facts: ClassVar = UPDATE_REPLIES

    __slots__ = (
        *("_accepted", "_copied", "_ended", "_handlers", "_in_turn", "_loop", "_refusal"),
        *("_replies", "_run", "_shipped", "_taker", "_waiting", "_written"),
        *("misraised", "returned", "untaken"),
    )

    def __init__(self, run: Run) -> None:
        self._run, self._loop = run, run.loop
        self._handlers: dict[str, Handler] = {}
        self._waiting: dict[str, list[Message]] = {}
        # id: those being carried out, and their tasks
        self._accepted: dict[str, tuple[Message, WorkflowTask[None]]] = {}
        self._ended: dict[str, tuple[int, Event]] = {}  # id: how much the code had seen then
        self._written: set[tuple[str, str]] = set()  # (type, id): answers that the log has
        self._copied = frozenset[str]()  # ids: those that a run has answered whose log was copied
        # id: name; the log has them as accepted and not as answered, and no handler has them yet
        self.untaken: dict[str, str] = {}
        # the first update whose handler has raised where that of older code had not, and the error
        self.misraised: tuple[Message, BaseException] | None = None
        # scope: the updates that older code had begun, and whose handlers have returned now
        self.returned: dict[str, Message] = {}
        # id: topic to notify of the answer, which is still to come
        self._replies: dict[str, str] = {}
        self._shipped: dict[str, str] = {}  # the same for the answers in the last commit
        self._in_turn: deque[Message] | None = None  # those of all names, if they are taken so
        self._taker: asyncio.Future[None] | None = None  # waits for the next of them
        self._refusal: Exception | None = None  # for what runs ask from now on

    @property
    def awaited(self) -> tuple[str, ...]:
        """The names of all updates that have a handler: each of them wakes the run."""
        if self._taker is not None:
            return (ANY_UPDATE,)
        return tuple(map(update_topic, self._handlers))

    def learn(self, event: Event) -> None:
        """Learn from the log how an update was answered."""
        if event.key is not None:
            self._written.add((event.type, event.key))
            if event.type == UPDATE_ACCEPTED:
                self._run.history.delivered = 0
                self.untaken[event.key] = read_update_reply(event.details or "").update_name
            elif event.type == UPDATE_COMPLETED:
                self.untaken.pop(event.key, None)
                self._ended[event.key] = self._run.history.delivered or 0, event

    def begin_again(self) -> None:
        """Learn that the log up to here was copied: it may lack commands, and updates to take."""
        self.untaken.clear()
        self._copied = frozenset(self._ended)

    def put(self, update: Message) -> None:
        """Serve an update; without a handler keep it, also for a run that continues this one."""
        if update.reply_to is not None and not self._was_answered(update):
            self._replies[update.id or ""] = update.reply_to
        handler = self._handlers.get(update.name)
        if self._refusal is not None and _is_of_run(update):
            self._say(UPDATE_REJECTED, update, error=describe(self._refusal))
        elif handler is None or self._loop.ended:
            self._keep(update)
        else:
            self.serve(handler, update)

    async def take(self) -> Message:
        """Wait for the next update of any name. Once called, updates are served only so."""
        if self._in_turn is None:
            self._in_turn = deque(self.unread)
            self._waiting.clear()
        while not self._in_turn:
            self._taker = asyncio.Future(loop=self._loop)
            try:
                await self._taker
            finally:
                self._taker = None
        return self._in_turn.popleft()

    def refuse_runs(self, error: Exception) -> None:
        """Reject what runs have asked and no handler has served: the end would not tell them.

        So is what comes between this and the end.
        """
        self._refusal = error
        for update in filter(_is_of_run, self.unread):
            self._say(UPDATE_REJECTED, update, error=describe(error))

    @property
    def refuses(self) -> bool:
        """True if what runs ask from now on is refused."""
        return self._refusal is not None

    def handle(self, handler: Handler) -> None:
        """Serve the updates of a name from now on, beginning with those that wait."""
        if self._loop.closing:
            return
        self._handlers[handler.name] = handler
        for update in self._waiting.pop(handler.name, ()):
            self.serve(handler, update)

    def answer_accepted(self) -> None:
        """Answer the accepted updates with a failure: the code has ended, so no handler runs."""
        accepted, self._accepted = self._accepted, {}
        for update, _ in accepted.values():
            self._say(UPDATE_COMPLETED, update, error=_ENDED)

    async def finish(self) -> None:
        """Wait until no update is being carried out."""
        while self._accepted:
            await asyncio.wait([task for _, task in self._accepted.values()])

    def _was_answered(self, update: Message) -> bool:
        return any((kind, update.id) in self._written for kind in UPDATE_ENDS)

    def _keep(self, update: Message) -> None:
        if self._in_turn is None:
            self._waiting.setdefault(update.name, []).append(update)
            return
        self._in_turn.append(update)
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    def serve(self, handler: Handler, update: Message) -> WorkflowTask[None]:
        """Serve an update by a handler, in a task of its own."""
        loop = self._loop
        scope = loop.callback_scope.child(f"update-{update.name}")
        task = WorkflowTask(
            self._perform(handler, update, scope),
            loop,
            scope,
            name=scope.path,
            context=contextvars.Context(),
        )
        loop.keep(task)
        return task

    async def _perform(self, handler: Handler, update: Message, scope: Scope) -> None:
        """Check an update, carry it out and answer it; an answer that the log has stays."""
        self.untaken.pop(update.id or "", None)
        was_completed = (UPDATE_COMPLETED, update.id) in self._written
        if (UPDATE_REJECTED, update.id) in self._written or (was_completed and handler.skip()):
            await self._pass_over(update, scope)
            return
        accepted = (UPDATE_ACCEPTED, update.id) in self._written
        if self._loop.ended and not accepted:  # it ended just before this task began
            self._keep(update)
            return
        try:
            args = self._decode(handler, update, accepted=accepted)
            if handler.validate is not None and not accepted:
                refuse_awaitable(handler.validate(*args), f"validate of update {update.name}")
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            kind = UPDATE_COMPLETED if accepted else UPDATE_REJECTED
            self._say(kind, update, error=describe(error))
            return
        self._say(UPDATE_ACCEPTED, update)
        task = cast("WorkflowTask[None]", asyncio.current_task(self._loop))
        self._accepted[update.id or ""] = update, task
        if update.id not in self._copied:
            self._run.history.handlers[update.id or ""] = task, was_completed
        try:
            result = await handler.call(args)
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if not self._loop.closing:
                if accepted and not was_completed and self._was_passed(update, scope, error):
                    self.misraised = self.misraised or (update, error)
                self._complete(update, error=describe(error))
        else:
            if accepted and not was_completed:
                self.returned[scope.path] = update
            self._complete(update, result=msgspec.Raw(result))

    def _was_passed(self, update: Message, scope: Scope, error: BaseException) -> bool:
        """Return True if older code has passed the place where the handler of an update raises."""
        history = self._run.history
        if self._run.ledger(Values).has_raised_in(update.id or ""):
            return False
        within = f"{scope.path}/"
        left = any(key.startswith(within) for key in {*history.left_keys()} - history.copied)
        return left or history.has_proven or self._run.ledger(Caught).find(error) is not None

    async def _pass_over(self, update: Message, scope: Scope) -> None:
        """Let an update that was answered end where it ended, without carrying it out again."""
        self._run.history.pass_over(scope.path)
        if update.id in self._ended:
            position, event = self._ended[update.id]
            await self._run.history.reach(position)
            self._run.ledger(Mailbox).drop(read_update_reply(event.details or "").taken)

    def _decode(self, handler: Handler, update: Message, *, accepted: bool) -> tuple[object, ...]:
        """Decode a payload. If it was accepted but does not fit now, the code has changed."""
        try:
            return handler.decode(update.payload)
        except Exception as error:
            if accepted:
                what = f"update {update.name} was accepted, and does not fit the code"
                what += f" ({error})"
                raise self._run.history.differ(what, is_misfit=True) from None
            raise

    def _complete(
        self,
        update: Message,
        *,
        result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
        error: ErrorInfo | None = None,
    ) -> None:
        self._accepted.pop(update.id or "", None)
        self._run.history.handlers.pop(update.id or "", None)
        taken = self._run.ledger(Mailbox).taken or ()
        self._say(UPDATE_COMPLETED, update, result=result, error=error, taken=taken)

    def _say(
        self,
        kind: str,
        update: Message,
        *,
        result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
        error: ErrorInfo | None = None,
        taken: Sequence[int] = (),
    ) -> None:
        key = update.id or ""
        if kind in UPDATE_ENDS and _is_of_run(update):
            run_id = UUID((update.reply_to or "").removeprefix(REPLY_TO_RUN))
            told = Reply(key, result, error, kind == UPDATE_REJECTED)
            signal_id = answer_id(key, failed=error is not None)
            send_signal(self._run, run_id, UPDATE_REPLY, told, signal_id)
        if (kind, key) not in self._written:
            reply = UpdateReply(update.name, result, error, list(taken))
            self._run.record(kind, key, write_details(reply))

    # Answers to callers

    def replies(self, run_id: UUID, events: Sequence[Event], *, ends: bool) -> list[Notice]:
        """Return the notices to send when a commit of these events is durable: one an answer.

        If the run `ends` with the commit, also notify callers whose updates it does not answer.
        After a refused commit the next one has its answers again. Answers that are not in the next
        commit are durable, and are forgotten here.
        """
        owed, last = self._replies, self._shipped
        if not owed and not last:
            return []
        told: dict[str, str] = {}
        for event in events:
            if event.type in UPDATE_ENDS:
                key = event.key or ""
                topic = owed.pop(key, None) or last.get(key)
                if topic is not None:
                    told[key] = topic
        self._shipped = told
        if ends:
            unread = (update.id or "" for update in self.unread)
            told = told | {key: owed[key] for key in unread if key in owed}
        return [Notice(topic, f"{run_id} {key}") for key, topic in told.items()]

    @property
    def unread(self) -> list[Message]:
        """The updates that no handler has served, by name."""
        in_turn = self._in_turn or ()
        return [*in_turn, *(update for updates in self._waiting.values() for update in updates)]


def _is_of_run(update: Message) -> bool:
    return (update.reply_to or "").startswith(REPLY_TO_RUN)


class UpdatePart(ContextPart):
    """The part of a context that answers updates."""

    __slots__ = ()

    def handle_update(
        self,
        name: str,
        handler: Callable[..., object],
        *,
        validate: Callable[..., object] | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Answer updates of a name from now on, beginning with those that have already come.

        ```python
        async def add(item: Item) -> int:
            items.append(await reserve(item))
            return len(items)

        ctx.handle_update("add", add, validate=check_item, timeout="1m")
        ```

        `handler` is a sync or async function. It takes the payload, decoded into the type of
        its annotation, and returns the answer. Each update runs as a task of its own. If the
        payload does not fit, or `validate` raises, the update is rejected and changes nothing;
        `validate` is a plain function, not async.

        Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`, ConfigurationError for a
        handler that takes more than the payload.
        """
        limit = None if timeout is None else seconds(timeout)
        handle = Handler(check_signal_name(name), handler, validate, limit)
        self._run.ledger(Updates).handle(handle)
