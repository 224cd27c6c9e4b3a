"""What a run's code records of itself: values for observers, where changed code has passed, and
which values did not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.events import VALUE_RECORDED, VALUE_SET, write_value
from holdfast.types import Event

if TYPE_CHECKING:
    from holdfast.runtime.loop.loop import WorkflowLoop


class Values:
    """The values, patches and misfits of one instance; `note` is told of those that the log lacks.

    Within the first `history` events of a log some worker's code has been before.
    """

    __slots__ = ("_known", "_loop", "_note", "_patched", "_recorded", "_set")

    def __init__(self, loop: WorkflowLoop, note: Callable[[str, str, str | None], None]) -> None:
        self._loop, self._note = loop, note
        self._known: dict[str, int] = {}  # how often the log has a value of this name
        self._set: dict[str, int] = {}
        self._recorded: set[str] = set()
        self._patched: dict[str, bool] = {}

    def learn(self, event: Event) -> None:
        """Take in a value, a patch or a misfit that the log has."""
        key = event.key or ""
        if event.type == VALUE_RECORDED:
            self._recorded.add(key)
        else:
            self._known[key] = self._known.get(key, 0) + 1

    def set(self, name: str, value: str) -> None:
        """Write a value; `value` is JSON text."""
        if self._loop.closing:
            return
        count = self._set[name] = self._set.get(name, 0) + 1
        if count > self._known.get(name, 0):
            self._known[name] = count
            self._note(VALUE_SET, name, write_value(value))

    def patched(self, patch: str, history: int) -> bool:
        """Return True if code that was changed here takes its new path, and write that down.

        If the log does not say so, code that came by here before was older code. The answer
        stands for the whole run: a loop that began on one path stays on it.
        """
        key = self._loop.scope().key(f"patch:{patch}")
        answer = key in self._recorded
        if not answer:
            answer = self._patched.get(patch, self._loop.position > history)
            if answer and patch not in self._patched:
                self._record(key)
        self._patched[patch] = answer
        return answer

    def misfit(self, call: str | None, name: str, history: int) -> bool:
        """Return True if a value that does not fit its type now never fitted.

        A misfit is written down when it is first seen, so that a replay knows it from changed
        code. `call` is the key of the call that brought the value; None takes one for `name`.
        """
        key = f"misfit:{call}"
        if call is None:
            key = self._loop.scope().key(f"misfit:{name}")
        known = key in self._recorded
        if not known and self._loop.position > history:
            self._record(key)
            known = True
        return known

    def _record(self, key: str) -> None:
        self._recorded.add(key)
        if not self._loop.closing:
            self._note(VALUE_RECORDED, key, write_value("true"))
