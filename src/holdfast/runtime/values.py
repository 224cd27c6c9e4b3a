"""What a run's code records of itself: values for observers, and where changed code has passed."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.runtime import details
from holdfast.types import Event


class Values:
    """The values and patches of one instance; `note` is told of those that the log lacks."""

    __slots__ = ("_known", "_note", "_patches", "_set")

    def __init__(self, note: Callable[[str, str, str | None], None]) -> None:
        self._note = note
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
        count = self._set[name] = self._set.get(name, 0) + 1
        if count > self._known.get(name, 0):
            self._known[name] = count
            self._note(details.VALUE_SET, name, details.value_set(value))

    def patched(self, key: str, *, seen: bool) -> bool:
        """Say whether code that was changed here takes its new path; write down that it does.

        `seen`: some worker's code has been here before. It was older code where the log does
        not say otherwise.
        """
        if key in self._patches:
            return True
        if not seen:
            self._note(details.VALUE_RECORDED, key, details.value_set("true"))
        return not seen
