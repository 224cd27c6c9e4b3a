"""Answers of entities that a copied log does not have: the run that made the calls gets them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.definitions.entities import SentCall
from holdfast.events import SIGNAL_RECEIVED, STEPS, read_signal
from holdfast.runtime.code.run import Ledger, Run
from holdfast.types import UPDATE_REPLY, Event
from holdfast.values.answers import key_of, looked_up


class _Answer(msgspec.Struct):
    update_id: str


class LostAnswers(Ledger):
    """Which answers of entities were copied from the log of another run, and how far it goes."""

    __slots__ = ("_copied", "_history", "_until")

    def __init__(self, run: Run) -> None:
        self._history = run.history
        self._until, self._copied = 0, frozenset[str | None]()

    def copy(self, events: Sequence[Event], until: int) -> None:
        """Remember the answers among copied entries, but for those that the other run looked for.

        The copy ends before index `until`.
        """
        signals = (event for event in events if event.type == SIGNAL_RECEIVED)
        answers = (read_signal(event.details or "") for event in signals)
        looked = {event.key for event in events if event.type in STEPS}
        ids = (_answered(each.input) for each in answers if each.signal_name == UPDATE_REPLY)
        self._until = until
        self._copied = frozenset(
            each for each in ids if each and looked_up(key_of(each)) not in looked
        )

    def has(self, call: SentCall) -> bool:
        """Return True if this run may not be sent the answer to the call that it has just made.

        The call is a copy, or the entity had it before: the run that sent it has the answer, or
        will be sent it.
        """
        if not self._until or call.call_id in self._copied:
            return False
        return self._history.position < self._until or call.was_sent


def _answered(payload: msgspec.Raw | str) -> str | None:
    """Return which call is answered, None for another signal: anybody may send one."""
    try:
        return msgspec.json.decode(payload, type=_Answer).update_id
    except msgspec.DecodeError:
        return None
