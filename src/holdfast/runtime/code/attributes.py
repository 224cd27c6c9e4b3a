"""Attributes that the code sets for its own run: lists find runs by them."""

from __future__ import annotations

from typing import ClassVar

from holdfast.details import AttributesSet
from holdfast.events import ATTRIBUTES_SET, read_attributes_set, write_details
from holdfast.runtime.code.commands import Commands
from holdfast.runtime.code.run import ContextPart, Ledger, Run
from holdfast.types import AttributeValue, Event
from holdfast.values.attributes import check_changes, check_size


class Attributes(Ledger):
    """The attributes that the code of one instance has set."""

    facts: ClassVar = frozenset({ATTRIBUTES_SET})

    __slots__ = ("_recorded", "_run", "_set")

    def __init__(self, run: Run) -> None:
        self._run = run
        self._recorded: dict[str, AttributesSet] = {}
        self._set: dict[str, AttributeValue | None] = {}

    def learn(self, event: Event) -> None:
        """Learn from the log what a call has set."""
        self._recorded[event.key or ""] = read_attributes_set(event.details or "{}")

    def set(self, changes: dict[str, AttributeValue | None]) -> None:
        """Record a change, which the commit carries out; a call of the log is not made again."""
        key = self._run.loop.scope().key("attributes")
        known = self._recorded.get(key)
        merged = self._set | dict(changes if known is None else known.attributes)
        if known is None:
            check_size({name: value for name, value in merged.items() if value is not None})
        self._set = merged
        if known is None and not self._run.loop.closing:
            self._run.ledger(Commands)  # a part of a commit has commands only if its run has these
            self._run.record(ATTRIBUTES_SET, key, write_details(AttributesSet(changes)))


class AttributePart(ContextPart):
    """The part of a context that sets attributes."""

    __slots__ = ()

    def set_attributes(self, **attributes: AttributeValue | None) -> None:
        """Set attributes of the run, by which lists find it; None removes one.

        It is recorded and carried out with the run's next commit. No codec encodes attributes: who
        may read the database reads them. All that the code sets may take 4,096 bytes.

        Raises InvalidName for a name outside `[a-zA-Z0-9._-]{1,128}`, and InvalidInput for a value
        that is not a text of up to 500 characters, a number or a boolean.
        """
        self._run.ledger(Attributes).set(check_changes(attributes))
