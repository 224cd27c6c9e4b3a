"""What a run's code records of itself: values for observers, and where changed code has passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.runtime.log import details
from holdfast.types import Event

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop


class Values:
    """The values and patches of one instance; `note` is told of those that the log lacks."""

    __slots__ = ("_known", "_loop", "_note", "_patches", "_set")

    def __init__(self, loop: WorkflowLoop, note: Callable[[str, str, str | None], None]) -> None:
        self._loop, self._note = loop, note
        self._known: dict[str, int] = {}  # how often the log has a value of this name
        self._set: dict[str, int] = {}
        self._patches: set[str] = set()

    def learn(self, event: Event) -> None:
        """Take in a value or a patch that the log has."""
        key = event.key or ""
        if event.type == details.VALUE_RECORDED:
            self._patches.add(key)
        else:
            self._known[key] = self._known.get(key, 0) + 1

    def set(self, name: str, value: str) -> None:
        """Write a value; `value` is JSON text."""
        if self._loop.closing:
            return
        count = self._set[name] = self._set.get(name, 0) + 1
        if count > self._known.get(name, 0):
            self._known[name] = count
            self._note(details.VALUE_SET, name, details.value_set(value))

    def patched(self, patch: str, history: int) -> bool:
        """Say whether code that was changed here takes its new path; write down that it does.

        Within the first `history` events some worker's code has been here before: older code,
        where the log does not say otherwise.
        """
        loop = self._loop
        key, seen = loop.scope().key(f"patch:{patch}"), loop.position <= history
        if key in self._patches:
            return True
        if not seen and not loop.closing:
            self._note(details.VALUE_RECORDED, key, details.value_set("true"))
        return not seen
