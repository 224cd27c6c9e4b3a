"""Hold what the driver was told, the logs and the traces outside against each other."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.failures.app import Trace, executions_of
from benchmarks.failures.load import WORD, Order
from holdfast import Client
from holdfast.client import Run
from holdfast.events import with_role
from holdfast.types import LoggedEvent

EXTERNAL = with_role("external")  # written by others than workers that execute the run
READS_AT_ONCE = 10
LATE_SECONDS = 15.0  # a run that continues later had waited for a lease to expire
RECORDS = ("StepCompleted", "ActivityCompleted")


@dataclass(frozen=True)
class Failure:
    """When it was made, in seconds of this machine's clock, and the workers that died of it."""

    at: float
    dead: Collection[int] = ()


@dataclass(frozen=True)
class History:
    """A run and its log as they are in the end."""

    order: Order
    run: Run
    log: Sequence[LoggedEvent]

    @property
    def records(self) -> list[tuple[str, float, dict[str, Any]]]:
        """The key, the moment and the result of each recorded step and activity."""
        return [
            (entry.event.key or "", entry.event.at / 1e6, json.loads(entry.event.details)["result"])
            for entry in self.log
            if entry.event.type in RECORDS and entry.event.details is not None
        ]

    def story(self, moment: float) -> str:
        """Return the first events since shortly before a moment, with the seconds from it."""
        events = [
            f"{entry.event.type} {entry.event.at / 1e6 - moment:+.2f}"
            for entry in self.log
            if entry.event.at / 1e6 > moment - 2
        ]
        return f"{self.run.run_id}: {', '.join(events[:8])}"

    def continued_at(self, moment: float) -> float | None:
        """Return when a worker first wrote something to the log after a moment."""
        return next(
            (
                entry.event.at / 1e6
                for entry in self.log
                if entry.event.at / 1e6 > moment and entry.event.type not in EXTERNAL
            ),
            None,
        )


async def read_histories(client: Client, orders: Iterable[Order]) -> list[History]:
    """Read all runs that are still there, some at a time."""
    at_once = asyncio.Semaphore(READS_AT_ONCE)

    async def read(order: Order, run_id: UUID) -> History:
        async with at_once:
            run = await client.runs.get(run_id)
            return History(order, run, await client.runs.log(run_id))

    there = [(each, each.run_id) for each in orders if each.run_id is not None and not each.lost]
    return await asyncio.gather(*(read(order, run_id) for order, run_id in there))


def read_traces(path: Path) -> list[Trace]:
    """Read what the executions left."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def faults(history: History, traces: Sequence[Trace], *, durable: bool) -> list[str]:
    """Return what is wrong with a run: its end, or a mix of histories in its log.

    If the database is not `durable`, executions may have followed from records that were lost.
    """
    run, log, records = history.run, history.log, history.records
    found: list[str] = []
    if run.status != "completed":
        found.append(f"it {run.status}: {run.error!r}")
    if [entry.idx for entry in log] != list(range(len(log))):
        found.append("its log has a gap")
    if len({key for key, _, _ in records}) != executions_of(history.order.job):
        found.append(f"{len(records)} executions are recorded")
    nonces = [effect["nonce"] for _, _, effect in records]
    if run.output != nonces:
        found.append("its output is not what is recorded")
    causes = ["", *nonces]
    after_signal = history.order.job["length"] + 1
    if len(causes) > after_signal:
        causes[after_signal] += WORD  # what the signal brought
    if (after := [effect["after"] for _, _, effect in records]) != causes[: len(after)]:
        found.append("a result was computed from another than the recorded one")
    executed = {trace["nonce"] for trace in traces if trace["what"] == "effect"}
    if missing := set(nonces) - executed:
        found.append(f"{len(missing)} recorded executions never happened")
    if durable and {trace["after"] for trace in traces} - set(causes):
        found.append("a step began before its cause was durable")
    return [f"{run.run_id}: {each}" for each in found]


@dataclass(frozen=True)
class Window:
    """The time of one failure; the load was kept up until its end."""

    begin: float
    end: float

    def has(self, moment: float) -> bool:
        """Return True if a moment is in it."""
        return self.begin <= moment < self.end


@dataclass(frozen=True)
class Evidence:
    """What is known of all runs in the end."""

    orders: Sequence[Order]
    histories: Sequence[History]
    traces: Sequence[Trace]
    durable: bool

    @cached_property
    def _by_run(self) -> Mapping[str, Sequence[Trace]]:
        by_run: dict[str, list[Trace]] = defaultdict(list)
        for trace in self.traces:
            by_run[trace["call"].partition("/")[0]].append(trace)
        return by_run

    def _of(self, history: History) -> Sequence[Trace]:
        return self._by_run.get(str(history.run.run_id), ())

    def judge(self, failure: Failure, window: Window) -> dict[str, Any]:
        """Return the figures of one failure: times, and counts of the runs of its window."""
        return {**self._times(failure, window), **self._counts(window)}

    def _times(self, failure: Failure, window: Window) -> dict[str, Any]:
        was_open = [each for each in self.histories if each.order.open_at(failure.at)]
        continued = [at for each in was_open if (at := each.continued_at(failure.at)) is not None]
        moments = sorted(
            entry.event.at / 1e6
            for each in self.histories
            for entry in each.log
            if failure.at < entry.event.at / 1e6 < window.end and entry.event.type not in EXTERNAL
        )
        pauses = [b - a for a, b in zip([failure.at, *moments], moments, strict=False)]
        held = [each for each in was_open if _held(each, self._of(each), failure)]
        taken_over = [_taken_over_at(self._of(each), failure) for each in held]
        waited = [order.waited for order in self.orders if window.has(order.asked_at)]
        return {
            "open": len(was_open),
            "held": len(held),
            "pause": round(max(pauses, default=window.end - failure.at), 3),
            "first": round(min(taken_over) - failure.at, 3) if taken_over else None,
            "late": [
                each.story(failure.at)
                for each in was_open
                if (each.continued_at(failure.at) or 0) > failure.at + LATE_SECONDS
            ],
            "last": round(max(continued, default=failure.at) - failure.at, 3),
            "caller": round(max(waited, default=0.0), 3),
        }

    def _counts(self, window: Window) -> dict[str, Any]:
        orders = [order for order in self.orders if window.has(order.asked_at)]
        histories = [each for each in self.histories if window.has(each.order.asked_at)]
        effects = Counter(
            trace["call"]
            for each in histories
            for trace in self._of(each)
            if trace["what"] == "effect"
        )
        return {
            "runs": len(orders),
            "runs lost": sum(order.lost for order in orders),
            "signals lost": sum(order.signal_lost for order in orders),
            "ends lost": sum(order.end_lost for order in orders),
            "repeated": sum(count - 1 for count in effects.values()),
            "twice": sum(
                len(each.records) - len({key for key, _, _ in each.records}) for each in histories
            ),
            "wrong": [
                fault
                for each in histories
                for fault in faults(each, self._of(each), durable=self.durable)
            ],
        }


def _taken_over_at(traces: Sequence[Trace], failure: Failure) -> float:
    """Return when a worker that lives first executed something of a run after the failure."""
    return min(
        (t["at"] for t in traces if t["at"] > failure.at and t["pid"] not in failure.dead),
        default=math.inf,
    )


def _held(history: History, traces: Sequence[Trace], failure: Failure) -> bool:
    """Return True if a worker that died was executing a step or the activity of a run."""
    recorded = {f"{history.run.run_id}/{key}" for key, at, _ in history.records if at <= failure.at}
    return any(
        trace["pid"] in failure.dead and trace["at"] < failure.at and trace["call"] not in recorded
        for trace in traces
    )
