"""What the code of runs logs, sent to the logs of the runs.

A handler of `logging` keeps the lines of workflow code, steps and activities, and one call at a
time sends those of all runs, 50 ms after the one before at the earliest. The code that logs never
waits, and no error here is one of a run: lines for which there is no room are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Final, TypeAlias
from uuid import UUID

from holdfast.codec import encode, storable, text_of
from holdfast.definitions.activities import ActivityContext
from holdfast.definitions.steps import StepContext
from holdfast.definitions.streams import StreamSink
from holdfast.runtime.code.run_log import logger as workflow_log
from holdfast.store.port import Store
from holdfast.types import (
    MOST_LOG_BYTES,
    LogChunk,
    LogField,
    LogLevel,
    LogLine,
    Notice,
    WrittenLogs,
)
from holdfast.values.loggers import get_logger
from holdfast.values.moments import to_datetime
from holdfast.worker.clock import Clock
from holdfast.worker.gathering import Gathering
from holdfast.worker.recording import repeated

logger = get_logger("holdfast.streams")

Origin: TypeAlias = tuple[UUID, str, int, str]
"""A run, the key of a call in it, the attempt, and what is called; '' for the workflow's code."""

_GATHER_SECONDS: Final = 0.05
_STOP_SECONDS: Final = 2.0  # for what is to be sent when the worker stops
_CHUNK: Final = 32 * 1024  # characters
_CALL: Final = 256 * 1024  # of one call
_ROOM: Final = 256 * 1024  # that wait for one run
_MESSAGE: Final = 8 * 1024  # of a message, and of a traceback
_FIELD: Final = 1024
_FIELDS: Final = 32

# Those between two levels have the name of the lower one.
_LEVELS: Final[tuple[tuple[int, LogLevel], ...]] = (
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (logging.INFO, "info"),
)
_STANDARD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_ADDED: Final = {"run_id", "workflow", "step", "activity", "key", "attempt", "attempt_of"}  # by us
_traceback: Final = logging.Formatter().formatException


class _Waiting:
    """The lines of one run that are to be sent."""

    __slots__ = ("dropped", "lines", "size")

    def __init__(self) -> None:
        self.lines = deque[str]()
        self.size = self.dropped = 0


class RunLogs(logging.Handler):
    """Keeps what the code of a worker's runs logs, and sends it. In a thread, too."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        notify: Callable[[list[Notice]], None],
        sink: StreamSink,
        holds: Callable[[UUID], bool],
    ) -> None:
        """`sink` is that of the worker's attempts, `holds` says if it has a run."""
        super().__init__()
        self._store, self._clock, self._notify = store, clock, notify
        self._sink, self._holds = sink, holds
        self._waiting: dict[UUID, _Waiting] = {}
        self._writer, self._number = random.getrandbits(31), 0
        self._calls = Gathering(_GATHER_SECONDS, lambda: bool(self._waiting), self._flush)
        self._event_loop: asyncio.AbstractEventLoop | None = None

    @property
    def idle(self) -> bool:
        """True if nothing waits and no call is in flight."""
        return not self._waiting and self._calls.idle

    def start(self) -> None:
        """Keep what is logged from now on, and send it on this event loop. Idempotent."""
        self._event_loop = asyncio.get_running_loop()
        logging.getLogger().addHandler(self)

    async def stop(self) -> None:
        """Keep nothing more, and send what waits, for two seconds at most. Idempotent."""
        logging.getLogger().removeHandler(self)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                while not self.idle:
                    await asyncio.wait([self._calls.begin()])
        self._waiting.clear()
        await self._calls.stop()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line that belongs to a run. Called with the lock of the handler."""
        name = record.name
        if name.startswith("holdfast.") and name != workflow_log.name:
            return
        origin = self._origin()
        if origin is None or self._event_loop is None:
            return
        try:
            text = encode(self._line(record, origin))
        except Exception:
            self.handleError(record)
            return
        waiting = self._waiting.get(origin[0])
        if waiting is None:
            waiting = self._waiting[origin[0]] = _Waiting()
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                self._event_loop.call_soon_threadsafe(self._calls.plan)
        if waiting.size + len(text) > _ROOM:
            waiting.dropped += 1
        else:
            waiting.lines.append(text)
            waiting.size += len(text)

    def _origin(self) -> Origin | None:
        """Return what runs here for this worker: a step, an activity, new code of a workflow."""
        found = StepContext.variable.get() or ActivityContext.variable.get()
        if found is not None:
            name = found.step if isinstance(found, StepContext) else found.name
            is_ours = getattr(found.streams, "sink", found.streams) is self._sink
            return (found.run_id, found.key, found.attempt, name) if is_ours else None
        run = getattr(_get_running_loop(), "caller", None)
        info = getattr(run, "info", None)
        if run is None or info is None or run.history.replaying or not self._holds(info.run_id):
            return None
        return info.run_id, "", info.attempt, ""

    def _line(self, record: logging.LogRecord, origin: Origin) -> LogLine:
        traceback = record.exc_text
        if record.exc_info:
            traceback = traceback or _traceback(record.exc_info)
        return LogLine(
            at=to_datetime(self._clock.now()),
            level=_level(record.levelno),
            logger=storable(record.name)[:_FIELD],
            message=_cut(storable(record.getMessage()), _MESSAGE),
            call=origin[1],
            attempt=origin[2],
            name=origin[3],
            fields=_fields(vars(record)),
            # the end of a traceback says what happened
            traceback=storable(traceback)[-_MESSAGE:] if traceback else None,
        )

    async def _flush(self) -> None:
        await self._send(self._take())

    async def _send(self, chunks: Sequence[LogChunk], *, again: bool = False) -> None:
        async def write() -> WrittenLogs:
            nonlocal again
            repeats, again = again, True
            return await self._store.write_logs(
                self._writer, chunks, most_bytes=MOST_LOG_BYTES, again=repeats
            )

        try:
            written = await repeated(write, self._clock, f"writing to {len(chunks)} log(s)")
            if written.notices:
                self._notify(written.notices)
        except Exception:
            if len(chunks) != 1:  # the lines of one run must not lose those of the others
                for chunk in chunks:
                    await self._send([chunk], again=True)
                return
            logger.exception("lines of run %s are lost", chunks[0].run_id)

    def _take(self) -> list[LogChunk]:
        """Take a chunk of each run, the one that waits longest first, up to the size of a call."""
        chunks, size = list[LogChunk](), 0
        with self._locked():
            for run_id, waiting in list(self._waiting.items()):
                if size >= _CALL:
                    break
                del self._waiting[run_id]
                texts, taken = list[str](), 0
                while waiting.lines and (not texts or taken + len(waiting.lines[0]) <= _CHUNK):
                    taken += len(waiting.lines[0])
                    texts.append(waiting.lines.popleft())
                waiting.size -= taken
                if waiting.lines:
                    self._waiting[run_id] = waiting
                elif waiting.dropped:
                    texts.append(self._gap(waiting.dropped))
                self._number += 1
                chunks.append(LogChunk(run_id, self._number, len(texts), f"[{','.join(texts)}]"))
                size += taken
        return chunks

    def _gap(self, dropped: int) -> str:
        message = f"{dropped:,} line(s) are missing here: they came faster than they could be sent"
        at = to_datetime(self._clock.now())
        return encode(LogLine(at=at, level="warning", logger=logger.name, message=message))

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()


def _level(number: int) -> LogLevel:
    for least, name in _LEVELS:
        if number >= least:
            return name
    return "debug"


def _fields(found: Mapping[str, object]) -> dict[str, LogField]:
    """Return what `extra` has added to a record, as values that can be stored."""
    names = [name for name in found if name not in _STANDARD | _ADDED][:_FIELDS]
    return {storable(name)[:_FIELD]: _field(found[name]) for name in names}


def _field(value: object) -> LogField:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float) and abs(value) < 2**53:  # no NaN either
        return value
    return _cut(text_of(value), _FIELD)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 2] + " …"
