"""Results of steps that their own transactions have added to the log, beside the turn's commits.

The driver tells of them in the order in which it hears of them; the code is fed them in the order
of the log.
"""

from __future__ import annotations

from holdfast.errors import DeterminismError
from holdfast.runtime.code.steps import Call, Restored
from holdfast.runtime.turn.replayer import Replayer
from holdfast.types import Event


class Beside:
    """The entries of transactions that the code was not fed yet, in the order of the log."""

    __slots__ = ("_replayer", "entries")

    def __init__(self, replayer: Replayer) -> None:
        self._replayer = replayer
        self.entries: tuple[tuple[int, Event], ...] = ()

    def add(self, index: int, event: Event) -> None:
        """Add an entry, to be fed by `take`."""
        self.entries = tuple(sorted([*self.entries, (index, event)], key=lambda each: each[0]))

    @property
    def lacks_entries(self) -> bool:
        """True if others wrote entries before that of a transaction, which only the log tells."""
        if not self.entries:
            return False
        log = self._replayer.log
        return not (log.committing or log.fresh) and self._replayer.receptive

    def complete(self, index: int, call: Call, event: Event, result: Restored) -> bool:
        """Feed the result of a step that its own transaction has just recorded at an index.

        Return False, and do nothing, unless it is next, and the code has seen all before it and
        waits for it: then nothing needs to be compared or learnt.
        """
        replayer = self._replayer
        log, instance = replayer.log, replayer.instance
        history = instance.history
        if (
            self.entries
            or index != log.durable_length
            or log.committing
            or log.fresh
            or instance.steps.pending.get(call.key) is not call
            or instance.paused_events is not None
            or history.delivered is not None
            or replayer.unexplained
            or not replayer.receptive
        ):
            return False
        log.extend((event,))
        history.position = log.durable_length
        try:
            instance.complete(call, result, event.at)
        except DeterminismError as error:
            replayer.broken = error
        return True

    def take(self) -> None:
        """Feed what is next in the log; the answer to a commit may bring it as well."""
        replayer = self._replayer
        log = replayer.log
        if log.committing or replayer.needs_log or replayer.broken is not None:
            return
        while self.entries and self.entries[0][0] <= log.durable_length:
            (index, event), *later = self.entries
            self.entries = tuple(later)
            if index == log.durable_length:
                replayer.deliver_beside(event)
