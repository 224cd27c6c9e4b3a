"""The logs of runs that people look at, read once and continued: a long one takes a while."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary

from holdfast.client import Client
from holdfast.insight.folding import Fold, fold
from holdfast.insight.spans import Span
from holdfast.insight.timeline import read_spans, read_steps
from holdfast.server.site import Site
from holdfast.store.port import Store
from holdfast.types import Event, FlowStepState, RunRecord

_MOST_RUNS: Final = 16
_MOST_EVENTS: Final = 200_000  # of all runs that are kept together


@dataclass(slots=True)
class RunLog:
    """A run as it is now: its row, its log, and the log as spans and as lines of a timeline."""

    run: RunRecord
    events: list[Event] = field(default_factory=list[Event])
    steps: tuple[FlowStepState, ...] = ()
    spans: list[Span] = field(default_factory=list[Span])
    lines: list[Span | Fold] = field(default_factory=list["Span | Fold"])


class Logs:
    """Keeps the logs of the runs that were looked at last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[UUID, RunLog] = OrderedDict()

    async def read(self, client: Client, store: Store, run_id: UUID) -> RunLog:
        """Return a run with its log. Raises RunNotFound."""
        run = (await client.runs.get(run_id)).record
        kept = self._kept.pop(run_id, None)
        known = kept.events if kept is not None else []
        if run.archive is not None:
            new = [each.event for each in await client.runs.log(run_id, len(known))]
        else:
            new = (await store.read_events([(run_id, len(known))])).get(run_id, [])
        steps = tuple(await read_steps(store, run))
        if kept is None or new or kept.run != run or kept.steps != steps:
            events = [*known, *new]
            spans = read_spans(events, run.completed_at, steps)
            kept = RunLog(run, events, steps, spans, list(fold(spans)))
        self._kept[run_id] = kept
        self._forget()
        return kept

    def _forget(self) -> None:
        """Drop those that were not looked at for longest, but never the last."""
        while len(self._kept) > 1 and (
            len(self._kept) > _MOST_RUNS
            or sum(len(each.events) for each in self._kept.values()) > _MOST_EVENTS
        ):
            self._kept.popitem(last=False)


_of_sites: WeakKeyDictionary[Site, Logs] = WeakKeyDictionary()


def logs_of(site: Site) -> Logs:
    """Return the logs that a server keeps."""
    return _of_sites.setdefault(site, Logs())
