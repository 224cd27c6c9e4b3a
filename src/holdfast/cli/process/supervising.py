"""Worker processes as children, for `dev` and `worker --processes`.

They are started, watched, restarted when they crash, and stopped together on a signal. Workers of a
process that has died are reaped at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from types import FrameType
from typing import IO, Protocol, TypeAlias

import msgspec

from holdfast.cli import exits
from holdfast.cli.settings import Settings
from holdfast.database.resolve import Database
from holdfast.errors import DatabaseError
from holdfast.store.opening import opened_store
from holdfast.store.port import Store
from holdfast.values.loggers import get_logger
from holdfast.values.waits import set_within

logger = get_logger("holdfast.supervisor")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
_ASK_AGAIN_SECONDS = 2.0  # after the grace period: a worker at a debugger's prompt ends then
_KILL_SECONDS = 20.0  # after the grace period: a worker normally ends long before
_HEALTHY_SECONDS = 30.0  # a child that ran longer is restarted after the first pause


class Child:
    """One worker process. It drains by itself when its parent is gone."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: socket.socket) -> None:
        self.process = process
        self._lifeline = lifeline  # the end that this process holds
        self._written = b""  # what the child has written to the other end
        self._timers: list[asyncio.TimerHandle] = []  # of what follows a SIGTERM

    @classmethod
    async def start(
        cls,
        arguments: Sequence[str],
        environment: dict[str, str],
        *,
        output: IO[bytes] | None = None,
        reads: bool = False,
    ) -> Child:
        """Start `holdfast` with these arguments in a session of its own.

        Ctrl-C in the terminal reaches only the parent, which passes it on once. The child writes
        to `output`, by default to the parent's stdout and stderr. If it `reads`, it shares the
        parent's stdin: a debugger needs that.
        """
        theirs, lifeline = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "holdfast",
                *arguments,
                stdin=None if reads else asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    "PYTHONHASHSEED": "0",
                    **environment,
                    **Starter(os.getpid(), theirs.fileno()).variable(),
                },
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        except BaseException:
            lifeline.close()
            raise
        finally:
            theirs.close()
        lifeline.setblocking(False)
        return cls(process, lifeline)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """True if it has not ended."""
        return self.process.returncode is None

    @property
    def worker_id(self) -> str | None:
        """The id that the child's worker drew for itself; None if it has none yet.

        The process id does not tell: in containers, processes of several have the same.
        """
        with contextlib.suppress(OSError):  # nothing new, or it is closed
            self._written += self._lifeline.recv(1024)
        return self._written.decode() or None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.alive:
            self.process.send_signal(number)

    def terminate(self, grace_seconds: float) -> None:
        """Send SIGTERM; repeat it soon after the grace period, and send SIGKILL long after it."""
        self.signal(signal.SIGTERM)
        if not self._timers and self.alive:
            later = asyncio.get_running_loop().call_later
            again, seconds = grace_seconds + _ASK_AGAIN_SECONDS, grace_seconds + _KILL_SECONDS
            self._timers = [
                later(again, self.signal, signal.SIGTERM),
                later(seconds, self._kill, seconds),
            ]

    def _kill(self, seconds: float) -> None:
        if self.alive:
            logger.warning("worker process %d has not ended in %g s: killed", self.pid, seconds)
            self.signal(signal.SIGKILL)

    async def ended(self) -> int:
        """Wait for the end of the process; return its exit code, or minus the signal's number."""
        code = await self.process.wait()
        _ = self.worker_id  # read before it is closed
        self._lifeline.close()
        for timer in self._timers:
            timer.cancel()
        return code


PARENT_VARIABLE = "HOLDFAST_SUPERVISOR"


class Starter(msgspec.Struct, frozen=True):
    """The process that started this one: its id, and a socket that closes when it is gone."""

    pid: int
    lifeline: int

    def variable(self) -> dict[str, str]:
        """Return the environment variable by which a child finds its starter."""
        return {PARENT_VARIABLE: f"{self.pid}:{self.lifeline}"}

    def tell(self, worker_id: str) -> None:
        """Tell it which worker runs in this process, so that it knows whose runs are lost."""
        with contextlib.suppress(OSError):  # it is gone
            os.write(self.lifeline, worker_id.encode())


def find_starter() -> Starter | None:
    """Return the supervisor that started this process, None if there is none.

    The variable is removed: processes that this one starts are not children of the supervisor.
    """
    pid, _, lifeline = os.environ.pop(PARENT_VARIABLE, "").partition(":")
    return Starter(int(pid), int(lifeline)) if pid.isdecimal() and lifeline.isdecimal() else None


def describe_exit(code: int) -> str:
    """Return how a process ended, in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


StartWorker: TypeAlias = Callable[[int], Awaitable[Child]]
"""Starts one worker process; is given the number of its place, from 0 on."""

TellOfCrash: TypeAlias = Callable[[Child], Awaitable[None]]


class Supervisor:
    """Keeps `count` worker processes running.

    `start` starts one. `crashed` gets one that died, so that other workers take its runs at once.
    """

    def __init__(
        self, start: StartWorker, crashed: TellOfCrash, count: int, grace_seconds: float
    ) -> None:
        self._start, self._crashed, self._count = start, crashed, count
        self._grace_seconds = grace_seconds
        self._children: set[Child] = set()
        self._stopping = asyncio.Event()
        self._exit_code = exits.OK

    def stop(self) -> None:
        """Let the children drain; called again, they end at once."""
        self._stopping.set()
        for child in self._children:
            child.terminate(self._grace_seconds)

    async def run(self) -> int:
        """Keep the children running until stopped; return the exit code."""
        await asyncio.gather(*(self._keep_alive(place) for place in range(self._count)))
        return self._exit_code

    async def _keep_alive(self, place: int) -> None:
        loop = asyncio.get_running_loop()
        pause, is_first = _FIRST_PAUSE, True
        while not self._stopping.is_set():
            began = loop.time()
            child = await self._start(place)
            self._children.add(child)
            if self._stopping.is_set():
                child.terminate(self._grace_seconds)
            code = await child.ended()
            self._children.discard(child)
            if self._stopping.is_set():
                return
            # The first of a place says that the app cannot be used. One that replaces another may
            # lack only what it opens: those that run stay.
            if code == exits.USAGE and is_first:
                self._exit_code = code
                self.stop()
                return
            if loop.time() - began > _HEALTHY_SECONDS:
                pause = _FIRST_PAUSE
            logger.warning("worker process %d %s; another starts", child.pid, describe_exit(code))
            await self._crashed(child)
            await set_within(self._stopping, pause)
            is_first, pause = False, min(pause * 2, _LONGEST_PAUSE)


class Overseer(Protocol):
    """Keeps worker processes running until it is stopped."""

    def stop(self) -> None:
        """Let the workers drain; called again, they end at once."""
        ...

    async def run(self) -> int:
        """Run until stopped; return the exit code."""
        ...


class StopSignals:
    """Calls back on SIGTERM and on Ctrl-C, and remembers whether it was Ctrl-C.

    `arrived` is called by the event loop. `at_once` is called in the signal handler, between two
    instructions of the main thread: it is called even if user code blocks the event loop.
    """

    def __init__(
        self, arrived: Callable[[], None], at_once: Callable[[], None] = lambda: None
    ) -> None:
        self._arrived, self._at_once = arrived, at_once
        self._heard = self._interrupted = False
        self._loop = asyncio.get_running_loop()
        self._before = {
            number: signal.signal(number, self._arrive)
            for number in (signal.SIGTERM, signal.SIGINT)
        }

    def restore(self) -> None:
        """Restore the handlers that were installed before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def exit_code(self, code: int = exits.OK, *, unasked: int | None = None) -> int:
        """Return the exit code: that of Ctrl-C, else `code`.

        `unasked` is returned, if it is given, when no signal came.
        """
        if self._interrupted:
            return exits.INTERRUPTED
        return code if self._heard or unasked is None else unasked

    def _arrive(self, number: int, frame: FrameType | None) -> None:
        self._heard = True
        self._interrupted |= number == signal.SIGINT
        self._at_once()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._arrived)


async def oversee(
    settings: Settings,
    database: Database,
    arguments: Sequence[str],
    make: Callable[[StartWorker, TellOfCrash], Overseer],
    *,
    reads: bool = False,
    numbered: Callable[[int], Sequence[str]] = lambda _: (),
) -> int:
    """Run the overseer that `make` returns; return the exit code.

    `make` gets a function that starts a worker with these arguments, and one to call when a
    worker has died. If `reads` is set, workers share this process's stdin. `numbered` returns the
    arguments that only the worker of a place has.
    """

    async def start(place: int) -> Child:
        everything = [*settings.arguments(), *arguments, *numbered(place)]
        return await Child.start(everything, settings.environment(), reads=reads)

    async with opened_store(database, settings.schema, connections=1) as store:
        overseer = make(start, reaper(store))
        signals = StopSignals(overseer.stop)
        try:
            return signals.exit_code(await overseer.run())
        finally:
            signals.restore()


async def is_signed_on(store: Store, child: Child) -> bool:
    """Return True if the child's worker is signed on."""
    worker_id = child.worker_id
    return any(each.worker_id == worker_id for each in await store.list_workers())


async def reap_child(store: Store, child: Child) -> None:
    """Sign off the worker of a child that has died, whichever shard it served."""
    if child.worker_id is None:
        return
    from holdfast.store.shards import shards_of

    if (members := shards_of(store)) is None:
        _, notices = await store.reap_workers(worker_ids=[child.worker_id])
    else:
        await members.refresh()  # its shard may have been added since
        reaped = await members.present("reap_workers", worker_ids=[child.worker_id])
        notices = [notice for _, told in reaped.values() for notice in told]
    await store.notify(notices)


def reaper(store: Store) -> TellOfCrash:
    """Return a function that signs off the worker of a dead child.

    If the database is unavailable, this happens later, because the worker is silent.
    """

    async def reap(child: Child) -> None:
        try:
            await reap_child(store, child)
        except DatabaseError as error:
            logger.warning("the runs of process %d are reaped later: %s", child.pid, error)

    return reap
