"""The steps of a turn: executing, pausing before another attempt, or given up."""

from __future__ import annotations

from typing import Final

from holdfast.runtime.code.calls import Call
from holdfast.runtime.code.instance import Instance
from holdfast.types import Event

IN_PLACE: Final = 1_000_000  # a pause before a retry up to this long is waited for on the worker


class Steps:
    """Decides which steps start and which are cancelled.

    Both are effects: what led to them must be durable. `pausing` are the steps that wait for
    their next attempt, `held` are ends of steps that the code has given up, which is not yet
    certain.
    """

    __slots__ = ("executing", "held", "pausing")

    def __init__(self) -> None:
        self.executing: dict[str, Call] = {}
        self.held: dict[str, Event] = {}
        self.pausing: dict[str, Call] = {}

    def cancel(self, instance: Instance, durable: int) -> list[str]:
        """Return the executing steps that the code gave up, where that is certain."""
        cancelled, found = instance.cancelled, list[str]()
        for key, mark in list(cancelled.items()):
            if mark <= durable:
                del cancelled[key]
                self.held.pop(key, None)
                if self.executing.pop(key, None) is not None:
                    found.append(key)
        return found

    def start(self, instance: Instance, durable: int) -> list[Call]:
        """Return the calls whose mark is durable; those that were executing go on."""
        issued, pending, executing = instance.issued, instance.pending, self.executing
        found: list[Call] = []
        taken = 0
        for call in issued:
            if call.mark > durable and call.retry_at is None:
                break
            taken += 1
            if pending.get(call.key) is not call or call.key in executing:
                continue
            if call.retry_at is None:
                executing[call.key] = call
                found.append(call)
            else:
                self.pausing[call.key] = call
        del issued[:taken]
        return found

    def start_again(self, instance: Instance, durable: int, now: int) -> list[Call]:
        """Return the calls whose pause is over and whose failed attempts are durable."""
        found: list[Call] = []
        for key, call in list(self.pausing.items()):
            if instance.pending.get(key) is not call:
                del self.pausing[key]
            elif call.mark <= durable and (call.retry_at or 0) <= now:
                del self.pausing[key]
                call.retry_at = None
                self.executing[key] = call
                found.append(call)
        return found

    def pause(self, call: Call, mark: int) -> None:
        """Let a call wait for its next attempt, until the last one's failure is durable."""
        call.mark = mark
        self.pausing[call.key] = call

    def forget_pauses(self) -> None:
        """Leave it to a rebuilt instance which calls pause."""
        self.pausing.clear()

    def idle(self, instance: Instance, now: int) -> bool:
        """Say whether nothing executes and nothing is about to: the lease is not needed."""
        pending = instance.pending
        if self.executing or len(pending) > len(self.pausing):
            return False
        return all((call.retry_at or 0) > now + IN_PLACE for call in pending.values())

    def next_retry(self, durable: int | None = None) -> int | None:
        """Return the earliest end of a pause, with `durable` only of calls that may start."""
        moments = [
            call.retry_at or 0
            for call in self.pausing.values()
            if durable is None or call.mark <= durable
        ]
        return min(moments, default=None)

    def stop(self) -> list[str]:
        """Stop counting on the executing steps; return their keys."""
        found = list(self.executing)
        self.executing.clear()
        return found
