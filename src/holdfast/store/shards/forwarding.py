"""Bring what one shard has for others to where it belongs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import ConfigurationError, DatabaseError, DatabaseUnavailable, HoldfastError
from holdfast.store.port.reads import noting_reads
from holdfast.store.shards.members import Members, gather
from holdfast.types import Delivered, Forward, NewSignal
from holdfast.values.loggers import get_logger

logger = get_logger("holdfast.shards")

# What says nothing of a signal or an event, also that a database is not the shard that it was.
_AWAY: Final = (DatabaseError, ConfigurationError)


class Pass:
    """Sends all that a shard has for others, page by page, oldest first.

    What could not be sent is held, and what comes behind it for the same run or shard, too: so
    nothing overtakes. It is sent in the next pass, again with the same ids. Each page begins with
    the oldest that is not `held`.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self.held: set[UUID | int] = set()

    async def send(self, page: Sequence[Forward]) -> list[int]:
        """Send a page; return the numbers of those that have arrived, or never will."""
        events: dict[int, list[Forward]] = {}
        for each in page:
            if each.event is not None and each.shard is not None:
                events.setdefault(each.shard, []).append(each)
        done = await gather(
            [
                self._send_signals([each for each in page if each.signal is not None]),
                *(self._publish_all(some) for some in events.values()),
            ]
        )
        return list(chain.from_iterable(done))

    async def _publish_all(self, forwards: Sequence[Forward]) -> list[int]:
        return [each.forward_id for each in forwards if await self._publish(each)]

    async def _publish(self, forward: Forward) -> bool:
        number, event = forward.shard, forward.event
        if number is None or event is None or number in self.held:
            return False
        try:
            await self._members.call(number, "publish", replace(event, forwarded=True))
        except _AWAY as error:
            self._hold([number], error)
            return False
        except HoldfastError:
            logger.exception("an event is refused by shard %d, and is dropped there", number)
        return True

    async def _send_signals(self, forwards: Sequence[Forward]) -> list[int]:
        free = [each for each in forwards if _signal(each).run_id not in self.held]
        if not free:
            return []
        try:
            with noting_reads() as notes:
                found = await self._members.newest_runs(list({*map(_run_of, free)}))
        except _AWAY as error:
            self._hold(map(_run_of, free), error)
            return []
        parts = await gather(
            self._deliver(number, here, newest)
            for number, newest in found.items()
            if (here := [each for each in free if _run_of(each) in newest])
        )
        done = list(chain.from_iterable(parts))
        known = set(chain.from_iterable(found.values()))
        absent = [each for each in free if _run_of(each) not in known]
        if notes.away:  # one of these may have the run
            self.held.update(map(_run_of, absent))
        else:
            for each in absent:
                _say_lost(_signal(each), "missing")
                done.append(each.forward_id)
        return done

    async def _deliver(
        self, number: int, forwards: Sequence[Forward], newest: dict[UUID, UUID]
    ) -> list[int]:
        signals = [_signal(each) for each in forwards]
        try:
            sent: Delivered = await self._members.call(number, "receive_signals", signals)
            await self._members.call(number, "notify", sent.notices)
            ended = [s.run_id for s, o in zip(signals, sent.outcomes, strict=True) if o == "ended"]
            last: dict[UUID, UUID] = {}
            if ended:
                last = await self._members.call(number, "newest_runs", ended)
        except _AWAY as error:
            self._hold(map(_run_of, forwards), error)
            return []
        except HoldfastError:
            return await self._deliver_halves(number, forwards, newest)
        done: list[int] = []
        for forward, signal, outcome in zip(forwards, signals, sent.outcomes, strict=True):
            if outcome == "ended" and last.get(signal.run_id) != newest[signal.run_id]:
                self.held.add(signal.run_id)  # it has continued as new meanwhile
                continue
            if outcome in ("ended", "missing"):
                _say_lost(signal, outcome)
            done.append(forward.forward_id)
        return done

    async def _deliver_halves(
        self, number: int, forwards: Sequence[Forward], newest: dict[UUID, UUID]
    ) -> list[int]:
        """Deliver what a shard refuses together: a signal that it refuses alone is dropped."""
        if len(forwards) == 1:
            logger.exception("a signal is refused by shard %d, and is dropped there", number)
            return [forwards[0].forward_id]
        middle = len(forwards) // 2
        done = await self._deliver(number, forwards[:middle], newest)
        rest = [each for each in forwards[middle:] if _run_of(each) not in self.held]
        return [*done, *(await self._deliver(number, rest, newest) if rest else ())]

    def _hold(self, what: Iterable[UUID | int], error: HoldfastError) -> None:
        self.held.update(what)
        log = logger.debug if isinstance(error, DatabaseUnavailable) else logger.warning
        log("what is for another shard is sent again later: %s", error)


def _signal(forward: Forward) -> NewSignal:
    assert forward.signal is not None, "only signals are asked for theirs"
    return forward.signal


def _run_of(forward: Forward) -> UUID:
    return _signal(forward).run_id


def _say_lost(signal: NewSignal, outcome: str) -> None:
    logger.warning(
        "signal %r of another shard was not delivered: run %s %s",
        signal.name,
        signal.run_id,
        "has ended" if outcome == "ended" else "does not exist",
    )
