"""The ledger of what a run's code records about itself.

These are values for observers (`ctx.set_value`), patches that the code has passed (`ctx.patched`),
misfits (values that do not fit the type that the code declares), exceptions that it handles, and
that the run's own code or the handler of an update has raised, if the entry that says how it ended
comes in a later commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final
from weakref import WeakSet

import msgspec

from holdfast.codec import encode
from holdfast.definitions.entities import STATE, Entity
from holdfast.errors import ConfigurationError, DeterminismError, InvalidInput
from holdfast.events import (
    UPDATE_COMPLETED,
    VALUE_RECORDED,
    VALUE_SET,
    read_update_reply,
    read_value_set,
    write_value,
)
from holdfast.runtime.code.begun import call_begun, learn_begun
from holdfast.runtime.code.raised import CAUGHT, Noted, Raised, RaisedLog
from holdfast.runtime.code.run import ContextPart, Ledger, Run
from holdfast.types import Event
from holdfast.values.names import check_step_name, check_value_name

RAISED: Final = "raised"
MISFITS: Final = WeakSet[InvalidInput]()
"""Errors of values that do not fit, as the log says, or did not fit when they came."""


def raised_in(update_id: str) -> str:
    """Return the key that says that the handler of an update has raised."""
    return f"{RAISED}:{update_id}"


def handlers_that_raised(events: Iterable[Event]) -> Iterator[str]:
    """Yield, for each update that entries answer with an error, the key that says so."""
    for event in events:
        if event.type == UPDATE_COMPLETED and read_update_reply(event.details or "").error:
            yield raised_in(event.key or "")


def is_raised(event: Event) -> bool:
    """Return True for an entry that says that the run's own code or a handler has raised."""
    return event.type == VALUE_RECORDED and (event.key or "").partition(":")[0] == RAISED


class Values(Ledger):
    """The values, patches and misfits of one instance."""

    facts: ClassVar = frozenset({VALUE_SET, VALUE_RECORDED})

    __slots__ = (
        *("_caught", "_patched", "_recorded", "_run", "_set", "_written"),
        *("entity_key", "states"),
    )

    def __init__(self, run: Run) -> None:
        self._run = run
        self._written: dict[str, int] = {}  # how often the log has a value of this name
        self._set: dict[str, int] = {}
        self._recorded: set[str] = set()
        self._patched: dict[str, bool] = {}
        self._caught: RaisedLog | None = None
        # Of an entity, the states that its changes have left in the log, in their order, and what
        # it had by then: how often values of each name, and which entries of `caught`.
        self.entity_key: str | None = None
        self.states: deque[tuple[Event, dict[str, int], Noted]] | None = None
        if isinstance(run.workflow, Entity):
            self.states = deque()

    def learn(self, event: Event) -> None:
        """Learn a value, a patch or a misfit from the log."""
        key = event.key or ""
        if event.type == VALUE_RECORDED:
            self._recorded.add(key)
            if key.startswith(CAUGHT):
                self.caught.learn(event)
            if (begun := call_begun(event)) is not None:
                learn_begun(self._run.history, begun, event)
        else:
            self._written[key] = self._written.get(key, 0) + 1
            if self.states is not None and key == STATE:
                self.states.append((event, self._written.copy(), self.caught.so_far()))

    @property
    def caught(self) -> RaisedLog:
        """What the log says of the code's own exceptions. Made on first use."""
        if self._caught is None:
            self._caught = RaisedLog()
        return self._caught

    def set(self, name: str, value: str) -> None:
        """Write a value; `value` is JSON text."""
        if self._run.loop.closing:
            return
        count = self._set[name] = self._set.get(name, 0) + 1
        if count > self._written.get(name, 0):
            self._written[name] = count
            self._run.record(VALUE_SET, name, write_value(value))

    def pass_state(self) -> str | None:
        """Return the next state that the log has, and pass over what was set up to it.

        Code that another worker overtook has left the first ones itself.
        """
        while self.states:
            event, written, noted = self.states.popleft()
            if written[STATE] > self._set.get(STATE, 0):
                self._set, self.caught.noted = written, noted
                return read_value_set(event.details or "")
        return None

    def begin_call(self) -> None:
        """Begin with a call of an entity that the log has no state of: it decides on patches again.

        A replay does not know what earlier calls have decided.
        """
        if self.states:
            self.states.clear()
        self._patched.clear()

    def patched(self, patch: str) -> bool:
        """Return True if code that was changed here takes its new path, and record that.

        If the log does not have the patch, code that passed here before was older code, and so was
        the code that made calls which this code has not made yet. The answer holds for the whole
        run: a loop that began on one path stays on it.
        """
        history, key = self._run.history, self._run.loop.scope().key(f"patch:{patch}")
        answer = key in self._recorded
        if not answer:
            answer = self._patched.get(patch, not history.was_passed)
            if answer and patch not in self._patched:
                self._record(key)
        self._patched[patch] = answer
        return answer

    def misfit(
        self,
        error: InvalidInput,
        call: str | None = None,
        name: str = "",
        came_at: int | None = None,
        *,
        was_checked: bool = False,
    ) -> InvalidInput | DeterminismError:
        """Return what to raise for a value that does not fit the type that the code declares.

        `call` is the key of the call that returned the value; without a call, `name` says what the
        value is. A misfit is recorded when it is first seen. So if older code passed here and the
        log lacks the misfit, the value fitted before: the code has changed, which must not fail
        the run. What came after all that older code has seen never fitted, although this code may
        be behind it. Such a value came when the code had been fed `came_at` entries, the result of
        a call now unless the code did not wait for it. A result that `was_checked` fitted the type
        that the call had where it was recorded, or a fork was given it in its place.
        """
        history, key = self._run.history, f"misfit:{call}"
        if call is None:
            key = self._run.loop.scope().key(f"misfit:{name}")
        if key not in self._recorded:
            if came_at is None:
                came_at = history.unawaited.get(call or "", history.position)
            passed = history.was_passed and came_at <= history.replayed
            fitted = was_checked and (came_at > history.forked or bool(history.origins))
            if passed or fitted or call in history.late:
                what = f"what the log has for {call or name!r} does not fit ({error})"
                return history.differ(what, call or key, is_misfit=True)
            self._record(key)
        MISFITS.add(error)
        return error

    @property
    def has_raised(self) -> bool:
        """True if the log says that the run's own code has raised."""
        return RAISED in self._recorded

    def has_raised_in(self, update_id: str) -> bool:
        """Return True if the log says that the handler of an update has raised."""
        return raised_in(update_id) in self._recorded

    def record_caught(self, raised: Sequence[Raised]) -> None:
        """Record that the code handles exceptions of its own, and what it has seen."""
        key = self.caught.add(self._run.history.position, raised)
        self._record(key, msgspec.json.encode(raised).decode())

    def record_once(self, key: str) -> None:
        """Record, once, that the code has raised."""
        if key not in self._recorded:
            self._record(key)

    def _record(self, key: str, value: str = "true") -> None:
        self._recorded.add(key)
        if not self._run.loop.closing:
            self._run.record(VALUE_RECORDED, key, write_value(value))


class ValuePart(ContextPart):
    """The part of a context that records what the code says of itself."""

    __slots__ = ()

    def set_value(self, name: str, value: object) -> None:
        """Write a value that observers of the run can read, such as its progress.

        It is recorded with the run's next commit. Raises InvalidName for a name outside
        `[a-zA-Z0-9._-]{1,128}`, PayloadError for a value that cannot be stored, and
        ConfigurationError for `state` in an entity, which has its own state there.
        """
        values = self._run.ledger(Values)
        if name == STATE and values.states is not None:
            raise ConfigurationError(
                "the value 'state' of an entity is its state, which each change records: set a "
                "field of the class, or give the value another name"
            )
        values.set(check_value_name(name), encode(value))

    def patched(self, id: str) -> bool:
        """Return True if changed code takes its new path here.

        ```python
        if ctx.patched("check-stock"):
            await check_stock(order)
        ```

        It is True for a run that comes here for the first time, and stays True for that run. It
        is False if the log shows that older code has passed here: the run continues as it began.
        """
        return self._run.ledger(Values).patched(check_step_name(id))
