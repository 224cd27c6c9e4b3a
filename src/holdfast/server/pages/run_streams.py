"""What a run has written for readers, on its page: streams, and the lines that its code logged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import msgspec

from holdfast.client.run_logs import LOG_LEVELS, LogOptions
from holdfast.errors import PayloadLocked
from holdfast.server.pages.view import View
from holdfast.server.problems import Problem
from holdfast.server.run_logs import RunLog
from holdfast.types import LOG_STREAM, LogLinePage, StreamInfo, StreamItem
from holdfast.values.moments import to_micros

_VALUES: Final = 1_000  # that are shown, the newest
_BYTES: Final = 64 * 1024  # of them, about
_LINES: Final = 500
_MOST_LINES: Final = 10_000  # that are looked through for those that fit


async def written_tabs(view: View, log: RunLog, tab: str) -> list[str]:
    """Return the names of the tabs that have something to show. Of an archived run all may have."""
    if log.run.archive is not None:
        return ["streams", "lines"]
    names = {each.name for each in await view.store.list_streams(log.run.run_id)}
    has = {"streams": bool(names - {LOG_STREAM}), "lines": LOG_STREAM in names}
    return [name for name, is_there in has.items() if is_there or name == tab]


async def streams_tab(view: View, log: RunLog) -> Mapping[str, object]:
    """Return the streams of a run, and the newest values of the one that is chosen."""
    handle = view.reader.handle(log.run.run_id)
    streams = await handle.streams()
    name = view.param("stream") or (streams[0].name if streams else "")
    found = next((each for each in streams if each.name == name), None)
    if found is None:
        if name:
            raise Problem(404, "not-found", f"the run has no stream {name!r}")
        return {"streams": [], "chosen": "", "text": "", "earlier": 0}
    shown = _how_many(found)
    after = found.last_offset - shown
    page = await handle.read_stream(name, after=after, limit=max(1, shown))  # 0: none so far
    return {
        "streams": streams,
        "chosen": name,
        "text": _text(page.items),
        "earlier": found.values - shown,
    }


def _how_many(stream: StreamInfo) -> int:
    """Return how many of the newest values of a stream are shown."""
    average = max(1, stream.bytes // max(1, stream.values))
    return min(stream.values, _VALUES, max(1, _BYTES // average))


def _text(items: list[StreamItem[object]]) -> str:
    """Return values as running text; others as JSON, each on a line."""
    text = ""
    for item in items:
        if isinstance(item.value, str):
            text += item.value
        else:
            text += "\n" if text and not text.endswith("\n") else ""
            text += msgspec.json.encode(item.value).decode() + "\n"
    return text


async def lines_tab(view: View, log: RunLog) -> Mapping[str, object]:
    """Return the newest lines that the code of a run has logged, of a level and of a call."""
    level, call = view.param("level") or LOG_LEVELS[0], view.param("call")
    if level not in LOG_LEVELS:
        raise Problem(400, "bad-parameter", f"level is one of {', '.join(LOG_LEVELS)}")
    options: LogOptions = {"level": level}
    if call:
        options["call"] = call
    if not call and level == LOG_LEVELS[0]:  # all fit: those before the newest need not be read
        options["after"] = await _before_newest(view, log.run.run_id)
    page, locked = LogLinePage([], 0, ended=False), ""
    try:
        page = await view.reader.runs.read_log_lines(log.run.run_id, limit=_MOST_LINES, **options)
    except PayloadLocked as error:
        locked = str(error)
    lines = page.lines[-_LINES:]
    return {
        "lines": [(each, to_micros(each.at)) for each in lines],
        "level": level,
        "levels": LOG_LEVELS,
        "call": call,
        "locked": locked,
        "earlier": options.get("after", 0) + page.dropped + len(page.lines) - len(lines),
    }


async def _before_newest(view: View, run_id: UUID) -> int:
    """Return the offset after which the newest lines of a run stand."""
    found = await view.store.list_streams(run_id)
    return max([0, *(each.last_offset - _LINES for each in found if each.name == LOG_STREAM)])
