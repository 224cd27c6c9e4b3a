"""The runs of one worker: those for which it has a lease, and suspended ones that it keeps.

A claimed task becomes a driver. A new run begins at once, a cached run continues with the events
that it has not seen, and any other run is replayed from its log. Workflow code is entered only from
plain callbacks of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final
from uuid import UUID

import msgspec

from holdfast.codec import check_open, summarize
from holdfast.definitions.app import App
from holdfast.errors import PayloadLocked
from holdfast.events import WORKFLOW_STARTED
from holdfast.runtime.turn.checking import Check
from holdfast.runtime.turn.turn import RunInfo, Turn
from holdfast.types import ClaimedTask, Event, Lease, Notice, Release, RunRecord
from holdfast.values.loggers import get_logger
from holdfast.values.names import split_name
from holdfast.worker.agenda import Agenda
from holdfast.worker.attempts import StepRunner
from holdfast.worker.claimer import Room
from holdfast.worker.clock import Clock
from holdfast.worker.driver import DriverState, RunDriver
from holdfast.worker.giving_back import GivenUp
from holdfast.worker.log_reader import LogReader
from holdfast.worker.observing import Observing
from holdfast.worker.recording import Committer
from holdfast.worker.tracer import Tracer

logger = get_logger("holdfast.worker")

_MARK_SECONDS: Final = 1.0  # for the commits that say which runs a drain has interrupted
_details: Final = attrgetter("details")
_ALL_READ: Final = 2**31 - 1  # a log that is being read has no unread events


class TurnCache:
    """Keep the turns of the `size` runs that were suspended last; close older ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._turns: OrderedDict[UUID, Turn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def put(self, run_id: UUID, turn: Turn) -> None:
        """Keep a suspended turn."""
        self._turns[run_id] = turn
        while len(self._turns) > self._size:
            _, oldest = self._turns.popitem(last=False)
            oldest.abandon()

    def take(self, run_id: UUID) -> Turn | None:
        """Remove a turn and return it, None if it is not here."""
        return self._turns.pop(run_id, None)

    def clear(self) -> None:
        """Close every turn."""
        while self._turns:
            self._turns.popitem()[1].abandon()


class Runs:
    """Hold the leased runs of one worker.

    `release` gives one lease back. `room` counts the runs held here, and `due_at` tells the
    claimer when a suspended run comes due.
    """

    def __init__(
        self,
        app: App,
        clock: Clock,
        committer: Committer,
        runner: StepRunner,
        reader: LogReader,
        cache: TurnCache,
        notify: Callable[[Sequence[Notice]], None],
        *,
        agenda: Agenda,
        release: Callable[[Release], None],
        room: Room,
        due_at: Callable[[int], None],
        check: Check = "no",
        tracer: Tracer | None = None,
        observing: Observing | None = None,
    ) -> None:
        self.observing = observing or Observing()
        self.clock, self.committer, self.runner = clock, committer, runner
        self.notify, self.draining = notify, False
        self._replaying: Lease | None = None  # of a run that has no driver yet
        self._check: Check = check
        self._app, self._reader, self._cache = app, reader, cache
        self._find, self._agenda = app.registry.find, agenda
        self._tracer = tracer
        self._release, self._room, self._due_at = release, room, due_at
        self.takes_flow: Callable[[ClaimedTask], bool] | None = None  # set by the workload
        self._drivers: dict[UUID, RunDriver] = {}
        self._claimed_again: dict[UUID, ClaimedTask] = {}
        self._changed = asyncio.Event()  # while draining: a run has left, or the grace is over
        self._grace_ended = False
        self._opening: set[tuple[UUID, int]] = set()  # leases whose runs have no driver yet
        room.count(self._drivers, self._opening)
        self.marks_interrupted, self.interrupted = False, 0  # whether and how often a drain does

    # Claimed tasks

    @property
    def executing(self) -> bool:
        """True if a step runs, or waits until a cancelled one has ended. Safe from any thread."""
        return any(driver.executing for driver in list(self._drivers.values()))

    @property
    def busy(self) -> bool:
        """True if a log is being read, a step runs or is about to, or a commit is in flight."""
        return bool(self._opening) or any(driver.busy for driver in self._drivers.values())

    @property
    def cached(self) -> int:
        """The number of suspended runs that are kept in memory."""
        return len(self._cache)

    def accept(self, tasks: Sequence[ClaimedTask]) -> None:
        """Begin claimed turns. May be called from anywhere on the event loop."""
        self._opening.update([(task.run_id, task.lease_no) for task in tasks])
        asyncio.get_running_loop().call_soon(self._open_all, tasks)

    def _open_all(self, tasks: Sequence[ClaimedTask]) -> None:
        for task in tasks:
            try:
                self._open(task)
            except Exception:  # a fault of one run must not keep the others from being opened
                logger.exception("run %s cannot be opened", task.run_id)

    def _opened(self, task: ClaimedTask) -> bool:
        """Take a task out of those to be opened; return False if it was given back."""
        lease = (task.run_id, task.lease_no)
        still_ours = lease in self._opening
        self._opening.discard(lease)
        if self.draining:
            self._changed.set()
        return still_ours

    def _open(self, task: ClaimedTask) -> None:
        run_id = task.run_id
        if (run_id, task.lease_no) not in self._opening:  # given back
            return
        if run_id in self._drivers:  # the answer to its suspension is still on the way
            self._claimed_again[run_id] = task
            return
        turn = self._cache.take(run_id)
        if turn is not None:
            self._open_cached(task, turn)
        elif self.takes_flow is not None and self.takes_flow(task):
            self._opened(task)
            self._room.freed()
        elif task.input is not None and task.log_length == 1:
            started = Event(WORKFLOW_STARTED, None, task.input, task.started_at)
            self._begin(task, [started])
        elif task.tail_from is None:
            self._reader.read(run_id, 0, lambda log: self._begin(task, log))
        else:  # the claim left out its key and headers, which a cached run has
            self._reader.read_run(run_id, lambda run: self._open_evicted(task, run))

    def _open_evicted(self, task: ClaimedTask, run: RunRecord | None) -> None:
        """Replay a run whose turn has left the cache, now that its key and headers are known."""
        if run is not None:
            task = msgspec.structs.replace(task, run_key=run.key, headers=run.headers)
        self._reader.read(task.run_id, 0, lambda log: self._begin(task, log))

    def _open_cached(self, task: ClaimedTask, turn: Turn) -> None:
        """Resume a cached turn, unless a restore or a failover has changed the log under it."""
        first = turn.durable_length
        ours = task.tail_from is not None and task.lease_no == turn.lease_no + 1
        if ours and task.tail_from is not None and task.tail_from <= first <= task.log_length:
            self._resume(task, turn, task.tail[first - task.tail_from :])
        else:
            self._reader.read(task.run_id, first - 1, lambda tail: self._compare(task, turn, tail))

    def _compare(self, task: ClaimedTask, turn: Turn, tail: list[Event]) -> None:
        """Resume a cached turn if the log has the turn's last event in the same place."""
        if tail and turn.ends_with(tail[0]):
            self._resume(task, turn, tail[1:])
            return
        turn.abandon()
        info = turn.info
        task = msgspec.structs.replace(task, run_key=info.key, headers=info.headers)
        self._reader.read(task.run_id, 0, lambda log: self._begin(task, log))

    def _begin(self, task: ClaimedTask, log: list[Event]) -> None:
        if not self._opened(task):
            return
        if not log:  # deleted meanwhile
            self._room.freed()
            return
        run_id, lease_no = task.run_id, task.lease_no
        if run_id in self._drivers and not self._take_over(task):
            return
        name, tracer = split_name(task.name)[1], self._tracer
        if lease_no == 1:
            self.observing.run_begun(name, task.first_claimed_at or task.started_at)
        if len(log) > 1:
            self.observing.replayed(name)
        info = RunInfo(
            run_id,
            name,
            task.version,
            task.attempts,
            task.started_at,
            task.parent_run_id,
            task.run_key,
            task.headers if tracer is None else tracer.headers_of(run_id, task.headers),
            task.first_claimed_at,
            tells="nothing" if self._agenda.other_releases else "which",
        )
        replaying = self._replaying = Lease(run_id, "", lease_no, len(log))
        try:
            check_open(map(_details, log))
            turn = Turn(
                self._find(name, task.version),
                info,
                lease_no,
                log,
                self.clock.now,
                strict=self._app.strict,
                careful=self._app.careful,
                check=self._check,
            )
        except Exception as error:
            self._give_back_unreadable(task, error)
            return
        finally:
            was_given_up = self._replaying is not replaying
            self._replaying = None
        if was_given_up:
            turn.abandon()
            self._room.freed()
            return
        driver = self._drivers[run_id] = RunDriver(self, run_id, lease_no, turn)
        driver.begin()

    def _give_back_unreadable(self, task: ClaimedTask, error: Exception) -> None:
        """Give back as stuck a run that cannot be replayed."""
        locked = isinstance(error, PayloadLocked)  # its message says all that its traceback does
        reason = str(error) if locked else summarize(error)
        what = (task.run_id, task.name, reason)
        logger.error("run %s (%s) cannot be replayed: %s", *what, exc_info=not locked)
        self._release_stuck(task.run_id, task.lease_no, reason, quotes=not locked)
        self._room.freed()

    def _resume(self, task: ClaimedTask, turn: Turn, tail: Sequence[Event]) -> None:
        if not (self._opened(task) and self._take_over(task)):
            turn.abandon()
            return
        try:
            check_open(event.details for event in tail)
        except PayloadLocked as error:
            turn.abandon()
            self._release_stuck(task.run_id, task.lease_no, str(error))
            self._room.freed()
            return
        driver = self._drivers[task.run_id] = RunDriver(self, task.run_id, task.lease_no, turn)
        driver.resume(tail)

    def _take_over(self, task: ClaimedTask) -> bool:
        """Close the driver of an older lease; return False if a later lease has a driver.

        A run that was claimed twice while its log was read has two leases here.
        """
        other = self._drivers.get(task.run_id)
        if other is None:
            return True
        self._room.freed()  # one of the two is dropped
        if other.lease_no > task.lease_no:
            return False
        del self._drivers[task.run_id]
        other.close()
        return True

    # Called by drivers (Host)

    def suspended(self, driver: RunDriver, visible_at: int | None) -> None:
        """Keep a suspended run's turn for its next wake-up."""
        if visible_at is not None:
            self._due_at(visible_at)
        driver.close(keep_turn=True)
        self._cache.put(driver.run_id, driver.turn)
        self._leave(driver)

    def end_recorded(self, driver: RunDriver) -> None:
        """Hear that the end of a run, which its code has reached, is durable."""
        if self._tracer is not None:
            self._tracer.run_ended(driver.run_id, driver.turn.info.headers)

    def ended(self, driver: RunDriver) -> None:
        """Forget a run that has ended, belongs to another worker, or was given back."""
        driver.close()
        self._leave(driver)

    def stuck(self, driver: RunDriver, reason: str, *, quotes: bool = True) -> None:
        """Give back a run that cannot continue with this code; the pause grows with each try."""
        name = driver.turn.info.name
        logger.error("run %s (%s) is stuck: %s", driver.run_id, name, reason)
        driver.close()
        self._release_stuck(driver.run_id, driver.lease_no, reason, quotes=quotes)
        self._leave(driver)

    def need_log(self, driver: RunDriver) -> None:
        """Read a run's whole log for a turn that must replay it."""
        self._reader.read(driver.run_id, 0, driver.rebuild)

    def need_tail(self, driver: RunDriver) -> None:
        """Read the entries after those that a turn knows."""
        first = driver.turn.durable_length
        self._reader.read(driver.run_id, first, lambda tail: driver.read_tail(tail, first))

    def _release_stuck(
        self, run_id: UUID, lease_no: int, reason: str, *, quotes: bool = False
    ) -> None:
        self._release(Release(run_id, "", lease_no, stuck=reason, quotes=quotes))

    def _leave(self, driver: RunDriver) -> None:
        if self._drivers.get(driver.run_id) is driver:
            del self._drivers[driver.run_id]
        if self._claimed_again and (again := self._claimed_again.pop(driver.run_id, None)):
            asyncio.get_running_loop().call_soon(self._open, again)
        if self.draining:
            self._changed.set()
        self._room.freed()

    # Called for the heartbeat and the watchdog

    def leases(self) -> list[Lease]:
        """Return the leases held now. Safe from any thread."""
        leases = [
            Lease(run_id, "", driver.lease_no, driver.turn.durable_length)
            for run_id, driver in list(self._drivers.items())
            if driver.state is not DriverState.GIVEN_UP
        ]
        opening: dict[UUID, int] = {}
        for run_id, number in list(self._opening):
            if run_id not in self._drivers:  # otherwise the lease of its driver counts
                opening[run_id] = max(number, opening.get(run_id, 0))
        leases += [Lease(run_id, "", number, _ALL_READ) for run_id, number in opening.items()]
        replaying = self._replaying
        return leases if replaying is None else [*leases, replaying]

    def knows(self, run_id: UUID) -> bool:
        """Return True if a run is held, also if its lease is being given back. For any thread."""
        replaying = self._replaying
        return (
            run_id in self._drivers
            or (replaying is not None and replaying.run_id == run_id)
            or any(run_id == opening for opening, _ in list(self._opening))
        )

    def give_up(self, *, only_idle: bool) -> list[GivenUp]:
        """Stop acting for the runs held now; return their leases to release. Safe from any thread.

        With `only_idle`, runs that have a step under way are kept.
        """
        given_up = [
            GivenUp(Release(run_id, "", driver.lease_no), driver.results)
            for run_id, driver in list(self._drivers.items())
            if driver.give_up(only_idle=only_idle)
        ]
        for run_id, number in list(self._opening):
            self._opening.discard((run_id, number))
            given_up.append(GivenUp(Release(run_id, "", number)))
        replaying, self._replaying = self._replaying, None
        if replaying is not None:
            given_up.append(GivenUp(Release(replaying.run_id, "", replaying.lease_no)))
        return given_up

    def give_up_stuck(self, run_id: UUID, reason: str, pause_seconds: float) -> GivenUp | None:
        """Give up one run as stuck, as `give_up` does; None if it is not held."""
        driver, replaying = self._drivers.get(run_id), self._replaying
        at = self.clock.now() + int(pause_seconds * 1e6)
        if replaying is not None and replaying.run_id == run_id:
            self._replaying = None
            return GivenUp(Release(run_id, "", replaying.lease_no, visible_at=at, stuck=reason))
        if driver is None or not driver.give_up(only_idle=False):
            return None
        release = Release(run_id, "", driver.lease_no, visible_at=at, stuck=reason)
        return GivenUp(release, driver.results)

    def forget_given_up(self) -> None:
        """Forget the runs that the watchdog has given back. Called on the event loop."""
        for driver in list(self._drivers.values()):
            if driver.state is DriverState.GIVEN_UP:
                self.ended(driver)
        self._room.freed()

    def lose(self, run_id: UUID, lease_no: int) -> None:
        """Forget a run whose lease was lost; if a commit is in flight, wait for its answer."""
        driver = self._drivers.get(run_id)
        if driver is None:
            self._opening.discard((run_id, lease_no))
            self._changed.set()
            self._room.freed()
        elif driver.lease_no == lease_no and not driver.commit_in_flight:
            logger.warning("run %s: its lease was lost to another worker", run_id)
            self.ended(driver)

    def unread(self, run_id: UUID) -> None:
        """Read what others wrote to a run, if it is held here."""
        driver = self._drivers.get(run_id)
        if driver is not None and not driver.commit_in_flight:
            # From the last entry that is known, which shows if the log is the same.
            first = driver.turn.durable_length - 1
            self._reader.read(run_id, first, lambda tail: driver.unread(tail, first))

    # Draining

    async def drain(self, grace_seconds: float) -> list[Release]:
        """Let running steps end within the grace period; return the releases of the rest.

        No new step starts. What is recorded stays recorded; other workers do the rest.
        """
        self.draining = True
        for driver in list(self._drivers.values()):
            if driver.quiet:
                self.idle(driver)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while (self._drivers or self._opening) and not self._grace_ended:
                    self._changed.clear()
                    await self._changed.wait()
        if self.marks_interrupted:
            await self._mark_interrupted()
        releases = [
            Release(run_id, "", driver.lease_no) for run_id, driver in self._drivers.items()
        ]
        releases += [Release(run_id, "", lease_no) for run_id, lease_no in self._opening]
        for driver in list(self._drivers.values()):
            driver.close()
        self._drivers.clear()
        self._opening.clear()
        self._claimed_again.clear()
        self._cache.clear()
        return releases

    async def _mark_interrupted(self) -> None:
        """Give back with an entry in their logs the runs whose steps still run."""
        interrupted = [each for each in self._drivers.values() if each.interrupt()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MARK_SECONDS):
                while any(self._drivers.get(each.run_id) is each for each in interrupted):
                    self._changed.clear()
                    await self._changed.wait()
        self.interrupted = sum(self._drivers.get(each.run_id) is not each for each in interrupted)

    def end_grace(self) -> None:
        """End the grace period now."""
        self._grace_ended = True
        self._changed.set()

    def idle(self, driver: RunDriver) -> None:
        """Give back a run that has nothing under way, while the worker drains."""
        driver.close()
        self._release(Release(driver.run_id, "", driver.lease_no))
        self._leave(driver)
