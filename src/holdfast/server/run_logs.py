"""Whole logs of runs, for what is made of all of it: timelines, steps, children.

A log is read in parts and once; later only what is new is read. Large values are cut as they come,
so what is kept of a run is bounded by its number of entries, not by their sizes.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from holdfast.insight.folding import Fold, fold
from holdfast.insight.shapes import LARGEST_SHOWN
from holdfast.insight.spans import Span
from holdfast.insight.timeline import read_run_spans, read_starts, read_steps, with_starts
from holdfast.server.site import Site
from holdfast.types import Event, FlowStepState, RunRecord

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of details of one run that are kept whole; later ones are kept if they are small."""
SMALL: Final = 1024

_MOST_RUNS: Final = 16
_MOST_EVENTS: Final = 200_000  # of all runs that are kept together
_MOST_KEPT: Final = 64 * 1024 * 1024  # bytes of their details
_AT_ONCE: Final = 4  # logs that are read at the same time
_PART_EVENTS: Final = 5_000
_PART_BYTES: Final = 4 * 1024 * 1024
_WHOLE: Final = 2**30
_IN_THREAD: Final = 2_000  # events that take long enough to hold up other requests

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(slots=True)
class RunLog:
    """A run as it is now: its row, its log, and the log as spans and as lines of a timeline.

    `cut` has the indexes of the events whose large values are cut, `size` is that of all details.
    """

    run: RunRecord
    events: list[Event] = field(default_factory=list[Event])
    steps: tuple[FlowStepState, ...] = ()
    spans: list[Span] = field(default_factory=list[Span])
    lines: list[Span | Fold] = field(default_factory=list["Span | Fold"])
    starts: Mapping[str, int] = field(default_factory=dict[str, int])  # of open activities
    cut: set[int] = field(default_factory=set[int])
    size: int = 0

    def add(self, event: Event) -> None:
        """Add the next event of the log, cut if it is large."""
        kept = cut(event, LARGEST_SHOWN if self.size < MOST_BYTES else SMALL)
        if kept is not event:
            self.cut.add(len(self.events))
        self.events.append(kept)
        self.size += len(kept.details or "")

    def draw(self) -> None:
        """Make the spans and the lines of the events."""
        self.spans = with_starts(read_run_spans(self.run, self.events, self.steps), self.starts)
        self.lines = list(fold(self.spans))


class Logs:
    """Keeps the logs of the runs that were looked at last."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._kept: OrderedDict[UUID, RunLog] = OrderedDict()
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def read(self, run_id: UUID) -> RunLog:
        """Return a run with its log. Raises RunNotFound."""
        async with self._turn:
            log = await self._read(run_id)
        self._kept[run_id] = log
        self._kept.move_to_end(run_id)
        self._forget()
        return log

    async def _read(self, run_id: UUID) -> RunLog:
        site = self._site
        run = (await site.reader.runs.get(run_id)).record
        steps = tuple(await read_steps(site.store, run))
        kept = self._kept.get(run_id)
        log = RunLog(run, steps=steps)
        if kept is not None:
            log.events, log.cut, log.size = list(kept.events), set(kept.cut), kept.size
        await self._continue(log)
        told = (run, steps, len(log.events))
        if kept is not None and (kept.run, kept.steps, len(kept.events)) == told:
            starts = await read_starts(site.store, run, kept.spans)
            if starts != kept.starts:
                kept.starts = starts
                kept.draw()
            return kept
        if len(log.events) < _IN_THREAD:
            log.draw()
        else:
            await asyncio.to_thread(log.draw)
        log.starts = await read_starts(site.store, run, log.spans)
        if log.starts:
            log.draw()
        return log

    async def _continue(self, log: RunLog) -> None:
        """Add what a log has after the events that are known."""
        run_id = log.run.run_id
        if log.run.archive is not None:
            for each in await self._site.reader.runs.log(run_id, len(log.events)):
                log.add(each.event)
            return
        while True:
            [part] = await self._site.store.read_tails(
                [(run_id, len(log.events))], limit=_PART_EVENTS, clip=_WHOLE, most_bytes=_PART_BYTES
            )
            for entry in part:
                log.add(entry.event)
            if len(part) < _PART_EVENTS and sum(each.size for each in part) < _PART_BYTES:
                return

    def _forget(self) -> None:
        """Drop those that were not looked at for longest, but never the last."""
        while len(self._kept) > 1 and (
            len(self._kept) > _MOST_RUNS
            or sum(len(each.events) for each in self._kept.values()) > _MOST_EVENTS
            or sum(each.size for each in self._kept.values()) > _MOST_KEPT
        ):
            self._kept.popitem(last=False)


def cut(event: Event, most: int) -> Event:
    """Return an event whose details have no member of more than `most` bytes.

    Of a larger one the beginning is kept, of an error its kind and the beginning of its message.
    """
    if event.details is None or len(event.details) <= most:
        return event
    try:
        members = _members.decode(event.details)
    except msgspec.MsgspecError:  # not an object: a payload, which no span shows
        return msgspec.structs.replace(event, details=None)
    large = {name for name, value in members.items() if len(bytes(value)) > most}
    if not large:
        return event
    kept = {
        name: _beginning(bytes(value)) if name in large else value
        for name, value in members.items()
    }
    return msgspec.structs.replace(event, details=msgspec.json.encode(kept).decode())


class _Error(msgspec.Struct):
    kind: str
    message: str


def _beginning(value: bytes) -> object:
    try:
        error = msgspec.json.decode(value, type=_Error)
    except msgspec.MsgspecError:
        return value[: SMALL // 2].decode(errors="ignore") + " …"
    return _Error(error.kind, error.message[: SMALL // 2])


def logs_of(site: Site) -> Logs:
    """Return the logs that a server keeps."""
    return site.kept(Logs)
