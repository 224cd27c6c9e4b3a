"""Entities: the code of their runs, and calls of their methods by other runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, cast
from uuid import UUID

import msgspec

from holdfast.codec import encode, texts_before_fields
from holdfast.definitions.entities import STATE, Entity, Given, Method, Proxy, SentCall, entity_of
from holdfast.definitions.entity_access import ACCESS
from holdfast.definitions.steps import Step, current_step, first_id
from holdfast.errors import (
    ConfigurationError,
    InvalidInput,
    RunEnded,
    RunNotFound,
    UpdateFailed,
    UpdateRejected,
)
from holdfast.events import UPDATE_REJECTED, read_signal, read_update_reply
from holdfast.retry import Retry
from holdfast.runtime.code.continuing import ContinueAsNew
from holdfast.runtime.code.history import row_key_error
from holdfast.runtime.code.lost_answers import LostAnswers
from holdfast.runtime.code.mailbox import Mailbox
from holdfast.runtime.code.run import ContextPart, Run
from holdfast.runtime.code.steps import Steps
from holdfast.runtime.code.topics import Subscriptions
from holdfast.runtime.code.updates import REPLY_TO_RUN, Handler, Reply, Updates
from holdfast.runtime.code.values import Values
from holdfast.runtime.loop.loop import WorkflowLoop
from holdfast.types import UPDATE_REPLY, ErrorInfo, NewSignal
from holdfast.values.answers import answer_id, key_of, looked_up
from holdfast.values.durations import Duration, seconds
from holdfast.values.ids import sent_id
from holdfast.values.texts import MAX_ID

E = TypeVar("E")
T = TypeVar("T")

# After so many calls, or so many characters of states, a new run begins. A lower number would leave
# runs stuck that have more: only what a replay counts, too, may be counted here.
MOST_CALLS: Final = 200
MOST_STATES: Final = 1 << 18

_LOOKS: Final = Retry(attempts=None, base="1s", max="10m")

_read_reply = msgspec.json.Decoder(Reply).decode


class _Object:
    """An entity's object in its run, and the last state of it that a change has left."""

    def __init__(self, run: Run, entity: Entity, key: str, state: str | None) -> None:
        self.run, self.entity, self.key = run, entity, key
        self.values, self.mailbox = run.ledger(Values), run.ledger(Mailbox)
        self.values.entity_key, self.text = key, ""
        self.calls = self.written = 0  # calls, and characters of their states, in the log
        if state is not None:
            self.take(state)
        elif not self.skip():  # what the first state has drawn must stay
            self.take(self._or_stuck(lambda: entity.first_state(key)))
            self.record()

    def take(self, text: str) -> None:
        """Take a state, and make the object from it."""
        self.text, self.found = text, self._or_stuck(lambda: self.entity.read(text))

    def skip(self) -> bool:
        """Take the next state that the log has; return False if it has no more."""
        state = self.values.pass_state()
        if state is not None:
            self.written += len(state)
            self.take(state)
        return state is not None

    def given(self, text: str) -> str:
        """Return the input of the run that continues with a state. Raises PayloadError."""
        return encode(Given(self.key, msgspec.Raw(text.encode())))

    def record(self) -> None:
        """Leave the state in the log: each change that is answered does, also one that failed."""
        self.written += len(self.text)
        self.values.set(STATE, self.text)

    def _or_stuck(self, make: Callable[[], T]) -> T:
        """Return what `make` does. A state that does not fit must not end the run: it is stuck."""
        try:
            return make()
        except InvalidInput as error:
            raise self.run.history.differ(str(error), is_misfit=True) from None


class _Call(Handler):
    """A call of a method by an update."""

    def __init__(self, of: _Object, name: str) -> None:
        self.name, self.validate, self.timeout, self._of = name, None, None, of

    def decode(self, payload: msgspec.Raw) -> tuple[object, ...]:
        method = self._of.entity.method(self.name)
        return method, method.decode(payload)

    def skip(self) -> bool:
        self._of.run.ledger(Subscriptions).pass_over()
        return self._of.skip()

    async def call(self, args: tuple[object, ...]) -> str:
        of, (method, kwargs) = self._of, cast("tuple[Method, dict[str, Any]]", args)
        of.values.begin_call()
        of.mailbox.taken = []
        try:
            if method.reads:
                return method.result.encode(of.entity.run_read(method, of.text, kwargs))
            result = method.result.encode(await method.fn(of.found, **kwargs))
            if left := await _end_tasks(of.run.loop):
                raise ConfigurationError(
                    f"{of.entity.name}.{method.name} has left the task {left} running, whose "
                    "changes would be lost: await it, or use asyncio.TaskGroup"
                )
            text, found = of.entity.write(of.found)
            of.given(text)  # a state that no next run would take cannot be stored
            of.text, of.found = text, found
            return result
        except BaseException:
            await _end_tasks(of.run.loop)
            of.take(of.text)  # a change that failed changes nothing
            raise
        finally:
            of.record()


async def _end_tasks(loop: WorkflowLoop) -> str | None:
    """End the tasks that a method has left, as a replay of later calls does not begin them again.

    Return the path of one of them, None if there are none.
    """
    scope = f"{loop.scope().path}/"
    left = [task for task in loop.tasks if task.scope.path.startswith(scope) and not task.done()]
    if not left or loop.closing:
        return None
    for task in left:
        task.cancel()
    await asyncio.wait(left)
    return left[0].scope.path


class EntityPart(ContextPart):
    """The part of a context that calls entities, and runs them."""

    __slots__ = ()

    def entity(self, cls: type[E], key: str, *, timeout: Duration | None = None) -> E:
        """Return an entity of a key, whose methods this run awaits.

        A change is carried out once, however often this run is replayed, and the run is woken by
        its answer. A read is a step. `timeout` limits how long each call waits for the answer: the
        change is not taken back.

        Awaiting a method raises UpdateFailed for what the method raised, UpdateRejected for a call
        that was refused, and TimeoutError.

        ```python
        total = await ctx.entity(Cart, "ann").add("lamp")
        ```
        """
        limit = None if timeout is None else seconds(timeout)
        return cast("E", Proxy(entity_of(cls), key, _Caller(self._run, limit)))

    async def serve_entity(self, entity: Entity, given: Given) -> None:
        """Run an entity: change it, call by call, until it is deleted. For the runs of entities."""
        run = self._run
        key = given.key or run.info.key
        if key is None:
            raise ConfigurationError(f"entity {entity.name} was started without a key")
        state = None if given.state is msgspec.UNSET else bytes(given.state).decode()
        updates, of = run.ledger(Updates), _Object(run, entity, key, state)
        try:
            while True:
                update = await updates.take()
                of.calls += 1
                task = updates.serve(_Call(of, update.name), update)
                try:
                    await asyncio.wait([task])
                except asyncio.CancelledError:
                    task.cancel()
                    await asyncio.wait([task])
                    raise
                if of.calls >= MOST_CALLS or of.written > MOST_STATES:
                    raise ContinueAsNew(of.given(of.text), run.info.version)
        except asyncio.CancelledError:
            updates.refuse_runs(InvalidInput(f"{entity.name} {key!r} was deleted: call it again"))
            raise


class _Caller:
    """Calls methods of entities from a run."""

    def __init__(self, run: Run, timeout: float | None) -> None:
        self._run, self._timeout = run, timeout

    def __call__(self, entity: Entity, key: str, method: Method, payload: Any) -> Awaitable[object]:
        coro = self._perform(entity, key, method, payload)
        coro.__name__ = f"{entity.name}.{method.name}"  # type: ignore[attr-defined]  # of its task
        return coro

    async def _perform(self, entity: Entity, key: str, method: Method, payload: Any) -> object:
        run, name = self._run, f"{entity.name}.{method.name}"
        if run.workflow is entity and key == run.ledger(Values).entity_key:
            raise ConfigurationError(f"{name} of its own entity would wait for itself")
        began = run.info.began
        code = _read(entity, method) if method.reads else _send(entity, method, payload, began)
        step: Step[..., Any] = Step(code, name=name, retry=Retry(attempts=None))
        step.is_sent_once = not method.reads
        answer = await run.ledger(Steps).call(step, name, (key, payload), {})
        if method.reads:
            return method.result.decode(answer)
        async with asyncio.timeout(self._timeout):
            reply = _read_reply(await self._answer(answer))
        if reply.error is not None:
            call_key, history = key_of(answer.call_id), run.history
            history.note_failures().tell(call_key, history.position)
            kind = UpdateRejected if reply.rejected else UpdateFailed
            new = entity.new_run(key)
            raise kind(new.run_id, method.name, reply.error, call_key, f"{new.name} {key!r}")
        result = b"null" if reply.result is msgspec.UNSET else bytes(reply.result)
        return method.result.decode(result)

    async def _answer(self, call: SentCall) -> msgspec.Raw:
        """Wait for the answer to a call; if another run is sent it, look for it there."""
        run = self._run
        if run.ledger(LostAnswers).has(call):
            leaf = looked_up(key_of(call.call_id)).rpartition("/")[2]
            step: Step[..., Any] = Step(_look, name=leaf.partition("#")[0], retry=_LOOKS)
            await run.ledger(Steps).call(step, leaf, (call,), {})
        found = await run.ledger(Mailbox).take(UPDATE_REPLY, {"update_id": call.call_id})
        return found.message.payload


class NoAnswerYet(Exception):
    """The entity has not carried out a call of the run of which this one is a fork or a retry."""


async def _look(call: SentCall) -> None:
    """Send this run the answer to a call that another run has made. Raises NoAnswerYet."""
    access, run_id = ACCESS.get(), current_step().run_id
    try:
        found = await access.answer(call.entity_run_id, call.call_id)
    except (RunEnded, RunNotFound) as error:
        kind = type(error)
        reply = Reply(
            call.call_id, error=ErrorInfo(f"{kind.__module__}.{kind.__name__}", str(error))
        )
    else:
        if found is None:
            raise NoAnswerYet(f"run {call.entity_run_id} has not answered call {call.call_id}")
        said = read_update_reply(found.details or "")
        is_rejected = found.type == UPDATE_REJECTED
        reply = Reply(call.call_id, said.result, said.error, is_rejected)
    signal_id = answer_id(call.call_id, failed=reply.error is not None)
    await access.send(NewSignal(run_id, UPDATE_REPLY, encode(reply), signal_id))


def _send(
    entity: Entity, method: Method, given: Any, began: int
) -> Callable[..., Awaitable[SentCall]]:
    async def send(key: str, payload: Any) -> SentCall:
        """Send a call, and return its id, the same at each attempt, and which run has it."""
        step, new = current_step(), entity.new_run(key)
        call_id, reply_to = first_id(step, began), f"{REPLY_TO_RUN}{step.run_id}"
        if (excess := len(call_id.encode()) - MAX_ID) > 0:
            most = len(step.key.encode()) - excess
            error = row_key_error(f"a call of {entity.name}.{method.name}", step.key, most)
            raise InvalidInput(str(error))  # which is not tried again
        signal = NewSignal(
            new.run_id, method.name, encode(payload), call_id, update=True, reply_to=reply_to
        )
        outcome, run_id = await ACCESS.get().deliver(new, signal, new.run_id)
        if outcome == "duplicate":
            await _check_sent(run_id, signal, given)
        was_sent = outcome == "duplicate" and call_id != sent_id(step.run_id, step.key, began)
        return SentCall(call_id, run_id, was_sent)

    return send


async def _check_sent(run_id: UUID, signal: NewSignal, given: Any) -> None:
    """Raise OtherCall if an entity has another call under an id: code that changed has moved it."""
    found = await ACCESS.get().store.find_signal(run_id, signal.signal_id or "")
    if found is None:
        return
    sent = read_signal(found.details or "")
    texts = (signal.payload, *texts_before_fields(signal.payload, given))
    alike = msgspec.json.decode(sent.input) in map(msgspec.json.decode, texts)
    if sent.signal_name != signal.name or not alike:
        raise OtherCall(
            f"run {run_id} has a call of {sent.signal_name} under the id {signal.signal_id}, and "
            f"this is one of {signal.name} with other arguments: the code has changed under this "
            "run, before it was recorded that the call was sent; roll it back"
        )


class OtherCall(Exception):
    """Another call of the run was sent under the id that a call has now."""


def _read(entity: Entity, method: Method) -> Callable[..., Awaitable[str]]:
    async def read(key: str, payload: Any) -> str:
        """Return what a read says of the last recorded state, as JSON text."""
        text = await ACCESS.get().read(entity, key)
        found = entity.run_read(method, text, method.decode(encode(payload)))
        return method.result.encode(found)

    return read
