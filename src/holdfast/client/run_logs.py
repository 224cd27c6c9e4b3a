"""Read run logs: what the code of runs has logged, by `logging`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypedDict, cast, get_args

import msgspec
from msgspec.structs import replace

from holdfast.client.naming import RunRef
from holdfast.client.session import Session
from holdfast.client.streams import MOST_ITEMS, Reading
from holdfast.codec import decoder
from holdfast.errors import ConfigurationError, InvalidInput, PayloadLocked, RunNotFound
from holdfast.types import LOG_STREAM, LogLevel, LogLine, LogLinePage, Restarted, StreamItem
from holdfast.values.numbers import whole_number
from holdfast.values.texts import check_text

LOG_LEVELS: Final[tuple[LogLevel, ...]] = get_args(LogLevel)

_decode: Final = decoder(LogLine | str)

_LATE_SECONDS: Final = 0.5  # for which lines are waited for that come after the end of the run


class LogOptions(TypedDict, total=False):
    """Which lines of a run's log are read.

    - `after`: an offset; the lines after it. With that of the last line, a reader continues.
    - `level`: "debug", "info", "warning", "error" or "critical": lines of this level and higher.
    - `call`: the lines of one step or activity alone: its name, or the key of one call; "" for the
      workflow's own code.
    """

    after: int
    level: LogLevel
    call: str


async def read_log_lines(
    session: Session, run: RunRef, limit: int, options: LogOptions
) -> LogLinePage:
    """Return the lines that a run's log has now; see `Runs.read_log_lines`."""
    if not 1 <= whole_number(limit, "a page of a log", "limit", 0) <= MOST_ITEMS:
        raise InvalidInput(f"limit={limit}: a page has 1 to {MOST_ITEMS:,} lines")
    fits, reading = _filter(options), await _open(session, run, options)
    lines, first, after = list[LogLine](), 0, reading.after
    while not reading.is_over:
        found = _lines(await reading.read())
        first = first or (found[0].offset if found else 0)
        lines += filter(fits, found)
        if len(lines) > limit or reading.has_all:
            break
    dropped = max(0, first - 1 - after)
    if len(lines) > limit:
        return LogLinePage(lines[:limit], lines[limit - 1].offset, False, dropped)
    return LogLinePage(lines, reading.after, reading.is_over, dropped)


async def follow_log_lines(
    session: Session, run: RunRef, options: LogOptions
) -> AsyncGenerator[LogLine]:
    """Yield the lines of a run as they come, to its end; see `Runs.follow_log_lines`."""
    async with aclosing(follow_lines(session, run, options)) as found:
        async for line in found:
            if line is not None:
                yield line


async def follow_lines(
    session: Session, run: RunRef, options: LogOptions
) -> AsyncGenerator[LogLine | None]:
    """Yield what `follow_log_lines` does, and None each time that more has to be waited for."""
    fits, reading = _filter(options), await _open(session, run, options)
    waited = False
    async with aclosing(reading.follow()) as found:
        async for item in found:
            if item is None:
                waited = True
                yield None
            for line in filter(fits, _lines([item])):
                yield line
    if waited:
        await asyncio.sleep(_LATE_SECONDS)
        with suppress(RunNotFound):  # it was kept no longer
            for line in filter(fits, _lines(await reading.read())):
                yield line


async def _open(session: Session, run: RunRef, options: LogOptions) -> Reading:
    """Return what reads the log of a run; of a key, that of the newest one."""
    run_id, after = await session.newest_of(run), options.get("after", 0)
    return Reading(session, run_id, LOG_STREAM, after, _line, everything=True)


def _line(text: str | bytes | msgspec.Raw) -> LogLine:
    """Return a line of a log. Raises PayloadLocked for what a program without its key is told."""
    found = _decode(text)
    if isinstance(found, str):
        raise PayloadLocked(
            f"the lines of this log are {found.strip('()')}, and this program cannot open them: "
            "give its App or its Client the payload_codec that has written them"
        )
    return cast("LogLine", found)


def _lines(found: Sequence[StreamItem[Any] | Restarted | None]) -> list[LogLine]:
    return [
        replace(item.value, offset=item.offset) for item in found if isinstance(item, StreamItem)
    ]


def _filter(options: LogOptions) -> Callable[[LogLine], bool]:
    """Return what says if a line is asked for. Raises ConfigurationError, and InvalidInput."""
    if unknown := options.keys() - LogOptions.__optional_keys__:
        raise ConfigurationError(f"a log has no option {', '.join(sorted(unknown))}")
    if whole_number(options.get("after", 0), "a log", "after", -1) < 0:
        raise InvalidInput(
            f"after={options.get('after')}: the first line of a log has the offset 1"
        )
    level, call = options.get("level", LOG_LEVELS[0]), options.get("call")
    if level not in LOG_LEVELS:
        raise InvalidInput(f"level={level!r}: it is one of {', '.join(LOG_LEVELS)}")
    if call is not None:
        check_text("call", call)
    levels = LOG_LEVELS[LOG_LEVELS.index(level) :]
    return lambda line: (
        line.level in levels
        and (call is None or line.call == call or (call != "" and line.name == call))
    )
